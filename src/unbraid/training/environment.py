"""The environment of a run (versions, machine, device), and the choice of its device."""

import platform
import shlex
from typing import Any

import numpy
import torch

from unbraid._version import __version__
from unbraid.errors import UsageError
from unbraid.invocation import choose_wording, list_command_words
from unbraid.printable import shorten
from unbraid.training.distributed import read_launcher


def describe_environment(device: torch.device) -> dict[str, Any]:
    """Return the facts of environment.json, which nothing depends on."""
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
        "command": shlex.join(list_command_words()),
    }


def describe_continuation() -> str:
    """Return how to continue what this process is doing, with the command to type if it runs one."""
    words = [word for word in list_command_words() if word != "--fresh"]
    if not words:
        return "the same call continues"
    if not {"train", "refine"}.isdisjoint(words) and "--resume" not in words:
        words.append("--resume")
    if read_launcher().size > 1:
        return "the same command of torchrun with --resume continues"
    return f"continue with: {shlex.join(words)}"


def choose_device(name: str | torch.device) -> torch.device:
    """Return the device `cpu`, `cuda`, `cuda:1`, `mps` or `auto` (CUDA if there is one, else the CPU).

    Under torchrun each process gets its own GPU.
    """
    if not isinstance(name, (str, torch.device)):
        raise UsageError(f"A device is a name such as cpu or cuda:1, or a torch.device, not {shorten(name)}.")
    name = str(name)
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
        if read_launcher().size == 1:
            return torch.device(name)
    if name == "cuda" and read_launcher().size > 1:
        if torch.cuda.device_count() < read_launcher().local_size:
            raise UsageError(
                f"{read_launcher().local_size} processes cannot each have one of {torch.cuda.device_count()} GPUs; "
                "start one process per GPU."
            )
        name = f"cuda:{read_launcher().local_rank}"
    kind = name.partition(":")[0]
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if kind not in available:
        raise UsageError(f"Unknown device '{name}'; choose auto, cpu, cuda or mps.")
    if not available[kind]:
        use = choose_wording("--device cpu", "device='cpu'")
        raise UsageError(f"Device '{name}' is not available here; use {use}.")
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        raise UsageError(f"Device '{name}' cannot be used: {str(error).splitlines()[0]}") from error
