"""The demo's finished run, which is part of the package.

It was trained with the settings of `unbraid demo` and seed 0, but for its encoder: two layers of 64 units instead of
256, so that the run has less than 300 kB. (That encoder is no default: seeds 0 and 1 end at a histogram MIG of .83,
seed 2 at .29.)

Its files are copied to the user's cache when it is first opened, because a run folder is written to: scores are added,
pages are made.
"""

import hashlib
import shutil
from importlib import resources
from pathlib import Path

from unbraid.data.base import data_home
from unbraid.names import DEMO

FILES = (
    "config.yaml",
    "data.json",
    "environment.json",
    "history.jsonl",
    "model.safetensors",
    "scores.jsonl",
    "status.json",
)


def open_demo() -> Path:
    """Return the folder of the demo's run in the user's cache."""
    packaged = resources.files("unbraid.explore").joinpath("demo_run")
    content = hashlib.sha256(packaged.joinpath("model.safetensors").read_bytes()).hexdigest()[:12]
    folder = data_home() / "demo-run" / content / DEMO
    if not (folder / FILES[-1]).exists():
        folder.mkdir(parents=True, exist_ok=True)
        for name in FILES:
            with resources.as_file(packaged.joinpath(name)) as file:
                shutil.copyfile(file, folder / name)
    return folder


def is_demo(path: str | Path) -> bool:
    """Return True if a path means the packaged run: its name, and no folder of that name here."""
    return str(path) == DEMO and not Path(path).exists()
