"""Shared parts of the speed benchmarks: the data, our side, contenders in their own processes, and medians of rounds.

Each contender runs in its own process, so that none is affected by another's threads, allocator settings, global
switches or crashes. A round measures each contender once, so that other load on the machine affects all of them, and
ratios are taken inside a round.
"""

import argparse
import importlib.metadata
import importlib.util
import json
import multiprocessing
import os
import platform
import resource
import shlex
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch

from unbraid.config import Choice
from unbraid.data import FactorDataset, Pixels, pack_bits
from unbraid.training.configure import configure
from unbraid.training.environment import describe_environment
from unbraid.training.prepare import prepare

NETWORK = "conv-daunhawer"
BETAS = (6.0, 1.0, 2.0, 4.0, 8.0, 10.0)
WARM_UP = 10
MAX_SECONDS_TO_ANSWER = 900.0
"""Seconds to wait for an answer of a contender."""

OURS = (
    "prepare(configs, dataset), then State.advance(): rows gathered and unpacked on the device, noise, forward, "
    "closed-form KL and the sampled MI, TC and dimension-wise KL (stratified), backward, Adam, running sums of every "
    "term and the check for divergence; the history, which is read at logging points only, is not read"
)


@dataclass(frozen=True)
class Setting:
    """The settings of training; `precision` and `members` apply to our side only."""

    device: str
    batch: int = 64
    z: int = 10
    images: int = 65_536
    precision: str = "f32"
    members: int = 1
    network: str = NETWORK


class Reading(NamedTuple):
    """A measurement: images per second over all members, and the peak memory so far."""

    rate: float
    mebibytes: float


Measure = Callable[[float], float]
"""seconds of training -> images per second"""


def binary_images(count: int, rows: slice = slice(None)) -> np.ndarray:
    """Draw white rectangles on black as truth values [count, 64, 64], or some rows of them."""
    generator = np.random.default_rng(0)
    centre, half = generator.uniform(14, 50, (2, count, 1)), generator.uniform(3, 12, (2, count, 1))
    inside = np.abs(np.arange(64) - centre[:, rows]) <= half[:, rows]  # [axis, row, 64]
    return inside[0][:, :, None] & inside[1][:, None, :]


def dataset(count: int, device: str) -> FactorDataset:
    """Return the images as a data set of bits on the device."""
    chunks = [slice(start, start + 8192) for start in range(0, count, 8192)]
    packed = torch.cat([pack_bits(torch.from_numpy(binary_images(count, rows))) for rows in chunks])
    return FactorDataset("rectangles", Pixels(packed, (1, 64, 64), bits=True)).to(device)


def ours(setting: Setting) -> tuple[Measure, dict[str, Any]]:
    """Prepare our side: a `State` that has taken its first steps."""
    data = dataset(setting.images, setting.device)
    shared = {
        "network": setting.network,
        "batch": setting.batch,
        "z": setting.z,
        "precision": setting.precision,
        "likelihood": "bernoulli",
        "steps": 10**9,
    }
    configs = [
        configure("beta-tcvae", Choice("rectangles"), data, {**shared, "seed": seed, "beta": BETAS[seed % len(BETAS)]})
        for seed in range(setting.members)
    ]
    state = prepare(configs, data)
    for _ in range(WARM_UP):
        state.advance()
    facts = {"parameters": sum(p[0].numel() for p in state.group.parameters.values()), "step": OURS}
    return lambda seconds: pace(state.advance, setting, seconds), facts


def pace(step: Callable[[], None], setting: Setting, seconds: float) -> float:
    """Return the images per second of as many steps as fit into `seconds`, timed as a whole."""
    trial = _timed(step, 2, setting.device)
    steps = max(1, round(seconds / (trial / 2)))
    return steps * setting.batch * setting.members / _timed(step, steps, setting.device)


def _timed(step: Callable[[], None], count: int, device: str) -> float:
    synchronise(device)
    start = time.perf_counter()
    for _ in range(count):
        step()
    synchronise(device)
    return time.perf_counter() - start


def synchronise(device: str) -> None:
    """Wait for a CUDA device."""
    if device.startswith("cuda"):
        torch.cuda.synchronize()


