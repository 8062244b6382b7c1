"""The fields of every file in a folder of runs: one table per file, checked when the file is read.

A table maps a field to a `Rule`; a name that ends in `?` may be absent. Fields that a table does not name are allowed,
so that later versions can add facts that nothing depends on; a change of meaning has another `format`.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from unbraid.errors import RunError

FORMAT = 1


class Rule(NamedTuple):
    """A test of a value, and a phrase for the values that pass."""

    fits: Callable[[Any], bool]
    phrase: str


Table = Mapping[str, Rule]


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 62


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_shape(value: Any) -> bool:
    return isinstance(value, list) and 0 < len(value) < 8 and all(_is_whole(size) and size > 0 for size in value)


def _is_layout(value: Any) -> bool:
    return _is_shape(value) or (isinstance(value, dict) and bool(value) and all(map(_is_shape, value.values())))


def list_of(rule: Rule) -> Rule:
    return Rule(lambda v: isinstance(v, list) and all(map(rule.fits, v)), f"a list, each entry {rule.phrase}")


def map_of(rule: Rule) -> Rule:
    return Rule(
        lambda v: isinstance(v, dict) and all(isinstance(key, str) and rule.fits(part) for key, part in v.items()),
        f"a mapping, each value {rule.phrase}",
    )


def one_of(*words: str) -> Rule:
    return Rule(lambda value: value in words, " or ".join(words))


def or_null(rule: Rule) -> Rule:
    return Rule(lambda value: value is None or rule.fits(value), f"{rule.phrase} or null")


ANY = Rule(lambda value: True, "anything")
TEXT = Rule(lambda value: isinstance(value, str), "a text")
NAME = Rule(lambda v: isinstance(v, str) and re.fullmatch(r"[^/\\\0\n]{1,200}", v) is not None, "a name")
RUN = Rule(lambda v: NAME.fits(v) and v not in (".", "..") and not v.startswith("."), "the name of a run's folder")
HASH = Rule(lambda v: isinstance(v, str) and re.fullmatch(r"[0-9a-f]{1,128}", v) is not None, "a hexadecimal hash")
WHOLE = Rule(_is_whole, "a whole number from 0")
NUMBER = Rule(_is_number, "a number")
OBJECT = Rule(lambda value: isinstance(value, dict), "a mapping")
LAYOUT = Rule(_is_layout, "a list of sizes above 0, or one for each modality")
PAIR = Rule(
    lambda v: isinstance(v, list) and len(v) == 2 and all(x is None or _is_number(x) for x in v), "a list of 2 numbers"
)
CHOICE = Rule(lambda v: isinstance(v, dict) and isinstance(v.get("name"), str), "a mapping with a name")
THIS_FORMAT = Rule(lambda value: type(value) is int and value == FORMAT, f"{FORMAT}, which this version reads")

CADENCE_FIELDS: Mapping[str, Rule] = {
    "log_steps": or_null(WHOLE),
    "checkpoint_steps": or_null(WHOLE),
    "checkpoint_seconds": NUMBER,
    "track": list_of(TEXT),
    "snapshot": or_null(NUMBER),
}
CADENCE = Rule(
    lambda v: isinstance(v, dict) and all(k in CADENCE_FIELDS and CADENCE_FIELDS[k].fits(x) for k, x in v.items()),
    "a mapping of intervals, such as log_steps",
)

CONFIG: Table = {
    "format": THIS_FORMAT,
    "objective": CHOICE,
    "model": TEXT,
    "data": CHOICE,
    "encoder": CHOICE,
    "decoder": CHOICE,
    "likelihood": CHOICE,
    "latents": map_of(OBJECT),
    "training": OBJECT,
    "prior?": CHOICE,
    "parent?": Rule(
        lambda v: isinstance(v, dict) and TEXT.fits(v.get("run")) and HASH.fits(v.get("content")) and "config" in v,
        "a mapping with run, content and config",
    ),
}

SWEEP: Table = {"format": THIS_FORMAT, "axes": map_of(list_of(ANY)), "fixed": OBJECT, "metrics": list_of(TEXT)}

FILES: Mapping[str, Table] = {
    "status": {
        "format": THIS_FORMAT,
        "state": one_of("running", "interrupted", "finished", "diverged"),
        "step?": WHOLE,
        "term?": TEXT,
        "content?": HASH,
    },
    "data": {
        "format": THIS_FORMAT,
        "name?": TEXT,
        "content?": HASH,
        "source?": TEXT,
        "images?": WHOLE,
        "shape?": LAYOUT,
        "factors?": map_of(WHOLE),
        "trained_on?": WHOLE,
        "held_out?": WHOLE,
    },
    "environment": {"format": THIS_FORMAT, "threads?": WHOLE, "group?": WHOLE, "device?": TEXT, "command?": TEXT},
    "parent": {"format": THIS_FORMAT, "path?": TEXT, "rows?": WHOLE, "max_change?": NUMBER},
    "left-out": {"format": THIS_FORMAT, "metrics": map_of(TEXT)},
    "hub": {"format": THIS_FORMAT, "repository": TEXT, "commit": TEXT},
    "group": {"format": THIS_FORMAT, "runs": list_of(RUN), "cadence?": CADENCE, "parts?": list_of(RUN)},
    "members": {"format": THIS_FORMAT, "members": map_of(OBJECT)},
    "history": {"format": THIS_FORMAT, "step": WHOLE, "epoch?": NUMBER, "images_per_second?": NUMBER},
    "scores": {
        "format": THIS_FORMAT,
        "metric": TEXT,
        "protocol": TEXT,
        "value": or_null(NUMBER),
        "samples": WHOLE,
        "interval?": or_null(PAIR),
        "part?": or_null(TEXT),
        "predictor?": or_null(TEXT),
        "seconds?": NUMBER,
        "details?": OBJECT,
        "covers?": TEXT,
        "chance?": or_null(NUMBER),
        "ceiling?": or_null(NUMBER),
    },
}
"""Tables of the JSON files by their stem; a line of a JSON-lines file has the table of its file."""

OTHER_VALUES: Mapping[str, Rule] = {"history": or_null(NUMBER)}
"""Rules of the fields that a table does not name, by the stem of the file."""


def check_fields(content: Any, table: Table, where: str, others: Rule = ANY) -> None:
    """Raise a `RunError` that names the file and the field unless the content fits a table."""
    if content is None:
        raise RunError(f"{where} is empty; restore it.")
    if not isinstance(content, dict):
        raise RunError(f"{where} should hold a mapping of fields, not {_show(content)}; restore it.")
    known = {"sum"}
    for name, rule in table.items():
        field = name.removesuffix("?")
        known.add(field)
        if field not in content:
            if name == field:
                raise RunError(f"{where} lacks '{field}', {rule.phrase}; restore it.")
        elif rule is THIS_FORMAT and _is_whole(content[field]) and content[field] > FORMAT:
            newer = f"format {content[field]}, and this one reads format {FORMAT}"
            raise RunError(f"{where} was written by a newer version of unbraid ({newer}); update unbraid.")
        elif not rule.fits(content[field]):
            raise RunError(f"{where}: '{field}' must be {rule.phrase}, not {_show(content[field])}; restore it.")
    for field in content.keys() - known:
        if not isinstance(field, str) or not others.fits(content[field]):
            raise RunError(f"{where}: '{field}' must be {others.phrase}, not {_show(content[field])}; restore it.")


def check_file(stem: str, content: Any, where: str) -> None:
    """Check the content of STEM.json, or a line of STEM.jsonl; a file without a table must hold a mapping."""
    check_fields(content, FILES.get(stem, {}), where, OTHER_VALUES.get(stem, ANY))


def _show(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
