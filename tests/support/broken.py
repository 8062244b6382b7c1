"""Runs commands in forked children that are killed, or whose disk is full, at one file operation after another.

tests/training/test_faults.py runs this in a process of its own: it imports the library once and forks before any
computation, so that a child starts at once. Usage: broken.py kill|full FOLDER COUNT SCENARIO...
"""

import contextlib
import errno
import gc
import io
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import safetensors.torch

import unbraid as ub
from unbraid import folder_check
from unbraid.data import fetch
from unbraid.errors import UnbraidError
from unbraid.store import RunFolder, load_tensors
from unbraid.tensor_files import checksum
from unbraid.training import Cadence

TINY = {"batch": 16, "z": 4, "encoder": "mlp", "decoder": "mlp", "encoder_hidden": (8,), "decoder_hidden": (8,)}
DATA = {"data": "sprites-small", "data_positions": 4, "data_scales": 2}
HOW = {"device": "cpu", "cadence": Cadence(log_steps=5, checkpoint_steps=8)}
KILLED = 99
MISSED = "the command ended before that operation"
CHANGES = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.chmod", "shutil.copyfile")
"""Events of Python's audit hook that change a folder; opening a file to write is another."""


class Fault:
    """Counts the operations that change files below a folder, and fails at one of them; 0 only counts."""

    def __init__(self, kind: str, folder: Path, at: int) -> None:
        self.kind, self.folder, self.at, self.count = kind, str(folder), at, 0
        self.active = True
        sys.addaudithook(self.hook)
        self.write, os.write = os.write, self.write_half
        self.sync, os.fsync = os.fsync, self.sync_or_fail
        self.save, safetensors.torch.save_file = safetensors.torch.save_file, self.save_half

    def fails(self) -> bool:
        """Count an operation, and return whether it is to fail; a full disk stays full."""
        self.count += self.active
        return self.active and self.at > 0 and (self.count == self.at or (self.kind == "full" and self.count > self.at))

    def fail(self) -> None:
        if self.kind == "kill":
            os._exit(KILLED)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def hook(self, event: str, given: tuple) -> None:
        if event == "open":
            path, _, flags = given
            changes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        else:
            path, changes = given[0] if given else None, event in CHANGES
            if self.kind == "full" and event != "os.mkdir":
                changes = False  # a full disk still renames and removes
        if (
            changes
            and isinstance(path, (str, os.PathLike))
            and os.fspath(path).startswith(self.folder)
            and self.fails()
        ):
            self.fail()

    def write_half(self, handle: int, content: bytes) -> int:
        if handle > 2 and self.fails():
            self.write(handle, content[: len(content) // 2])
            self.fail()
        return self.write(handle, content)

    def sync_or_fail(self, handle: int) -> None:
        if self.fails():
            self.fail()
        self.sync(handle)

    def save_half(self, tensors: dict, path: str, facts: dict) -> None:
        fails = self.fails()
        self.active, before = False, self.active
        self.save(tensors, path, facts)
        self.active = before
        if fails:
            os.truncate(path, Path(path).stat().st_size // 2)
            if self.kind == "full":
                reason = "I/O error: No space left on device (os error 28)"
                raise safetensors.SafetensorError(f"Error while serializing: {reason}")
            self.fail()


class Scenario(NamedTuple):
    """A command, what its folder holds before, and the files by which two of its results are compared."""

    run: Callable[[Path], object]
    compared: str
    prepare: Callable[[Path], object] = lambda root: None


def train(root: Path, **settings) -> None:
    ub.train("beta-tcvae", **TINY, **DATA, **HOW, **{"steps": 20, "root": root, "name": "run", **settings})


def prepare_run(root: Path) -> None:
    shutil.copytree(TEMPLATE / "run", root / "run")


def refine(root: Path) -> None:
    settings = {"z": 2, "batch": 16, "steps": 10, "decoder": "mlp", "encoder": "mlp", "encoder_hidden": (8,)}
    ub.refine(root / "run", "code", decoder_hidden=(8,), root=root, name="second", **settings, **HOW)


def sweep(root: Path) -> None:
    settings = {**TINY, **DATA, **HOW, "steps": 12, "seed": range(3), "metrics": ("elbo/closed-form",)}
    ub.sweep("beta-tcvae", root=root, name="sweep", report=False, **settings)


def write_report(root: Path) -> None:
    ub.load(root / "run", device="cpu").report()


def prepare_cars(root: Path) -> None:
    images = np.random.default_rng(0).integers(0, 255, (2, 2, 3, 8, 8, 3))
    np.savez(root / "cars.npz", images=images.astype("uint8"))


def fetch_cars(root: Path) -> None:
    os.environ["UNBRAID_DATA"] = str(root / "data")
    fetch("cars3d", root / "cars.npz")


def run_experiment(root: Path) -> None:
    from unbraid.papers import reproduce

    reproduce("chen2018/figS5", scale="smoke", root=root / "runs", out=root / "results", device="cpu")


SCENARIOS = {
    "train": Scenario(train, "run/model.safetensors"),
    "fresh": Scenario(lambda root: train(root, fresh=True, beta=2.0), "run/model.safetensors", prepare_run),
    "sweep": Scenario(sweep, "sweep/runs/*/model.safetensors"),
    "refine": Scenario(refine, "second/model.safetensors", prepare_run),
    "report": Scenario(write_report, "run/model.safetensors", prepare_run),
    "fetch": Scenario(fetch_cars, "data/*.safetensors", prepare_cars),
    "reproduce": Scenario(run_experiment, "runs/*/*/runs/*/model.safetensors"),
}


def in_child(action: Callable[[], object]) -> tuple[int, str]:
    """Return the exit code of an action in a forked child, and what it printed to stderr."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        os.dup2(writing, 2)
        code = 1
        try:
            code = int(action() or 0)
        except UnbraidError as error:
            os.write(2, f"error: {error}\n".encode())
        except BaseException as error:
            os.write(2, f"Traceback {type(error).__name__}: {error}\n".encode())
            code = 70
        os._exit(code)
    os.close(writing)
    with os.fdopen(reading, "rb") as stream:
        told = stream.read().decode(errors="replace")
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), told


def digest(root: Path, pattern: str) -> dict[str, str]:
    """Return a hash of all tensors of each file; the facts in its header may be in any order."""
    return {str(path.relative_to(root)): checksum(load_tensors(path)[0]) for path in sorted(root.glob(pattern))}


def count_operations(kind: str, scenario: Scenario, root: Path) -> int:
    """Run a scenario to its end, and return how many operations a fault of this kind can strike."""
    root.mkdir()
    scenario.prepare(root)

    def counted() -> None:
        fault = Fault(kind, root, 0)
        scenario.run(root)
        fault.active = False
        (root / "count").write_text(str(fault.count))

    code, told = in_child(counted)
    assert code == 0, told
    return int((root / "count").read_text())


def break_once(kind: str, scenario: Scenario, root: Path, at: int) -> tuple[int, str]:
    root.mkdir()
    scenario.prepare(root)

    def broken() -> None:
        fault = Fault(kind, root, at)
        scenario.run(root)
        if fault.count < at:
            os.write(2, MISSED.encode())

    return in_child(broken)


def judge(kind: str, name: str, root: Path, at: int, expected: dict[str, str]) -> tuple[bool, list[str]]:
    """Break a scenario at one operation, look at what is left, and run it again.

    Return whether the fault struck, since a quick machine may write fewer lines of progress, and what is wrong.
    """
    scenario, wrong = SCENARIOS[name], []
    code, told = break_once(kind, scenario, root, at)
    struck = MISSED not in told
    if kind == "kill" and code not in (KILLED, 0):
        wrong.append(f"exit code {code}: {told[-300:]}")
    sentence = told.count("error:") == 1 and str(root) in told  # which names the file that could not be written
    if kind == "full" and (code not in (0, 1) or "Traceback" in told or (code == 1 and not sentence)):
        wrong.append(f"exit code {code}: {told[-300:]}")
    for path in (root / "run", root / "sweep"):
        if (path / "config.yaml").exists() or (path / "sweep.yaml").exists():
            report = folder_check.check(path)
            wrong += [f"{each.file}: {each.what}" for each in report.findings if each.state == "damaged"]
    if name == "fresh":
        whole = [RunFolder(path).finished for path in (root / "run", root / ".run.replaced") if path.exists()]
        wrong += [] if any(whole) else ["neither the old nor the new run is whole"]
    if name == "report" and (root / "run/report.html").exists():
        wrong += [] if (root / "run/report.html").read_text().rstrip().endswith("</html>") else ["half a report"]
    code, told = in_child(lambda: scenario.run(root))
    wrong += [] if code == 0 else [f"the second call: {told[-300:]}"]
    found = digest(root, scenario.compared)
    wrong += [] if found == expected else [f"other bits: {sorted(set(found.items()) ^ set(expected.items()))[:3]}"]
    remains = [str(path) for path in root.rglob("*.part")] + [str(path) for path in root.glob(".run.*")]
    wrong += [f"left behind: {remains[:3]}"] if remains else []
    return struck, [f"{name} at {at}: {each}" for each in wrong]


def spread(total: int, count: int) -> list[int]:
    """Return `count` different operations, or all of them, evenly spread and with the first and the last."""
    if count >= total:
        return list(range(1, total + 1))
    return sorted({1 + round(i * (total - 1) / max(1, count - 1)) for i in range(count)})


def run_all(kind: str, folder: Path, count: int, names: list[str]) -> None:
    gc.collect()
    gc.freeze()  # a child's collections then touch only what is its own
    with contextlib.redirect_stdout(io.StringIO()):
        code, told = in_child(lambda: train(TEMPLATE))
        assert code == 0, told
        totals, wrong, done = {}, [], 0
        for name in names:
            totals[name] = count_operations(kind, SCENARIOS[name], folder / f"{name}-whole")
        for name in names:
            expected = digest(folder / f"{name}-whole", SCENARIOS[name].compared)
            assert expected, name
            for at in spread(totals[name], max(1, count * totals[name] // sum(totals.values()))):
                root = folder / f"{name}-{at}"
                struck, found = judge(kind, name, root, at, expected)
                shutil.rmtree(root)
                done, wrong = done + struck, wrong + found
    print(json.dumps({"operations": totals, "done": done, "wrong": wrong}))


if __name__ == "__main__":
    TEMPLATE = Path(sys.argv[2]) / "template"
    run_all(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
