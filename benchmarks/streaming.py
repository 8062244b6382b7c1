"""Speed and memory of training on data that stay on disk, beside the same data in memory.

    python benchmarks/streaming.py --out results/benchmarks/streaming-cpu.json

It writes random pictures [rows, 3, 64, 64] to a .npy file, warms both up by three steps and a round, and lets them
train in turns, each in its own process: a round is a few seconds of the one, then of the other. Memory is the resident
set of each process (`VmRSS`, with its peak `VmHWM`), beside that of a process that trains on so few rows that the data
weigh nothing. On a busy machine only the rates by processor time mean something; they count the threads that prefetch.
"""

import argparse
import json
import multiprocessing
import statistics
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch

from unbraid.config import Choice
from unbraid.data import from_npy
from unbraid.training.configure import configure
from unbraid.training.environment import describe_environment
from unbraid.training.prepare import prepare

SIDES = {"few rows": False, "memory": False, "disk": True}
FEW = 2_000


def write_pictures(path: Path, rows: int) -> None:
    """Write smooth random pictures, in blocks."""
    generator = np.random.default_rng(0)
    array = np.lib.format.open_memmap(path, "w+", np.uint8, (rows, 3, 64, 64))
    for start in range(0, rows, 1000):
        coarse = generator.integers(0, 256, (min(1000, rows - start), 3, 8, 8), dtype=np.uint8)
        array[start : start + len(coarse)] = coarse.repeat(8, 2).repeat(8, 3)
    array.flush()


def read_memory() -> dict[str, float]:
    """Return the resident set and its peak in MB."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
    return {name: int(lines[key].split()[0]) / 1000 for name, key in (("now", "VmRSS"), ("peak", "VmHWM"))}


def train(side: str, path: Path, options: argparse.Namespace, pipe: Connection) -> None:
    """Build a training state, then train for as many seconds as each message asks for, and answer with the rate."""
    torch.set_num_threads(options.threads)
    imported = read_memory()
    data = from_npy(path, stream=SIDES[side])
    settings = {"network": options.network, "batch": options.batch, "steps": 10**9, "z": 10}
    state = prepare(configure("beta-vae", Choice("given", {"content": side}), data, settings), data)
    for _ in range(3):
        state.advance()
    pipe.send(imported)
    while seconds := pipe.recv():
        started, first, processor = time.perf_counter(), state.step, time.process_time()
        while time.perf_counter() - started < seconds:
            state.advance()
        images = (state.step - first) * options.batch
        rates = {"second": images / (time.perf_counter() - started)}
        rates["processor_second"] = images / (time.process_time() - processor)
        pipe.send({f"images_per_{unit}": rate for unit, rate in rates.items()} | {"memory": read_memory()})


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Return rates and memory of each side, round by round, and the median of the rounds' ratios."""
    big, small = folder / "big.npy", folder / "small.npy"
    write_pictures(big, options.rows)
    write_pictures(small, FEW)
    context = multiprocessing.get_context("spawn")
    pipes, imported = {}, {}
    for side in SIDES:
        pipes[side], other = context.Pipe()
        context.Process(target=train, args=(side, small if side == "few rows" else big, options, other)).start()
        imported[side] = pipes[side].recv()
    readings: dict[str, list[Any]] = {side: [] for side in SIDES}
    for number in range(options.rounds + 1):
        for side, pipe in pipes.items():
            pipe.send(options.seconds)
            reading = pipe.recv()
            readings[side] += [reading] if number else []  # the first round warms up
    for pipe in pipes.values():
        pipe.send(0)
    rates, by_processor = (
        {side: [each[f"images_per_{unit}"] for each in found] for side, found in readings.items()}
        for unit in ("second", "processor_second")
    )
    memory = {side: {"imported": imported[side]["now"], **found[-1]["memory"]} for side, found in readings.items()}
    return {
        "rows": options.rows,
        "megabytes": big.stat().st_size / 1e6,
        "settings": {key: str(value) for key, value in vars(options).items() if key != "out"},
        "images_per_second": {side: statistics.median(found) for side, found in rates.items()},
        "rounds": rates,
        "disk_over_memory": compare_sides(rates),
        "disk_over_memory_by_processor_time": compare_sides(by_processor),
        "resident_megabytes": memory,
        "added_by_the_data": {s: memory[s]["peak"] - memory["few rows"]["peak"] for s in ("memory", "disk")},
        "environment": describe_environment(torch.device("cpu")),
    }


def compare_sides(rates: dict[str, list[float]]) -> float:
    """Return the median over rounds of the rate on disk, relative to that in memory."""
    return statistics.median(disk / memory for disk, memory in zip(rates["disk"], rates["memory"], strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--network", default="conv-locatello")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--folder", type=Path, help="where to write the pictures; default: a temporary folder")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        found = measure(options, Path(folder))
    for side, rate in found["images_per_second"].items():
        memory = found["resident_megabytes"][side]
        print(f"{side:9}  {rate:8,.0f} images/s   {memory['now']:6,.0f} MB resident, peak {memory['peak']:6,.0f} MB")
    print(f"disk / memory: {found['disk_over_memory']:.2f} of the speed, median of {options.rounds} rounds")
    print(f"the same by processor time: {found['disk_over_memory_by_processor_time']:.2f}")
    for side, added in found["added_by_the_data"].items():
        print(f"added to the peak by the data, {side}: {added:,.0f} MB")
    if options.out:
        options.out.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
