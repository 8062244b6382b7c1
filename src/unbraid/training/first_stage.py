"""The run that a second stage refines: its description in the config, its verification, and its weights.

A config names its first stage by `content`, a hash of weights and settings. When a run begins, the weights of its first
stage are copied into its folder as parent.safetensors; after that the first run is not needed any more. The copy is
removed once the run has final weights, which contain those of the first stage.
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
from unbraid.models.multimodal import MODALITIES
from unbraid.store import RunFolder, advise_other_name, content_hash, load_tensors, select_prefix
from unbraid.types import Shape


def describe_first_stage(folder: RunFolder) -> dict[str, Any]:
    """Return the entry `parent` of a config that refines this run, or raise if it cannot be refined."""
    status = folder.read_json("status")
    state = status.get("state", "not begun")
    if state != "finished":
        raise RunError(f"{folder.path} is {state}, and only a finished run can be refined; train it to its end first.")
    if not folder.finished:
        raise RunError(f"{folder.path} lacks {folder.model_path.name}, its weights; restore it, or train it again.")
    if "content" not in status:
        raise RunError(
            f"{folder.path}: status.json does not contain the hash of the final weights (content), so they cannot be "
            "verified; restore the file, or train the run again."
        )
    folder.check_unchanged()
    if "shape" not in folder.read_json("data"):
        raise RunError(f"{folder.path} has no data.json with the shape of its observations; restore it, or retrain.")
    config = folder.config
    if config.likelihood.name == MODALITIES:
        raise UsageError(
            f"{folder.path} has several modalities, and a second stage refines a single one; train a run on one "
            "modality and refine that."
        )
    for side in ("encoder", "decoder"):
        if getattr(config, side).name == CUSTOM:
            raise UsageError(
                f"{folder.path} has your own {side}, which its files do not contain; only runs with registered "
                "networks can be refined."
            )
    return {"run": config.run_id, "content": status["content"], "config": folder.written_config}


def check_data_of_first_stage(folder: RunFolder, dataset: FactorDataset) -> None:
    """Raise if a run was trained on other data."""
    facts = folder.read_json("data")
    if "shape" in facts and tuple(facts["shape"]) != tuple(dataset.shape):
        raise UsageError(
            f"{folder.path} takes {_describe_shape(tuple(facts['shape']))}, and {dataset.name} has "
            f"{_describe_shape(dataset.shape)}; refine a run with the data that it was trained on."
        )
    if facts.get("content") != dataset.content_hash():
        raise UsageError(
            f"{folder.path} was trained on other data than {dataset.name}: the content hashes differ; refine a run "
            "with the data that it was trained on."
        )


def check_same_first_stage(path: Path, config: Config) -> None:
    """Raise if the run in `path` was begun on a first stage whose files have changed since."""
    if config.parent is None or not (path / "config.yaml").exists():
        return
    before = RunFolder(path).config.parent
    if before is not None and before["run"] == config.parent["run"] and before["content"] != config.parent["content"]:
        raise RunError(f"The files of {before['run']} have changed since {path} was begun; {advise_other_name()}.")


def _describe_shape(shape: Shape) -> str:
    if len(shape) != 3:
        return f"observations of shape {tuple(shape)}"
    return f"{shape[1]}x{shape[2]} images with {shape[0]} channel{'s' * (shape[0] != 1)}"


def copy_first_stage_weights(first: RunFolder, folder: RunFolder) -> None:
    """Copy the weights of a first stage into the folder of a run, unless the run has or no longer needs them."""
    if not folder.finished and not folder.parent_path.exists():
        with atomic.replacing(folder.parent_path) as part:
            shutil.copyfile(first.model_path, part)


def load_first_stages(folders: Sequence[RunFolder], configs: Sequence[Config]) -> list[dict[str, Any]]:
    """Return the copied weights of each run's first stage, an empty mapping for a run without one."""
    pairs = zip(folders, configs, strict=True)
    return [{} if config.parent is None else _load_copy(folder, config.parent) for folder, config in pairs]


def _load_copy(folder: RunFolder, parent: Mapping[str, Any]) -> dict[str, Any]:
    if not folder.parent_path.exists():
        raise RunError(f"{folder.path} lacks the weights of {parent['run']}, which it refines: use unbraid refine.")
    if content_hash(folder.parent_path, parent["config"]) != parent["content"]:
        raise RunError(f"{folder.parent_path} was changed: these are not the weights of {parent['run']}.")
    return load_first_stage_weights(folder.parent_path)


def load_first_stage_weights(path: Path) -> dict[str, Any]:
    """Return the weights of a run's model, without the prefix `model.`."""
    return select_prefix("model.", load_tensors(path)[0])


def load_first_stage(model: nn.Module, weights: Mapping[str, Any], run: str) -> None:
    try:
        model.get_submodule("first").load_state_dict(dict(weights))
    except RuntimeError as error:
        reason = str(error).splitlines()[-1].strip()
        raise RunError(f"The weights of {run} do not fit the model of its config: {reason}") from error
