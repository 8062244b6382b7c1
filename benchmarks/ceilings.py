"""Scores of a perfect code, a rotated one and noise: ceilings and floors, on rows of the sprites grid.

    python benchmarks/ceilings.py                    # 10,000 rows, as `unbraid evaluate RUN --metric full --rows 10000`
    python benchmarks/ceilings.py --rows 15000       # enough for 10,000 training and 5,000 test rows
    python benchmarks/ceilings.py --gaussians        # total correlations of Gaussians whose truth is known

`perfect`: five latents are the standardised values of shape, scale, orientation and the two positions, five more are
constant. `turned`: the same with the two positions rotated by 45 degrees. `noise`: ten independent Normal latents.
Nothing is rendered or encoded. If a protocol uses posteriors, their deviation is .02, and 1 for the constant latents.
Takes two minutes on one core.
"""

import argparse
import warnings
from collections.abc import Callable

import numpy as np

from unbraid import metrics
from unbraid.metrics import Score

SIZES = (3, 6, 40, 32, 32)
PREDICTORS = ("booster", "random-forest", "lasso")
Codes = tuple[np.ndarray, np.ndarray]


def codes_of(factors: np.ndarray, rng: np.random.Generator) -> dict[str, Codes]:
    """Return means and deviations of the posteriors [rows, latents] of each code."""
    sizes = np.array(SIZES)
    standard = (factors - (sizes - 1) / 2) / np.sqrt((sizes**2 - 1) / 12)
    perfect = np.concatenate([standard, np.zeros(standard.shape)], axis=1)
    turned = perfect.copy()
    turned[:, 3], turned[:, 4] = (perfect[:, 3] + perfect[:, 4]) / 2**0.5, (perfect[:, 4] - perfect[:, 3]) / 2**0.5
    noise = rng.standard_normal(perfect.shape)
    widths = np.repeat([[0.02, 1.0]], 5, axis=1).repeat(len(factors), axis=0)
    return {"perfect": (perfect, widths), "turned": (turned, widths), "noise": (noise, np.full(noise.shape, 0.02))}


def calls(codes: Codes, factors: np.ndarray, seed: int) -> list[Callable[[], Score | list[Score]]]:
    """Return a call for every score of labelled codes except slow ones."""
    z, widths = codes
    drawn = z + widths * np.random.default_rng(seed + 1).standard_normal(z.shape)
    published = {"compat": "disentanglement_lib"}
    return [
        lambda: metrics.mig_exact(z, widths, factors),
        lambda: metrics.mig(z, factors),
        lambda: metrics.mig(drawn, factors, protocol="histogram-sampled"),
        lambda: metrics.mig(z, factors, **published),
        lambda: metrics.mig_corrected(z, factors, resamples=0),
        *(lambda option=option: metrics.modularity(z, factors, **option) for option in ({}, published)),
        lambda: metrics.modularity_corrected(z, factors, resamples=0),
        lambda: metrics.infomec_corrected(z, factors, resamples=0),
        *(
            lambda option=option: metrics.infomec(z, factors, protocol=option, resamples=2)
            for option in ("knn", "histogram")
        ),
        *(lambda option=option: metrics.dci(z, factors, predictor=option) for option in PREDICTORS),
        *(lambda option=option: metrics.sap(z, factors, **option) for option in ({}, published)),
        *(lambda option=option: metrics.explicitness(z, factors, **option) for option in ({}, published)),
        *(
            lambda option=option: metrics.downstream(z, factors, protocol=option)
            for option in ("logistic", "random-forest")
        ),
        lambda: metrics.attributes(z, factors),
        *(lambda option=option: metrics.betavae(z, factors, **option) for option in ({}, published)),
        *(lambda option=option: metrics.factorvae(z, factors, **option) for option in ({}, published)),
        *(lambda option=option: metrics.irs(z, factors, **option) for option in ({}, published)),
        lambda: metrics.total_correlation(drawn),
        lambda: metrics.active_units(z),
    ]


def gaussians(rows: int, seed: int) -> None:
    """Print the TC of five pairs of Normal variables with correlation r: the truth, and two estimates."""
    print("| correlation | truth | tc/gaussian | tc/ratio |\n| --- | --- | --- | --- |")
    for r in (0.3, 0.6, 0.9):
        covariance = np.kron(np.eye(5), [[1.0, r], [r, 1.0]])
        z = np.random.default_rng(seed).multivariate_normal(np.zeros(10), covariance, rows)
        truth = -0.5 * np.linalg.slogdet(covariance)[1]
        found = [metrics.total_correlation(z, protocol=p, seed=seed).value for p in ("gaussian", "ratio")]
        print(f"| {r} | {truth:.2f} | {found[0]:.2f} | {found[1]:.2f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--gaussians", action="store_true")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    if arguments.gaussians:
        gaussians(arguments.rows, arguments.seed)
        return
    rng = np.random.default_rng(arguments.seed)
    rows = rng.choice(np.prod(SIZES), arguments.rows, replace=False)
    factors = np.stack(np.unravel_index(rows, SIZES), axis=1)
    found: dict[str, list[str]] = {}
    for codes in codes_of(factors, rng).values():
        for call in calls(codes, factors, arguments.seed):
            made = call()
            for score in made if isinstance(made, list) else [made]:
                found.setdefault(score.name, []).append(f"{score.value:.3f}")
    print("| score | perfect | turned | noise |\n|---|---|---|---|")
    for name, values in found.items():
        print(f"| {name} | {' | '.join(values)} |")


if __name__ == "__main__":
    main()
