"""chen2018, figures 2 and 4, from a sweep of two recipes over beta and seeds: means with 90% bootstrap intervals.

    unbraid sweep beta-vae,beta-tcvae seed=0:10 beta=1,2,4,6,8,10 data=sprites network=mlp-chen batch=2048 steps=18000 \
      precision=bf16 beta-tcvae.estimator=mws --name tradeoff --metric mig --metric elbo --metric tc/exact
    python benchmarks/tradeoff.py runs/tradeoff

Reads settings and scores only, so it also works where weights were not kept. Seeds are drawn anew for each beta and
recipe, since runs of one seed share nothing but their first weights.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np

from unbraid.sweeps import Sweep

SCORES = ("mig/exact", "elbo/closed-form", "tc/exact")
RESAMPLES = 4000

Study = dict[str, np.ndarray]
"""Scores [beta, seed, score] by recipe."""


def read(folder: Path) -> tuple[list[float], Study]:
    """Return betas and scores of a finished sweep."""
    found: dict[str, dict[float, list[list[float]]]] = {}
    for member in Sweep(folder).members:
        values = [member.scores[name].value for name in SCORES]
        found.setdefault(member.settings["recipe"], {}).setdefault(member.settings["beta"], []).append(values)
    betas = sorted(next(iter(found.values())))
    return betas, {recipe: np.array([by_beta[beta] for beta in betas]) for recipe, by_beta in found.items()}


def interval(study: Study, statistic: Callable[[Study], np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return a statistic with its 5% and 95% bootstrap quantiles."""
    rng = np.random.default_rng(0)

    def resampled() -> Study:
        return {
            recipe: np.stack([at[rng.integers(len(at), size=len(at))] for at in values])
            for recipe, values in study.items()
        }

    low, high = np.quantile([statistic(resampled()) for _ in range(RESAMPLES)], [0.05, 0.95], axis=0)
    return np.asarray(statistic(study)), low, high


def row(title: str, found: tuple[np.ndarray, np.ndarray, np.ndarray]) -> str:
    """Return a line of Markdown with `value (low..high)` in each cell."""
    cells = (f"{v:.3g} ({a:.3g}..{b:.3g})" for v, a, b in zip(*map(np.atleast_1d, found), strict=True))
    return f"| {title} | " + " | ".join(cells) + " |"


def correlation(values: np.ndarray) -> float:
    """Return Pearson's correlation of TC and MIG over [..., score]."""
    return float(np.corrcoef(values[..., 2].ravel(), values[..., 0].ravel())[0, 1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sweep", type=Path)
    betas, study = read(parser.parse_args().sweep)
    first, second = study
    print("| mean (90% interval) | " + " | ".join(f"beta {beta:g}" for beta in betas) + " |")
    print("|---" * (len(betas) + 1) + "|")
    for k, name in enumerate(SCORES):
        for recipe in study:
            print(row(f"{recipe}: {name}", interval(study, lambda s, r=recipe, k=k: s[r][..., k].mean(1))))
        difference = interval(study, lambda s, k=k: s[second][..., k].mean(1) - s[first][..., k].mean(1))
        print(row(f"{second} minus {first}: {name}", difference))
    print("\n| Pearson's correlation of TC and MIG | means per beta | all runs |\n|---|---|---|")
    for title, of in {recipe: (lambda s, f, r=recipe: f(s[r])) for recipe in study}.items():
        print(_pair(title, study, of))
    print(_pair(f"{second} minus {first}", study, lambda s, f: f(s[second]) - f(s[first])))


def _pair(title: str, study: Study, of: Callable[[Study, Callable[[np.ndarray], float]], float]) -> str:
    """Return the row of a correlation over the means per beta, and over all runs."""
    ways = (lambda values: correlation(values.mean(1)), correlation)
    found = [interval(study, lambda s, way=way: np.asarray(of(s, way))) for way in ways]
    return row(title, tuple(np.array(part) for part in zip(*found, strict=True)))  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
