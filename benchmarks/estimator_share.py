"""The cost of the estimator inside a captured step: the step with it, and with a constant instead.

    python benchmarks/estimator_share.py --out results/benchmarks/estimator-share-cuda.json

beta-TCVAE on the full rendered sprites with mlp-chen, z = 10; both steps interleaved, medians over rounds.
"""

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from unbraid.config import Choice
from unbraid.data import load
from unbraid.data.factors import FactorDataset
from unbraid.density import Aggregate
from unbraid.methods import presets
from unbraid.training import configure
from unbraid.training.environment import describe_environment
from unbraid.training.prepare import prepare
from unbraid.training.state import State


@contextmanager
def constant_estimator() -> Iterator[None]:
    """Replace every log density by 0 inside the block."""

    def zeros(space: Any, posterior: Any, sample: Any, estimator: str, size: int) -> Aggregate:
        first = next(iter(sample.values()))
        return Aggregate(tuple(first.new_zeros(*first.shape[:-1], len(level)) for level in space.levels))

    real = presets.batch_aggregate
    presets.batch_aggregate = zeros
    try:
        yield
    finally:
        presets.batch_aggregate = real


def ready(dataset: FactorDataset, precision: str, batch: int) -> State:
    """Return a state whose step is compiled and recorded."""
    settings = {"network": "mlp-chen", "batch": batch, "steps": 100_000, "precision": precision}
    state = prepare(configure("beta-tcvae", Choice("sprites"), dataset, settings), dataset)
    for _ in range(6):
        state.advance()
    return state


def milliseconds(state: State, steps: int) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(steps):
        state.advance()
    torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - start) / steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--precision", nargs="+", default=["tf32", "bf16"])
    parser.add_argument("--batch", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    device = torch.device("cuda")
    dataset = load("sprites", {}, device)
    made: dict[str, Any] = {"environment": describe_environment(device), "batch": arguments.batch}
    for precision in arguments.precision:
        states = {"with": ready(dataset, precision, arguments.batch)}
        with constant_estimator():
            states["without"] = ready(dataset, precision, arguments.batch)
        rounds = [{k: milliseconds(s, arguments.steps) for k, s in states.items()} for _ in range(arguments.rounds)]
        medians = {key: statistics.median(one[key] for one in rounds) for key in states}
        share = 1 - medians["without"] / medians["with"]
        made[precision] = {"ms": medians, "share_of_step": share, "rounds": rounds}
        print(
            f"{precision}: {medians['with']:.3f} ms, without {medians['without']:.3f} ms, share {share:.1%}", flush=True
        )
    if arguments.out:
        arguments.out.write_text(json.dumps(made, indent=1) + "\n")


if __name__ == "__main__":
    main()
