"""Encoders of several models as one stacked program against one model after the other.

    python benchmarks/encoding.py --out results/benchmarks/encoding-cpu.json

A round encodes the same rows both ways; times are medians over rounds, ratios are taken inside a round.
"""

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from measure import facts, set_threads, write

from unbraid.config import Choice
from unbraid.data import load
from unbraid.metrics import Evaluation, encode_together
from unbraid.models import build
from unbraid.training import configure

CASES = (
    ("sprites-small", "mlp"),
    ("sprites-small", "conv-small"),
    ("sprites", "mlp-chen"),
    ("sprites", "conv-locatello"),
)


def measure(data_name: str, network: str, models: int, rows: int, rounds: int, device: str) -> dict[str, Any]:
    """Return the seconds of both ways for untrained models."""
    data = load(data_name, device=device)
    some = torch.arange(0, len(data), max(1, len(data) // rows), device=data.device)[:rows]
    configs = [configure("vae", Choice(data_name), data, {"network": network, "seed": seed}) for seed in range(models)]
    together, alone = [], []
    for _ in range(rounds):
        for taken, stacked in ((together, True), (alone, False)):
            evaluations = [Evaluation(build(config, data.shape).to(device), data, some) for config in configs]
            start = time.perf_counter()
            if stacked:
                encode_together(evaluations)
            for evaluation in evaluations:
                evaluation.posterior["z"].sum().item()  # waits for a GPU
            taken.append(time.perf_counter() - start)
    return {
        "models": models,
        "rows": len(some),
        "together": round(statistics.median(together), 3),
        "alone": round(statistics.median(alone), 3),
        "together_over_alone": round(statistics.median(a / b for a, b in zip(together, alone, strict=True)), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=int, default=8)
    parser.add_argument("--rows", type=int, default=4_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    set_threads(asked.threads)
    how = asked.models, asked.rows, asked.rounds, asked.device
    found = {f"{network} on {data}": measure(data, network, *how) for data, network in CASES}
    record = {**facts("encoding.py", asked.device), **found}
    print(json.dumps(record, indent=1))
    if asked.out is not None:
        write(asked.out, record)


if __name__ == "__main__":
    main()
