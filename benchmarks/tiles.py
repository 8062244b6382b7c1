"""Time the estimator of log q(z) on a CPU in tiles and in chunks, and whole training steps with each.

    OMP_NUM_THREADS=1 python benchmarks/tiles.py --out results/benchmarks/tiles-cpu.json

A row of the estimator is forward and backward of one batch with 10 latents; "mixed" has those of HFVAE on MNIST, 10
Normal ones beside a class. "exact" is log q(z) of some rows under all posteriors, as scores compute it. Both forms are
timed in turn; times are medians over rounds, ratios medians of the rounds' own ratios, with their range.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import measure
import torch
from recipes import SPRITES, make_configs

from unbraid.density import batch_aggregate, estimators, exact_aggregate
from unbraid.latents import Concrete, Normal, Space
from unbraid.training.prepare import prepare

LATENTS, SIZE, EXACT = 10, 60_000, 256
SPACES = {
    "normal": Space({"z": Normal(size=LATENTS)}),
    "mixed": Space({"z": Normal(size=LATENTS), "y": Concrete(classes=10)}, (tuple(range(LATENTS)), (LATENTS,))),
}
BATCHES = [(1, 64), (8, 64), (1, 128), (1, 512), (4, 512), (1, 2048)]
STEPS = {"hfvae, mlp-esmaeili-28": 512, "beta-tcvae, mlp-chen": 2048}
"""Whole steps, with the batch of their paper."""


@contextmanager
def use_tiles(wanted: bool) -> Iterator[None]:
    """Let the estimator take tiles wherever they apply, or nowhere."""
    before, estimators.MIN_TILED_PAIRS = estimators.MIN_TILED_PAIRS, 0 if wanted else 10**18
    try:
        yield
    finally:
        estimators.MIN_TILED_PAIRS = before


def make_estimate(kind: str, members: int, batch: int) -> Callable[[], Any]:
    """Return a function that estimates the densities of one batch, and their gradients."""
    space, generator = SPACES[kind], torch.Generator().manual_seed(0)
    lead = (members,) if members > 1 else ()
    flat = torch.randn(*lead, batch, sum(space.outputs.values()), generator=generator).requires_grad_()
    noise = {name: torch.rand(*lead, batch, b.width, generator=generator) for name, b in space.blocks.items()}
    noise = {name: uniform.clamp(1e-3, 1 - 1e-3) for name, uniform in noise.items()}

    def estimate() -> Any:
        posterior = space.split(flat)
        made = batch_aggregate(space, posterior, space.sample(posterior, noise), "stratified", SIZE)
        return torch.autograd.grad((made.joint - made.leaves.sum(-1)).mean(), flat)

    return estimate


def make_exact(samples: int) -> Callable[[], Any]:
    """Return a function that computes log q(z) of samples under the posteriors of the whole data set."""
    space, generator = SPACES["normal"], torch.Generator().manual_seed(0)
    posterior = space.split(torch.randn(SIZE, sum(space.outputs.values()), generator=generator))
    drawn = {"z": torch.randn(samples, LATENTS, generator=generator)}
    return torch.no_grad()(lambda: exact_aggregate(space, posterior, drawn))


def make_step(variant: str, batch: int) -> Callable[[], Any]:
    """Return a function that takes one training step."""
    common = {"batch": batch, "precision": "f32", "steps": 10**9}
    configs, data = make_configs(variant, torch.device("cpu"), common, 1, SPRITES)
    return prepare(configs, data).advance


def time_call(call: Callable[[], Any], repeats: int) -> float:
    """Return the milliseconds of one call."""
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return 1e3 * (time.perf_counter() - start) / repeats


def compare(call: Callable[[], Any], rounds: int) -> dict[str, float]:
    """Return milliseconds of both forms, and how many times faster tiles are."""
    times: dict[bool, list[float]] = {True: [], False: []}
    for wanted in times:
        with use_tiles(wanted):
            call()
    repeats = max(1, min(50, round(50 / time_call(call, 1))))
    for turn in range(rounds):
        for wanted in (turn % 2 == 0, turn % 2 == 1):
            with use_tiles(wanted):
                times[wanted].append(time_call(call, repeats))
    ratios = [chunks / tiles for tiles, chunks in zip(times[True], times[False], strict=True)]
    tiles, chunks = (statistics.median(times[wanted]) for wanted in (True, False))
    found = {"tiles": tiles, "chunks": chunks, "faster": statistics.median(ratios), "from": min(ratios)}
    return {name: round(value, 2) for name, value in {**found, "to": max(ratios)}.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--out", type=Path, help="JSON; default: none")
    arguments = parser.parse_args()
    jobs = {f"{kind}, {m} x {b}": make_estimate(kind, m, b) for kind in SPACES for m, b in BATCHES}
    jobs |= {f"exact, {EXACT} rows": make_exact(EXACT)}
    jobs |= {f"step of {variant}, batch {batch}": make_step(variant, batch) for variant, batch in STEPS.items()}
    rows = {}
    print("| what | tiles, ms | chunks, ms | times faster |\n| --- | --- | --- | --- |")
    for name, call in jobs.items():
        row = rows[name] = compare(call, arguments.rounds)
        print(
            f"| {name} | {row['tiles']} | {row['chunks']} | {row['faster']} ({row['from']} to {row['to']}) |",
            flush=True,
        )
    if arguments.out:
        facts = {**measure.facts("tiles.py", "cpu"), "threads": torch.get_num_threads(), "rounds": arguments.rounds}
        measure.write(arguments.out, {**facts, "milliseconds": rows})


if __name__ == "__main__":
    main()
