"""Names of the files that commands write."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from unbraid.errors import UsageError

Out = Annotated[
    Path | None, typer.Option("--out", "--output", "-o", help="File or folder to write; its ending is the format.")
]


def choose_output(out: Path | None, folder: Path, name: str, inputs: Sequence[str | Path] = ()) -> Path:
    """Return the path to write to: the one given, or `name` in a folder, numbered if that exists already.

    It may not be one of the `inputs`, which the output would replace.
    """
    if out is not None:
        if out.exists() and any(Path(each).exists() and out.samefile(each) for each in inputs):
            raise UsageError(f"{out} is the input of this command; write to another file.")
        return out
    free, number = folder / name, 2
    while free.exists():
        free = (folder / name).with_stem(f"{Path(name).stem}-{number}")
        number += 1
    return free


def refuse_files_of_runs(out: Path) -> None:
    """Raise if a path is one of the files that make a run or a sweep, which would be lost."""
    from unbraid.schema import FILES

    own = {"config.yaml", "sweep.yaml", *(f"{stem}.json" for stem in FILES), *(f"{stem}.jsonl" for stem in FILES)}
    is_run = any((out.parent / name).exists() for name in ("config.yaml", "sweep.yaml"))
    if is_run and (out.name in own or out.suffix == ".safetensors"):
        raise UsageError(f"{out} is a file of the run itself; write to another file.")
