"""Trains one run in children that are killed at random moments, and prints where each of them had started.

Run by test_kill.py in a process of its own: it imports the library once and forks before any computation, so that a
child starts at once. Usage: killed.py FOLDER SEED
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

from unbraid.config import Choice
from unbraid.data import load
from unbraid.store import RunFolder
from unbraid.training import Cadence, GroupFolders, configure, train_group

STEPS, EVERY, KILLS = 160, 8, 10
SETTINGS = {"network": "mlp", "encoder.hidden": (384, 384), "z": 3, "batch": 32, "steps": STEPS}


def attempt(path: Path) -> int:
    """Fork a child that trains into `path`, from its newest checkpoint if there is one."""
    child = os.fork()
    if child == 0:
        dataset = load("sprites-small")
        config = configure("beta-tcvae", Choice("sprites-small", {}), dataset, SETTINGS)
        folder = RunFolder.create(path, config)
        train_group(GroupFolders(folder, [folder], Cadence(log_steps=1, checkpoint_steps=EVERY)), dataset)
        os._exit(0)
    return child


def started_from(path: Path) -> int:
    checkpoints = RunFolder(path).checkpoints()
    return int(checkpoints[-1].stem.split("-")[1]) if checkpoints else 0


def wait_for(condition, child: int) -> None:
    """Poll until the child has come so far."""
    deadline = time.monotonic() + 60
    while not condition():
        if time.monotonic() > deadline or os.waitpid(child, os.WNOHANG)[0]:
            raise TimeoutError("the child ended or hung before the moment at which it was to be killed")
        time.sleep(0.0005)


def kill(child: int, path: Path, moment: float, in_write: bool) -> bool:
    """Kill a child once it has trained `moment` steps; returns whether a checkpoint was being written just then."""
    history = path / "history.jsonl"
    wait_for(lambda: history.exists() and history.read_bytes().count(b"\n") >= int(moment), child)
    if in_write:
        wait_for(lambda: list((path / "checkpoints").glob(".*.part")), child)
    else:
        time.sleep((moment % 1) * 0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return bool(list((path / "checkpoints").glob(".*.part")))


def main(folder: Path, seed: int) -> None:
    _, status = os.waitpid(attempt(folder / "whole"), 0)
    chance = random.Random(seed)
    moments = sorted(chance.uniform(3, STEPS - 25) for _ in range(KILLS))
    path, starts, inside = folder / "broken", [], 0
    for number, moment in enumerate(moments):
        starts.append(started_from(path))
        inside += kill(attempt(path), path, moment, in_write=number % 3 == 1)
    finished_early = (path / "model.safetensors").exists()
    _, last = os.waitpid(attempt(path), 0)
    print(json.dumps({"starts": starts, "inside": inside, "early": finished_early, "status": [status, last]}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
