"""The model and the data of a run, loaded from its folder."""

import warnings
from pathlib import Path

import torch
from torch import nn

from unbraid.data import load
from unbraid.data.factors import FactorDataset
from unbraid.data.find import GIVEN, find_missing_path
from unbraid.errors import RunError
from unbraid.models import CUSTOM, Model, build
from unbraid.networks.own_modules import hash_code
from unbraid.store import RunFolder, select_prefix
from unbraid.training.modality_config import layout_from_json


def load_dataset(folder: RunFolder, device: torch.device) -> FactorDataset:
    """Load the data of a run by their name and settings."""
    stored = folder.config.data
    if stored.name == GIVEN:
        raise RunError(
            f"{folder.path} was trained on data that were passed in ({stored.settings['source']}, content "
            f"{stored.settings['content'][:12]}…); pass them again: unbraid.load(path, data=…)."
        )
    if find_missing_path(stored) is not None:
        other = "pass the data in Python: unbraid.load(path, data=…)"
        raise RunError(f"{explain_missing_path(folder).rstrip('.')}, or {other}.")
    return load(stored.name, stored.settings, device)


def explain_missing_path(folder: RunFolder, name: str | None = None) -> str:
    """Say from where a missing relative path of a run's data is found, as far as a folder above the run tells.

    `name` is what the run is called, by default its path.
    """
    missing = find_missing_path(folder.config.data) or ""
    above = [each for each in folder.path.resolve().parents if (each / missing).exists()]
    place = f"{above[0]}, where {missing} is" if above else "the folder in which it was trained"
    return (
        f"{name or folder.path} was trained on {missing}, a relative path that does not exist here ({Path.cwd()}); run "
        f"the command from {place}."
    )


def load_model(folder: RunFolder, **modules: nn.Module | None) -> Model:
    """Build the model of a run and load its final weights; `modules` are the networks that were passed in."""
    config = folder.config
    for side, module in modules.items():
        if getattr(config, side).name == CUSTOM and module is None:
            name = getattr(config, side).settings["module"]
            raise RunError(
                f"{folder.path} was trained with your own {side} ({name}); pass it: unbraid.load(path, {side}=…)."
            )
    tensors = select_prefix("model.", folder.load_model())
    shape = folder.read_json("data").get("shape")
    if shape is None:
        raise RunError(f"{folder.path} has no data.json with the shape of its observations; restore it, or retrain.")
    model = build(config, layout_from_json(shape), **modules)
    try:
        model.load_state_dict(tensors)
    except RuntimeError as error:
        reason = str(error).splitlines()[-1].strip()
        raise RunError(f"{folder.model_path} does not fit the model of its config: {reason}") from error
    for side, module in modules.items():
        known = getattr(config, side).settings.get("code")
        if module is not None and known not in (None, hash_code(module)):
            warnings.warn(
                f"Your {side} has other code, another structure or other attributes than the one with which "
                f"{folder.path} was trained, so its codes may differ.",
                stacklevel=2,
            )
    return model


def check_same_data(folder: RunFolder, dataset: FactorDataset) -> None:
    """Raise if a run was trained on other data."""
    known = folder.read_json("data")
    if known.get("content") in (None, dataset.content_hash()):
        return
    rows = known.get("images")
    before = (
        f"{rows:,} rows then, {len(dataset):,} now" if rows not in (None, len(dataset)) else "the content hashes differ"
    )
    raise RunError(
        f"{folder.path} was trained on other data than {dataset.source or dataset.name} holds now ({before}); restore "
        "that data, or train a new run."
    )
