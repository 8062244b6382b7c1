"""Trained classifiers in the user's cache, `UNBRAID_DATA/classifiers`, because they depend on the data and on no model.

A file is named by a hash of whatever decides the weights: data, rows, seed, steps, kind of device and version of torch.
Its header holds a SHA-256 of its tensors. A file that is damaged is trained anew, with a warning.
"""

import hashlib
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from unbraid.data.base import data_home
from unbraid.data.factors import FactorDataset
from unbraid.errors import UnbraidError
from unbraid.metrics.generative.features.base import FeatureNetwork
from unbraid.metrics.generative.features.classifier import NAME, WIDTH, Classifier
from unbraid.tensor_files import checksum, load_tensors, save_tensors

VERSION = 1
"""Raise it whenever `classifier` would train other weights."""

MIN_STEPS = 200
"""Shorter trainings take less time than the search for a file is worth."""


def get_stored(
    key: tuple[Any, ...], steps: int | None, dataset: FactorDataset, train: Callable[[], FeatureNetwork]
) -> FeatureNetwork:
    """Return the classifier that is stored under a key, or train and store it; `steps` of None are many."""
    if steps is not None and steps < MIN_STEPS:
        return train()
    words = json.dumps([VERSION, torch.__version__, *map(str, key)])
    path = data_home() / "classifiers" / f"{hashlib.sha256(words.encode()).hexdigest()[:32]}.safetensors"
    try:
        if path.exists():
            return _load(path, dataset)
    except (UnbraidError, KeyError, ValueError, RuntimeError) as error:
        warnings.warn(f"The stored classifier cannot be used, so it is trained again: {error}", stacklevel=2)
    network = train()
    try:
        _save(path, network)
    except (UnbraidError, OSError) as error:
        warnings.warn(f"The classifier is not stored for other runs: {error}", stacklevel=2)
    return network


def _save(path: Path, network: FeatureNetwork) -> None:
    module = network.module
    assert isinstance(module, Classifier)
    tensors = {name: tensor.detach().cpu() for name, tensor in module.state_dict().items()}
    facts = {"names": module.names, "sizes": [head.out_features for head in module.heads], "details": network.details}
    save_tensors(path, tensors, {"facts": json.dumps(facts), "digest": _digest(json.dumps(facts), tensors)})


def _load(path: Path, dataset: FactorDataset) -> FeatureNetwork:
    tensors, header = load_tensors(path)
    if header["digest"] != _digest(header["facts"], tensors):
        raise ValueError(f"{path} is damaged.")
    facts = json.loads(header["facts"])
    module = Classifier(dataset.shape, facts["sizes"])
    module.load_state_dict(tensors)
    module.names = facts["names"]
    module = module.to(dataset.device).eval().requires_grad_(False)
    return FeatureNetwork(NAME, module, WIDTH, 256, facts["details"])


def _digest(facts: str, tensors: dict[str, Any]) -> str:
    return hashlib.sha256(f"{facts} {checksum(tensors)}".encode()).hexdigest()
