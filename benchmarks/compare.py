"""Two tables of runs side by side: mean and range of each score, and the difference of the means with its interval.

    python benchmarks/compare.py results/precision/tf32.csv results/precision/bf16.csv

The 90% interval comes from resampling the finished runs of each table. Columns of intervals ("… low", "… high") are
left out.
"""

import argparse
import csv
from pathlib import Path

import numpy as np

RESAMPLES = 20_000
LEVEL = 0.9


def scores_of(path: Path) -> dict[str, np.ndarray]:
    """Return the values of every score over the finished runs."""
    with path.open(encoding="utf-8") as lines:
        rows = [row for row in csv.DictReader(lines) if row["status"] == "finished"]
    names = [name for name in rows[0] if "/" in name and not name.endswith((" low", " high"))]
    return {name: np.array([float(row[name]) for row in rows]) for name in names}


def difference(first: np.ndarray, second: np.ndarray) -> tuple[float, float, float]:
    """Return the second mean minus the first, and its interval."""
    rng = np.random.default_rng(0)
    drawn = [rng.choice(values, (RESAMPLES, len(values))).mean(1) for values in (first, second)]
    low, high = np.quantile(drawn[1] - drawn[0], [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return second.mean() - first.mean(), low, high


def describe(values: np.ndarray) -> str:
    return f"{values.mean():.3f} ({values.min():.3f} to {values.max():.3f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("first", type=Path)
    parser.add_argument("second", type=Path)
    arguments = parser.parse_args()
    first, second = scores_of(arguments.first), scores_of(arguments.second)
    print(f"| | {arguments.first.stem} | {arguments.second.stem} | difference of means, {LEVEL:.0%} interval |")
    print("|---|---|---|---|")
    for name in (name for name in first if name in second):
        apart, low, high = difference(first[name], second[name])
        interval = f"{apart:+.3f} ({low:.3f} to {high:.3f})"
        print(f"| {name} | {describe(first[name])} | {describe(second[name])} | {interval} |")


if __name__ == "__main__":
    main()
