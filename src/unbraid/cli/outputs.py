"""Names of the files that commands write."""

from pathlib import Path
from typing import Annotated

import typer

Out = Annotated[
    Path | None, typer.Option("--out", "--output", "-o", help="File or folder to write; its ending is the format.")
]


def choose_output(out: Path | None, folder: Path, name: str) -> Path:
    """Return the path to write to: the one given, or `name` in a folder, numbered if that exists already."""
    if out is not None:
        return out
    free, number = folder / name, 2
    while free.exists():
        free = (folder / name).with_stem(f"{Path(name).stem}-{number}")
        number += 1
    return free
