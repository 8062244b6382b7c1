"""unbraid: learn, measure and explore disentangled representations.

Public names are resolved on first use, so that importing the package and `unbraid --help` do not import torch.
"""

import importlib
from typing import Any

from unbraid._version import __version__

_MODULE_OF_NAME = {
    "train": "unbraid.api",
    "load": "unbraid.run",
    "refine": "unbraid.api",
    "Run": "unbraid.run",
    "reproduce": "unbraid.papers",
    "sweep": "unbraid.sweeps",
    "Sweep": "unbraid.sweeps",
    "Score": "unbraid.metrics",
    "FactorDataset": "unbraid.data",
    "Factor": "unbraid.data",
    "objective": "unbraid.methods",
    "preset": "unbraid.methods",
    "encoder": "unbraid.networks",
    "decoder": "unbraid.networks",
    "refiner": "unbraid.networks",
    "dataset": "unbraid.data",
    "metric": "unbraid.metrics",
    "Terms": "unbraid.types",
    "Weight": "unbraid.types",
    "UnbraidError": "unbraid.errors",
}
_MODULES = ("data", "metrics", "methods", "objectives", "networks", "latents", "density", "report")

__all__ = ["__version__", *_MODULE_OF_NAME, *_MODULES]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"unbraid.{name}")
    if name in _MODULE_OF_NAME:
        return getattr(importlib.import_module(_MODULE_OF_NAME[name]), name)
    raise AttributeError(f"module 'unbraid' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(__all__)
