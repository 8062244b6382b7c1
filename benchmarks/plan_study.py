"""How long a large study takes on N GPUs, from the numbers that the other benchmarks have measured.

    python benchmarks/plan_study.py
    python benchmarks/plan_study.py --models 1800 --steps 100000 --gpus 1 4

The default is the study of Locatello et al. (2019), *Challenging common assumptions in the unsupervised learning of
disentangled representations*: 12,600 models of 300,000 steps of 64 images, 2.52 years of one P100. Step rates are those
of `train-64-cuda.json`; the time around the steps of a group is that of `whole-cuda.json` minus its steps. What Ray
adds per group is not included: `benchmarks/cluster.py` measures it.
"""

import argparse
import json
import math
from pathlib import Path
from typing import Any

import measure

RESULTS = Path(__file__).parent.parent / "results"
YEARS_ON_P100 = 2.52
MEMBERS, MEASURED_STEPS, MEASURED_BATCH = 64, 5_000, 64
"""Runs of a group in the measured sweep, their steps, and images per step."""

COPIES_IN_CHECKPOINTS = 3 * 2
"""Weights and two moments of Adam, in the last two checkpoints."""


def read_result(name: str) -> dict[str, Any]:
    return json.loads((RESULTS / name).read_text())


def read_measured() -> dict[str, float]:
    """Return images per second over a group, seconds around its steps, and bytes of a model."""
    contenders = read_result("benchmarks/train-64-cuda.json")["contenders"]
    group = next(row for row in contenders if row["name"] == f"unbraid, {MEMBERS} x bf16")
    timed = read_result("benchmarks/whole-cuda.json")["rows"]
    sweep = next(row for row in timed if row["what"] == f"{MEMBERS} seeds, scored, warm")
    rate = group["images_per_second"]
    stepping = MEMBERS * MEASURED_STEPS * MEASURED_BATCH / rate
    return {"rate": rate, "around": sweep["seconds"] - stepping, "bytes": 4 * group["parameters"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--models", type=int, default=12_600)
    parser.add_argument("--steps", type=int, default=300_000)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--gpus", type=int, nargs="+", default=[1, 4, 8, 16, 64])
    options = parser.parse_args()
    found = read_measured()
    groups = math.ceil(options.models / MEMBERS)
    stepping = MEMBERS * options.steps * options.batch / found["rate"]
    group = stepping + found["around"]
    print(f"{options.models:,} models of {options.steps:,} steps: {groups} groups of {MEMBERS}")
    print(f"a group: {stepping / 60:.1f} minutes of steps at {found['rate']:,.0f} images/s, ", end="")
    print(f"{found['around']:.0f} s around them: {stepping / group:.1%} are steps")
    rows = []
    for gpus in options.gpus:
        hours = math.ceil(groups / gpus) * group / 3600
        busy = groups / (math.ceil(groups / gpus) * gpus)
        rows.append([str(gpus), f"{hours:.1f}", f"{hours / 24:.2f}", f"{busy:.0%}"])
    print(measure.table(["GPUs", "hours", "days", "of the GPUs' time in use"], rows))
    weights = options.models * found["bytes"] / 1e9
    checkpoints = MEMBERS * COPIES_IN_CHECKPOINTS * found["bytes"] / 1e9
    print(f"disk: {weights:.0f} GB of final weights, and {checkpoints:.1f} GB of checkpoints per running group")


if __name__ == "__main__":
    main()
