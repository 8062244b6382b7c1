"""Where a run was made: versions, machine, device. Facts for the reader; nothing depends on them."""

import platform
import sys
from typing import Any

import numpy
import torch

from unbraid._version import __version__


def environment(device: torch.device) -> dict[str, Any]:
    """Facts for environment.json."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    return {
        "unbraid": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "platform": platform.platform(),
        "device": device.type,
        "device_name": name,
        "threads": torch.get_num_threads(),
        "command": " ".join(["unbraid", *sys.argv[1:]]) if sys.argv[0].endswith("unbraid") else "",
    }


def choose_device(name: str) -> torch.device:
    """`auto`, `cpu`, `cuda`, `cuda:1`, `mps` -> a device that exists."""
    from unbraid.errors import UsageError

    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps") if torch.backends.mps.is_available() else torch.device("cpu")
    kind = name.partition(":")[0]
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if kind not in available:
        raise UsageError(f"Unknown device '{name}'; choose auto, cpu, cuda or mps.")
    if not available[kind]:
        raise UsageError(f"Device '{name}' is not available here; use --device cpu.")
    return torch.device(name)
