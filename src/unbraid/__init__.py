"""unbraid: learn, measure and explore disentangled representations.

Public names are resolved on first use, so that importing the package and `unbraid --help` do not import torch.
"""

import importlib
from typing import Any

from unbraid._version import __version__

_MODULE_OF_NAME = {
    name: f"unbraid.{module}"
    for module, names in {
        "api": ("train", "refine"),
        "open_run": ("load", "export", "pull"),
        "run": ("Run",),
        "papers": ("reproduce",),
        "sweeps": ("sweep", "Sweep"),
        "metrics": ("Score", "metric"),
        "data": ("FactorDataset", "Factor", "dataset"),
        "methods": ("objective", "preset"),
        "networks": ("encoder", "decoder", "refiner"),
        "types": ("Terms", "Weight"),
        "errors": ("UnbraidError",),
    }.items()
    for name in names
}
_MODULES = ("data", "metrics", "methods", "objectives", "networks", "latents", "density", "report", "sklearn")

__all__ = ["__version__", *_MODULE_OF_NAME, *_MODULES]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"unbraid.{name}")
    if name in _MODULE_OF_NAME:
        return getattr(importlib.import_module(_MODULE_OF_NAME[name]), name)
    raise AttributeError(f"module 'unbraid' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(__all__)
