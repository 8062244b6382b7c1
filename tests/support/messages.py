"""What a message must name, in whichever words it does."""

import re


def naming(*facts: object) -> str:
    """Return a pattern for a text that names every fact as a whole word, in any order and any case."""
    return "(?si)" + "".join(f"(?=.*{_whole(str(fact))})" for fact in facts)


def names(text: str, *facts: object) -> bool:
    """Return whether a text names every fact as a whole word, in any order and any case."""
    return re.search(naming(*facts), text) is not None


def _whole(fact: str) -> str:
    left = r"(?<!\w)" if fact[:1].isalnum() else ""
    right = r"(?!\w)" if fact[-1:].isalnum() else ""
    return left + re.escape(fact) + right
