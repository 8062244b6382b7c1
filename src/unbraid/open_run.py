"""Opening runs: from a path, the demo or the Hugging Face hub."""

import os
from pathlib import Path

import torch
from torch import nn

from unbraid.data.find import Data, find_data
from unbraid.explore import is_demo, open_demo
from unbraid.folder_names import to_path
from unbraid.hub import open_from_hub, pull_folder
from unbraid.names import HUB
from unbraid.run import Run
from unbraid.store import RunFolder
from unbraid.training.configure import is_multimodal
from unbraid.training.environment import choose_device
from unbraid.training.origins import say_changed_code


def load(
    path: str | bytes | Path,
    *,
    data: Data | None = None,
    encoder: nn.Module | None = None,
    decoder: nn.Module | None = None,
    device: str | torch.device = "auto",
) -> Run:
    """Open a finished run; the path `demo` opens a run that is part of the package, `hf://owner/name` one on the hub.

    `data`, `encoder` and `decoder` are needed only if the run was trained on data or modules that you passed in.
    """
    path, given = to_path(path, "A run"), os.fsdecode(path) if isinstance(path, bytes) else str(path)
    if given.startswith(HUB):
        folder = open_from_hub(given)
    else:
        folder = RunFolder.open(open_demo() if is_demo(path) else path)
    say_changed_code(folder)
    torch_device = choose_device(device)
    dataset = None
    if data is not None:
        dataset = find_data(data, {}, torch_device, is_multimodal(folder.config.objective.name))[1]
    return Run(folder, dataset=dataset, encoder=encoder, decoder=decoder, device=torch_device)


def pull(name: str, *, root: str | Path = "runs", device: str | torch.device = "auto") -> Run:
    """Download the run `owner/name`, or `owner/name@revision`, from the Hugging Face hub into `root`, and open it."""
    return Run(pull_folder(name, root), device=choose_device(device))


def export(run: Run | str | Path, path: str | Path | None = None, *, format: str = "onnx") -> dict[str, Path]:
    """Write encoder and decoder of a run as ONNX or torch.export files; see `Run.export`."""
    return (run if isinstance(run, Run) else load(run, device="cpu")).export(path, format=format)
