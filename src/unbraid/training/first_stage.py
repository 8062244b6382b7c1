"""The run that another one refines: what is recorded of it, how it is verified, and how its weights get there.

A config names its parent by content, a hash of weights and settings. When a run is begun, the parent's weights are
copied into its folder; from then on neither the parent nor the place where it lies is needed. They go once the run has
weights of its own, which hold the parent's.
"""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from unbraid import atomic
from unbraid.config import Config
from unbraid.data.factors import FactorDataset
from unbraid.errors import RunError, UsageError
from unbraid.models import CUSTOM
from unbraid.models.multimodal import SECTION
from unbraid.store import RunFolder, content_hash, load_tensors, under
from unbraid.types import Shape


def parent_of(folder: RunFolder) -> dict[str, Any]:
    """What the config of a run says about the run that it refines; a `RunError` for one that cannot be refined."""
    status = folder.read_json("status")
    state = status.get("state", "not begun")
    if state != "finished":
        raise RunError(f"{folder.path} is {state}, and only a finished run can be refined; train it to its end first.")
    if not folder.finished:
        raise RunError(f"{folder.path} lacks {folder.model_path.name}, its weights; bring it back, or train it again.")
    if "content" not in status:
        raise RunError(
            f"status.json of {folder.path} does not say which weights it finished with (content), so that they cannot "
            "be verified; bring the file back, or train the run again."
        )
    folder.refuse_changed()
    if "shape" not in folder.read_json("data"):
        raise RunError(
            f"{folder.path} has no data.json that says which observations it takes; bring it back, or train the run "
            "again."
        )
    config = folder.config
    if config.likelihood.name == SECTION:
        raise UsageError(
            f"{folder.path} has several modalities, and a second stage refines observations of one; train a run on one "
            "of them alone, and refine that."
        )
    for side in ("encoder", "decoder"):
        if getattr(config, side).name == CUSTOM:
            raise UsageError(
                f"{folder.path} has an {side} of your own, which its files do not hold; a run can be refined only if "
                "its networks are registered ones."
            )
    return {"run": config.run_id, "content": status["content"], "config": folder.written_config}


def refuse_other_data(folder: RunFolder, dataset: FactorDataset) -> None:
    """An error if a run was trained on other observations than these."""
    facts = folder.read_json("data")
    if "shape" in facts and tuple(facts["shape"]) != tuple(dataset.shape):
        raise UsageError(
            f"{folder.path} takes {_in_words(tuple(facts['shape']))}, and {dataset.name} has "
            f"{_in_words(dataset.shape)}; refine a run with the data that it was trained on."
        )
    if facts.get("content") != dataset.content_hash():
        raise UsageError(
            f"{folder.path} was trained on other data than {dataset.name}: their content hashes differ; refine a run "
            "with the data that it was trained on."
        )


def refuse_changed(path: Path, config: Config) -> None:
    """An error where a run was begun on a parent whose files have changed since."""
    if config.parent is None or not (path / "config.yaml").exists():
        return
    before = RunFolder(path).config.parent
    if before is not None and before["run"] == config.parent["run"] and before["content"] != config.parent["content"]:
        raise RunError(
            f"The files of {before['run']} have changed since {path} was begun; choose another name, or --fresh."
        )


def _in_words(shape: Shape) -> str:
    if len(shape) != 3:
        return f"observations of shape {tuple(shape)}"
    return f"{shape[1]}x{shape[2]} images with {shape[0]} channel{'s' * (shape[0] != 1)}"


def bring(parent: RunFolder, folder: RunFolder) -> None:
    """Copy a parent's weights into the folder of a run that refines it, unless they are there or not needed."""
    if not folder.finished and not folder.parent_path.exists():
        with atomic.replacing(folder.parent_path) as part:
            shutil.copyfile(parent.model_path, part)


def first_stages(folders: Sequence[RunFolder], configs: Sequence[Config]) -> list[dict[str, Any]]:
    """Weights of each run's first stage, as they were brought; none where a run has no parent."""
    pairs = zip(folders, configs, strict=True)
    return [{} if config.parent is None else _brought(folder, config.parent) for folder, config in pairs]


def _brought(folder: RunFolder, parent: Mapping[str, Any]) -> dict[str, Any]:
    if not folder.parent_path.exists():
        raise RunError(f"{folder.path} lacks the weights of {parent['run']}, which it refines: use unbraid refine.")
    if content_hash(folder.parent_path, parent["config"]) != parent["content"]:
        raise RunError(f"{folder.parent_path} was changed: these are not the weights of {parent['run']}.")
    return under("model.", load_tensors(folder.parent_path)[0])


def put_first(model: nn.Module, tensors: Mapping[str, Any], run: str) -> None:
    """Give a model's first stage its weights."""
    try:
        model.get_submodule("first").load_state_dict(dict(tensors))
    except RuntimeError as error:
        told = str(error).splitlines()[-1].strip()
        raise RunError(f"The weights of {run} do not fit the model of its config: {told}") from error