class Stopwatch:
    """A timer for a trainer that calls `tick` after each step; the first steps, which fill its queues, do not count."""

    def __init__(self, device: str, batch: int, seconds: float) -> None:
        self.device, self.batch, self.seconds = device, batch, seconds
        self.steps, self.start, self.rate = -WARM_UP, 0.0, 0.0

    def tick(self) -> bool:
        """Return whether the time is up, and if so, set `rate` to images per second."""
        self.steps += 1
        if self.steps == 0:
            synchronise(self.device)
            self.start = time.perf_counter()
        if self.steps <= 0 or time.perf_counter() - self.start < self.seconds:
            return False
        synchronise(self.device)
        self.rate = self.steps * self.batch / (time.perf_counter() - self.start)
        return True


@dataclass
class StepLimit:
    """A limit for a trainer that calls `tick` after each step."""

    left: int

    def tick(self) -> bool:
        """Return whether the steps are done."""
        self.left -= 1
        return self.left <= 0


@dataclass
class Contender:
    """One side of a benchmark; `make(*arguments)` runs in its own process and returns a `Measure` and facts."""

    name: str
    make: Callable[..., tuple[Measure, dict[str, Any]]]
    arguments: tuple[Any, ...]
    facts: dict[str, Any] = field(default_factory=dict)
    readings: list[Reading] = field(default_factory=list)
    failure: str = ""

    def start(self) -> None:
        """Start its process."""
        context, method = multiprocessing.get_context("spawn"), multiprocessing.get_start_method()
        self._pipe, other_end = context.Pipe()
        self._process = context.Process(target=_serve, args=(other_end, method, self.make, self.arguments))
        self._process.start()
        other_end.close()
        self.facts |= self._answer() or {}

    def measure(self, seconds: float) -> None:
        """Append one reading, unless the contender has failed."""
        if not self.failure:
            self._pipe.send(seconds)
            answer = self._answer()
            if answer is not None:
                self.readings.append(answer)

    def close(self) -> None:
        if self._process.is_alive():
            with _ignoring(OSError):
                self._pipe.send(None)
            self._process.join(10)
        if self._process.is_alive():
            self._process.kill()

    @property
    def rate(self) -> float:
        """The median of images per second."""
        return statistics.median(reading.rate for reading in self.readings)

    def summary(self) -> dict[str, Any]:
        """Return all results for JSON."""
        facts: dict[str, Any] = {"name": self.name, **self.facts}
        if self.failure:
            facts["failed"] = self.failure
        if self.readings:
            facts["images_per_second"] = round(self.rate, 1)
            facts["rounds"] = [round(reading.rate, 1) for reading in self.readings]
            facts["peak_mebibytes"] = round(max(reading.mebibytes for reading in self.readings))
        return facts

    def _answer(self) -> Any:
        try:
            if not self._pipe.poll(MAX_SECONDS_TO_ANSWER):
                raise EOFError
            kind, value, heard = self._pipe.recv()
        except (EOFError, ConnectionError):
            kind, value, heard = "failed", "its process ended or did not answer", []
        if heard and self.make is ours:
            self.facts["warnings"] = sorted({*self.facts.get("warnings", []), *heard})
        if kind == "failed":
            self.failure = value
            return None
        return value


def ratio(a: Contender, b: Contender) -> float | None:
    """Return the median over rounds of a's speed divided by b's."""
    pairs = [one.rate / other.rate for one, other in zip(a.readings, b.readings, strict=False)]
    return statistics.median(pairs) if pairs else None


@contextmanager
def started(contenders: Sequence[Contender], at_once: int = 1) -> Iterator[None]:
    """Start contenders, `at_once` at a time, and end them after the block."""
    try:
        with ThreadPoolExecutor(at_once) as pool:
            for contender in pool.map(_start, contenders):
                print(f"{contender.name}: {contender.failure or 'ready'}", flush=True)
        yield
    finally:
        for contender in contenders:
            contender.close()


