"""The command-line application, completion, and the arguments and files that several commands have."""

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from unbraid.atomic import check_replaceable
from unbraid.cli.early_checks import check_run
from unbraid.cli.source_names import OBJECTIVES, registered_names
from unbraid.errors import RunError, UsageError

INTERRUPTED = 130
"""Exit code after Ctrl-C or SIGTERM."""

SECTIONS = {
    "Train": ("demo", "advise", "train", "sweep", "refine"),
    "Measure and look": ("evaluate", "compare", "report", "explore", "traverse"),
    "Use a run": ("encode", "decode", "reconstruct", "sample", "complete"),
    "Share": ("export", "push", "pull"),
    "Find": ("runs", "list", "show", "data", "reproduce"),
}
"""Commands in the order of the help, by what they are for; a command in no section comes last."""


class GroupedCommands(TyperGroup):
    """The commands of the help in sections."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        known = {name: command for name in self.list_commands(ctx) if (command := self.get_command(ctx, name))}
        others = tuple(name for name in known if not any(name in names for names in SECTIONS.values()))
        width = formatter.width - 6 - max(map(len, known))
        for title, names in {**SECTIONS, "Other": others}.items():
            rows = [(name, _summarise(known[name].help or "", width)) for name in names if name in known]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


def _summarise(text: str, width: int) -> str:
    """Return as many clauses of a text's first sentence as fit; a list that does not fit is left out."""
    sentence = summary = " ".join(text.split("\n\n")[0].split()).removesuffix(".")
    while len(summary) > width and (end := max(map(summary.rfind, (", ", "; ", ": ")))) > 0:
        summary = summary[:end]
    if summary != sentence:
        summary = summary.split(": ")[0].split(" (")[0]
    return summary


app = typer.Typer(
    name="unbraid",
    cls=GroupedCommands,
    help="Learn, measure and explore disentangled representations.",
    epilog="First steps:  unbraid explore demo  ·  unbraid advise my/folder  ·  unbraid train beta-tcvae data=FOLDER",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
data_app = typer.Typer(help="List, fetch, convert and check data sets.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(data_app, name="data")


def complete(package: str, decorators: str) -> Callable[[str], list[str]]:
    """Return the completion of a registered name."""
    return lambda incomplete: [n for n in registered_names(package, decorators) if n.startswith(incomplete)]


def check_recipe(recipe: str) -> str:
    """Raise if a setting is where the recipe should be."""
    if "=" in recipe:
        raise UsageError(f"The recipe comes first, as in: beta-tcvae {recipe} (unbraid list objectives lists all).")
    return recipe


def _check_run(run: Path) -> Path:
    check_run(run)
    return run


Recipe = Annotated[
    str,
    typer.Argument(help="Objective to train.", autocompletion=complete(*OBJECTIVES), callback=check_recipe),
]
RecipeUnlessConfig = Annotated[
    str | None,
    typer.Argument(
        metavar="RECIPE", help="Objective to train; left out with --config.", autocompletion=complete(*OBJECTIVES)
    ),
]
ConfigFile = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="Train the config of a run, runs/NAME/config.yaml, once more."),
]
Overrides = Annotated[
    list[str] | None, typer.Argument(help="Settings, as beta=6 data=sprites network=mlp-chen seed=0.")
]
StageSettings = Annotated[list[str] | None, typer.Argument(help="Settings, as z=2 steps=1500 lr=1e-3.")]
DataSettings = Annotated[list[str] | None, typer.Argument(help="Settings of the data set, as size=64 variant=real.")]
RunPath = Annotated[Path, typer.Argument(help="Folder of a run.", callback=_check_run)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs instead of a table.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")]
Root = Annotated[Path, typer.Option(help="Folder that holds the runs.")]
Name = Annotated[str | None, typer.Option(help="Folder name; default: a hash of all settings.")]
Resume = Annotated[bool, typer.Option("--resume", help="Continue an unfinished run of the same settings.")]
Fresh = Annotated[bool, typer.Option("--fresh", help="Remove a run of the same name and start again.")]
CheckpointSteps = Annotated[int | None, typer.Option(help="Steps between two checkpoints; default: one per minute.")]
LogSteps = Annotated[int | None, typer.Option(help="Steps between two history lines.")]
Track = Annotated[
    list[str] | None, typer.Option(help="Tracker of the history: tensorboard, wandb or mlflow; repeat for more.")
]


def leads() -> bool:
    """Return whether this process prints: not if torchrun gave it another rank than 0."""
    if "MASTER_ADDR" not in os.environ:
        return True
    numbers = [os.environ.get(name, "").strip() for name in ("RANK", "WORLD_SIZE")]
    known = all(re.fullmatch(r"[0-9]{1,9}", number) for number in numbers)
    return not (known and 0 < int(numbers[0]) < int(numbers[1]))


Out = Annotated[
    Path | None, typer.Option("--out", "--output", "-o", help="File or folder to write; its ending is the format.")
]


def choose_output(out: Path | None, folder: Path, name: str, inputs: Sequence[str | Path] = ()) -> Path:
    """Return the path to write to: the one given, or `name` in a folder, numbered if that exists already.

    It may not be one of the `inputs`, which the output would replace. Raise if the folder cannot be written.
    """
    if out is not None:
        if out.exists() and any(Path(each).exists() and out.samefile(each) for each in inputs):
            raise UsageError(f"{out} is the input of this command; write to another file.")
        return out
    check_default_folder(folder, out)
    free, number = folder / name, 2
    while free.exists():
        free = (folder / name).with_stem(f"{Path(name).stem}-{number}")
        number += 1
    return free


def check_default_folder(folder: Path, out: Path | None) -> None:
    """Raise if a command writes to a folder, since it has no --out, and the folder cannot be written."""
    if out is None and folder.is_dir() and not os.access(folder, os.W_OK):
        raise RunError(f"{folder} cannot be written; write elsewhere with --out.")


def check_page(out: Path, example: str) -> None:
    """Raise unless a page can be written to a path; `example` is a name of such a page."""
    refuse_files_of_runs(out)
    if out.is_dir():
        raise UsageError(f"--out {out} is a folder; name a file in it, such as {example}.")
    check_replaceable(out)


def refuse_files_of_runs(out: Path) -> None:
    """Raise if a path is one of the files that make a run or a sweep, which would be lost."""
    from unbraid.schema import FILES

    own = {"config.yaml", "sweep.yaml", *(f"{stem}.json" for stem in FILES), *(f"{stem}.jsonl" for stem in FILES)}
    is_run = any((out.parent / name).exists() for name in ("config.yaml", "sweep.yaml"))
    if is_run and (out.name in own or out.suffix == ".safetensors"):
        raise UsageError(f"{out} is a file of the run itself; write to another file.")
