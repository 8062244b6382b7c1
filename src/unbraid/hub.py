"""Runs on the Hugging Face hub: push a run's folder with a model card, and pull one.

A pulled folder is a stranger's. Only text (YAML, JSON, Markdown) and safetensors are taken, only from the top of the
repository, and nothing is unpickled or run.
"""

import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from unbraid._version import __version__
from unbraid.data.base import data_home
from unbraid.errors import RunError, UnbraidError, UsageError
from unbraid.extras import import_extra
from unbraid.metrics.score import Score
from unbraid.names import HUB
from unbraid.replaced_runs import find_replaced, remove_folder
from unbraid.store import RunFolder

CARD = "README.md"
SOURCE = "hub"
"""Name of the JSON file that says from which commit a folder was pulled."""

PULLED = re.compile(r"\w[\w-]*\.(yaml|json|jsonl|safetensors|md)")
PUSHED = re.compile(r"\w[\w-]*\.(yaml|json|jsonl|safetensors|html|png)")
MAX_SCORES_ON_CARD = 12


def push_folder(folder: RunFolder, repository: str, scores: Sequence[Score], private: bool = False) -> str:
    """Upload the files of a finished run in one commit, and return the address of the repository.

    The card is the folder's README.md if it has one, and is otherwise made from the run.
    """
    _check_name(repository)
    if not folder.finished:
        raise RunError(f"{folder.path} is not finished; only finished runs can be pushed.")
    hub = _import_hub()
    own = folder.path / CARD
    card = own.read_bytes() if own.exists() else write_model_card(folder, repository, scores).encode()
    files: dict[str, Any] = {path.name: str(path) for path in _list_files(folder.path)}
    with _explain(f"{folder.path} cannot be pushed to {repository}"):
        api = hub.HfApi(endpoint=_endpoint())
        api.create_repo(repository, private=private, exist_ok=True)
        added = [hub.CommitOperationAdd(name, content) for name, content in {**files, CARD: card}.items()]
        api.create_commit(repository, added, commit_message=f"Add {folder.config.run_id}")
        return f"{api.endpoint}/{repository}"


def pull_folder(name: str, root: str | Path = "runs", replace: bool = False) -> RunFolder:
    """Download a run `owner/name`, or `owner/name@revision`, into `root / name`, and return its folder.

    A folder that holds the same commit is returned as it is. Another one is an error unless `replace` is set.
    """
    repository, _, revision = name.removeprefix(HUB).partition("@")
    _check_name(repository)
    target = Path(root) / repository.partition("/")[2]
    hub = _import_hub()
    with _explain(f"{repository} cannot be pulled"):
        api = hub.HfApi(endpoint=_endpoint())
        info = api.model_info(repository, revision=revision or None)
        source = {"repository": repository, "commit": info.sha}
        if target.exists() and source.items() <= RunFolder(target).read_json(SOURCE).items():
            return RunFolder.open(target)
        if target.exists() and not replace:
            raise UsageError(f"{target} exists already; choose another folder with --root, or remove it.")
        names = [file.rfilename for file in info.siblings or () if PULLED.fullmatch(file.rfilename)]
        if "config.yaml" not in names or "model.safetensors" not in names:
            raise RunError(f"{repository} is not a finished run: it has no config.yaml or no model.safetensors.")
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".pull-") as parent:
            made = Path(parent) / target.name
            made.mkdir()
            for each in names:
                shutil.copyfile(api.hf_hub_download(repository, each, revision=info.sha), made / each)
            folder = RunFolder.open(made)
            folder.write_json(SOURCE, source)
            _ = folder.config, folder.check_unchanged()
            RunFolder.set_aside(target)
            made.rename(target)
            remove_folder(find_replaced(target))
    return RunFolder.open(target)


def open_from_hub(address: str) -> RunFolder:
    """Return the folder of `hf://owner/name`, downloaded once per commit; without a network, the last download."""
    repository = address.removeprefix(HUB).partition("@")[0]
    _check_name(repository)
    root = data_home() / "hub" / repository.partition("/")[0]
    try:
        return pull_folder(address, root, replace=True)
    except RunError:
        kept = root / repository.partition("/")[2]
        if "@" in address or not RunFolder(kept).finished:
            raise
        return RunFolder.open(kept)


def _list_files(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if PUSHED.fullmatch(path.name) and path.is_file() and path.stem != SOURCE:
            yield path


def _endpoint() -> str | None:
    return os.environ.get("HF_ENDPOINT")


def _import_hub() -> Any:
    return import_extra("huggingface_hub", "hub", "The hub")


def _check_name(repository: str) -> None:
    if not re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", repository):
        raise UsageError(f"A run on the hub is named owner/name, not '{repository}'.")


@contextmanager
def _explain(what: str) -> Iterator[None]:
    """Turn an error of the hub's library or of the network into one sentence."""
    try:
        yield
    except UnbraidError:
        raise
    except Exception as error:
        reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise RunError(f"{what}: {reason.rstrip('.')}.") from error


def write_model_card(folder: RunFolder, repository: str, scores: Sequence[Score]) -> str:
    """Return the text of a card: what was trained on what, how it scored, how to use it, every setting."""
    config, data, status = folder.config, folder.read_json("data"), folder.read_json("status")
    front = {"library_name": "unbraid", "tags": ["unbraid", "disentanglement", config.objective.name]}
    newest = list({score.name: score for score in scores}.values())[:MAX_SCORES_ON_CARD]
    parts = [
        f"---\n{yaml.safe_dump(front, sort_keys=False)}---",
        f"# {repository.partition('/')[2]}",
        f"`{config.objective.name}` on `{config.data.name}`, {status.get('step', 0):,} steps of batch "
        f"{config.training.batch}, trained with [unbraid](https://pypi.org/project/unbraid/) {__version__}.",
        f'```python\nimport unbraid as ub\n\nrun = ub.load("hf://{repository}")\ncodes = run.encode(images)\n'
        "pictures = run.decode(codes)\n```",
        _describe_data(data),
        "## Scores\n\n" + _list_scores(newest),
        f"## Settings\n\n```yaml\n{config.to_yaml()}```",
    ]
    return "\n\n".join(parts) + "\n"


def _describe_data(data: Mapping[str, Any]) -> str:
    factors = ", ".join(f"{name} ({size})" for name, size in data.get("factors", {}).items())
    rows = f"{data.get('images', 0):,} rows of shape {data.get('shape')}"
    held_out = data.get("held_out", 0)
    kept = f"{held_out:,} rows were held out." if held_out else "No row was held out."
    return f"## Data\n\n{rows}, content `{data.get('content', '')[:12]}`. {kept}" + (
        f" Factors: {factors}." if factors else ""
    )


def _list_scores(scores: Sequence[Score]) -> str:
    if not scores:
        return "Not scored yet."
    lines = ["| score | value | 95% interval | samples |", "|---|---|---|---|"]
    for score in scores:
        interval = "" if score.interval is None else f"{score.interval[0]:.4g} .. {score.interval[1]:.4g}"
        lines.append(f"| {score.name} | {score.value:.4g} | {interval} | {score.samples:,} |")
    return "\n".join(lines)
