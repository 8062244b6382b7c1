"""Write `options.md`, a table of the arguments and options of every command, from the commands themselves."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

INTRODUCTION = """# Options of every command

[The command line](command-line.md) explains how commands, settings and exit codes work. `unbraid COMMAND --help` prints
the same as this page, for one command.
"""


def walk(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield every command below a group, with its full name."""
    children = getattr(command, "commands", None)
    if children is None:
        yield name, command
        return
    for part, child in children.items():
        if not child.hidden:
            yield from walk(child, f"{name} {part}")


def describe_parameter(parameter: Any) -> str:
    """Return the row of an argument or an option."""
    value = parameter.metavar or parameter.name.upper()
    if parameter.opts[0].startswith("-"):
        names = ", ".join(f"`{name}`" for name in [*parameter.opts, *parameter.secondary_opts])
        shown = names if parameter.is_flag else f"{names} `{value}`"
    else:
        shown = f"`{value}{'…' if parameter.nargs == -1 else ''}`"
    default = parameter.default
    plain = default is not None and not callable(default) and default not in (False, (), [], "")
    text = re.sub(r"\s+", " ", parameter.help or "").replace("|", "\\|")
    return f"| {shown} | {f'`{default}`' if plain else ''} | {text} |"


def describe_command(name: str, command: Any) -> str:
    """Return the section of a command: its first sentence, its parameters, its examples."""
    first = (command.help or "").partition("\n\n")[0].replace("\n", " ").strip()
    rows = [describe_parameter(each) for each in command.params if not getattr(each, "hidden", False)]
    table = ["| argument or option | default | meaning |", "|---|---|---|", *rows] if rows else []
    examples = re.sub(r"^Examples?:\s*", "", (command.epilog or "").strip())
    block = ["```shell", *re.split(r"\s+·\s+", examples), "```"] if examples else []
    return "\n".join([f"## {name}", "", first, "", *block, "", *table, ""])


def write_tables(path: Path) -> None:
    """Write the page of all commands."""
    from unbraid.cli import app

    commands = walk(typer.main.get_command(app), "unbraid")
    path.write_text(INTRODUCTION + "\n" + "\n".join(describe_command(*each) for each in commands), encoding="utf-8")


def setup(app: Any) -> dict[str, bool]:
    app.connect("builder-inited", lambda app: write_tables(Path(app.srcdir) / "options.md"))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
