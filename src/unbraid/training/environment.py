"""Where a run was made: versions, machine, device. Facts for the reader; nothing depends on them."""

import platform
import shlex
import sys
from pathlib import Path
from typing import Any

import numpy
import torch

from unbraid._version import __version__
from unbraid.errors import UsageError
from unbraid.training.distributed import read_launcher


def describe_environment(device: torch.device) -> dict[str, Any]:
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
        "command": _command(),
    }


def _command() -> str:
    """The command line, where there was one."""
    ours = Path(sys.argv[0]).stem in ("unbraid", "__main__")
    return shlex.join(["unbraid", *sys.argv[1:]]) if ours else ""


def choose_device(name: str) -> torch.device:
    """`auto` (CUDA where there is one, else the CPU), `cpu`, `cuda`, `cuda:1`, `mps` -> a device that exists.

    Of several processes each takes a GPU of its own.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
        if read_launcher().size == 1:
            return torch.device(name)
    if name == "cuda" and read_launcher().size > 1:
        if torch.cuda.device_count() < read_launcher().local_size:
            raise UsageError(
                f"{read_launcher().local_size} processes cannot each have one of {torch.cuda.device_count()} GPUs; "
                "start as many as there are."
            )
        name = f"cuda:{read_launcher().local_rank}"
    kind = name.partition(":")[0]
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if kind not in available:
        raise UsageError(f"Unknown device '{name}'; choose auto, cpu, cuda or mps.")
    if not available[kind]:
        raise UsageError(f"Device '{name}' is not available here; use --device cpu.")
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        raise UsageError(f"Device '{name}' cannot be used: {str(error).splitlines()[0]}") from error