def take_turns(contenders: Sequence[Contender], rounds: int, seconds: float) -> Iterator[int]:
    """Measure each contender once per round, in rotating order, and yield after each round."""
    for turn in range(rounds):
        shift = turn % len(contenders)
        for contender in (*contenders[shift:], *contenders[:shift]):
            contender.measure(seconds)
        print(f"round {turn + 1} of {rounds}", flush=True)
        yield turn


def add_arguments(parser: argparse.ArgumentParser, rounds: int) -> None:
    """Add the options of every benchmark over contenders."""
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--seconds", type=float, default=2.0, help="of one measurement")
    parser.add_argument("--threads", type=int, help="of every side; default: as many as torch takes")
    parser.add_argument("--at-once", type=int, default=1, help="contenders that are made ready at a time")


def gpu_milliseconds(call: Callable[[], object], repeats: int) -> float:
    """Return the mean GPU time of `repeats` calls, by CUDA events."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(repeats):
        call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / repeats


def set_threads(count: int | None) -> None:
    """Set the number of threads of this process and of its contenders."""
    if count is not None:
        os.environ["OMP_NUM_THREADS"] = str(count)
        torch.set_num_threads(count)


def facts(script: str, device: str, packages: Sequence[str] = ()) -> dict[str, Any]:
    """Return machine, versions and command."""
    versions = {name: _version(name) for name in packages}
    return {
        **describe_environment(torch.device(device)),
        "processor": _processor(),
        "cores": os.cpu_count(),
        **versions,
        "command": shlex.join(["python", f"benchmarks/{script}", *sys.argv[1:]]),
    }


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return Markdown with aligned columns."""
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    lines = [head, ["-" * width for width in widths], *rows]
    joined = (" | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)
    return "\n".join(f"| {line} |" for line in joined)


def write(path: Path, found: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=2) + "\n")


def _start(contender: Contender) -> Contender:
    contender.start()
    return contender


def _serve(
    pipe: Connection, method: str, make: Callable[..., tuple[Measure, dict[str, Any]]], arguments: tuple[Any, ...]
) -> None:
    """Serve a contender's process: make it, measure on request, and drop what it prints."""
    multiprocessing.set_start_method(method, force=True)  # a spawned process would also spawn its loader's workers
    heard: list[str] = []
    warnings.showwarning = lambda message, *_: heard.append(str(message).partition("\n")[0][:300])
    with Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
    try:
        measure, found = make(*arguments)
        pipe.send(("ready", found, heard))
        while (seconds := pipe.recv()) is not None:
            rate = measure(seconds)
            pipe.send(("measured", Reading(rate, peak_mebibytes()), heard))
    except ImportError as error:
        pipe.send(("failed", f"absent: {error}", heard))
    except EOFError:
        return
    except Exception as error:
        pipe.send(("failed", f"{type(error).__name__}: {str(error).partition(chr(10))[0][:300]}", heard))


def peak_mebibytes() -> float:
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        return torch.cuda.max_memory_allocated() / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


@contextmanager
def _ignoring(*kinds: type[Exception]) -> Iterator[None]:
    try:
        yield
    except kinds:
        return


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "absent"


def _processor() -> str:
    with _ignoring(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def stand_in_for_torchvision() -> bool:
    """Register a module `torchvision` with the one function that disent uses here, unless the real one is installed."""
    if importlib.util.find_spec("torchvision") is not None:
        return False
    names = ("torchvision", "torchvision.transforms", "torchvision.transforms.functional")
    names += ("torchvision.models", "torchvision.datasets")
    modules = {name: ModuleType(name) for name in names}
    modules["torchvision.transforms.functional"].to_tensor = lambda image: (  # type: ignore[attr-defined]
        torch.from_numpy(np.ascontiguousarray(image.transpose(2, 0, 1))).to(torch.float32).div_(255)
    )
    modules["torchvision.models"].vgg19_bn = None  # type: ignore[attr-defined]
    modules["torchvision.datasets"].ImageFolder = object  # type: ignore[attr-defined]
    for name, module in modules.items():
        parent, _, own = name.rpartition(".")
        if parent:
            setattr(modules[parent], own, module)
    sys.modules.update(modules)
    return True
