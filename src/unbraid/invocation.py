"""How this process was started: by an unbraid command, or by a program of the user's."""

import sys
from pathlib import Path


def list_command_words() -> list[str]:
    """Return the words of the unbraid command that this process runs; none if it is another program."""
    program = Path(sys.argv[0])
    by_command = program.stem == "unbraid" or program.parts[-2:] == ("unbraid", "__main__.py")
    return ["unbraid", *sys.argv[1:]] if by_command else []


def choose_wording(command: str, python: str) -> str:
    """Return what a message should say to do: an option for a command, an argument for a program in Python.

    >>> f"choose another name, or {choose_wording('--fresh', 'fresh=True')}"
    'choose another name, or fresh=True'
    """
    return command if list_command_words() else python
