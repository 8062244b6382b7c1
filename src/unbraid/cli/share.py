"""The commands export, push and pull."""

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from unbraid.cli.options import AsJson, RunPath, app, check_default_folder
from unbraid.cli.printing import print_json
from unbraid.cli.streams import echo
from unbraid.errors import UsageError


@app.command(epilog="Examples:  unbraid export runs/demo --onnx  ·  unbraid export runs/demo --torch --out model")
def export(
    run: RunPath,
    onnx: Annotated[bool, typer.Option("--onnx", help="Write encoder.onnx and decoder.onnx.")] = False,
    torch: Annotated[bool, typer.Option("--torch", help="Write encoder.pt2 and decoder.pt2 (torch.export).")] = False,
    output: Annotated[
        Path | None, typer.Option("--out", "--output", "-o", help="Folder to write to; default: the run's folder.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write a run's encoder and decoder as files that other programs run, for any number of rows.

    The encoder takes images in [0, 1] and returns codes, the decoder takes codes and returns expected images.
    """
    from unbraid.open_run import load

    formats = [name for name, chosen in {"onnx": onnx, "torch": torch}.items() if chosen]
    if not formats:
        raise UsageError("Choose a format: --onnx, --torch, or both.")
    opened: Any = load(run, device="cpu")
    check_default_folder(opened.path, output)
    files = [str(path) for name in formats for path in opened.export(output, format=name).values()]
    print_json({"files": files}) if as_json else echo("\n".join(files))


@app.command(epilog="Example:  unbraid push runs/demo owner/sprites")
def push(
    run: RunPath,
    repository: Annotated[str, typer.Argument(metavar="OWNER/NAME", help="Repository on the Hugging Face hub.")],
    private: Annotated[bool, typer.Option("--private", help="Make a new repository private.")] = False,
    as_json: AsJson = False,
) -> None:
    """Upload a finished run with a model card to the Hugging Face hub.

    It needs a token: run `hf auth login`, or set HF_TOKEN. config.yaml and data.json are uploaded as they are, also if
    they name a folder of yours.
    """
    from unbraid.open_run import load

    address = load(run, device="cpu").push(repository, private=private)
    print_json({"address": address}) if as_json else echo(address)


@app.command(epilog="Examples:  unbraid pull owner/sprites  ·  unbraid pull owner/sprites@main --root runs")
def pull(
    repository: Annotated[
        str, typer.Argument(metavar="OWNER/NAME[@REVISION]", help="Repository on the Hugging Face hub.")
    ],
    root: Annotated[Path, typer.Option(help="Folder that holds the runs.")] = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Download a run from the Hugging Face hub; only text and weights are taken, and nothing in it is run."""
    from unbraid.open_run import pull as pull_run

    run = pull_run(repository, root=root, device="cpu")
    following = f"{run.path}\nNext: unbraid explore {shlex.quote(str(run.path))}"
    print_json({"run": str(run.path), "id": run.config.run_id}) if as_json else echo(following)
