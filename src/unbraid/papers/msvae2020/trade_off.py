"""Reconstructions against disentanglement over beta: msvae2020's table 1 and figures 4, 34 and 35."""

from dataclasses import replace
from typing import Any

import numpy as np

from unbraid.experiments import evidence
from unbraid.experiments.base import experiment
from unbraid.experiments.claims import Claim, Evidence
from unbraid.experiments.drawing import plot_curves, plot_trade_off
from unbraid.experiments.evidence import Finding, combine, compare_on_average, compare_pairs, mean_curve
from unbraid.experiments.results import Results
from unbraid.experiments.stand_in import StandIn
from unbraid.experiments.statistics import Cells, Estimate
from unbraid.papers.msvae2020 import cars
from unbraid.papers.msvae2020.cars import BASE, BIG, BIG_VAE, DISTANCE, LARGE, MIG, MS, PAIRED_BY, RE_ENCODED, STUDENT

MAX_CHANGE = 0.05
"""Change of MIG below which it counts as none (ours)."""

MAX_ROUNDING = 1e-4
"""Change of MIG that rounding may cause: some ten of 10,000 rows in another bin of the histograms.

First stages and the models that refine them are encoded by different programs, which round differently in TF32.
"""

SLIGHTLY = 0.1
"""Share of an error by which a slightly better one is lower at most (ours)."""


def mig_is_kept(series: str, score: str, what: str) -> Finding:
    """Return the evidence that a score of a stage equals the MIG of the run that it refines, on average."""
    bounds = {"low": -MAX_CHANGE, "high": MAX_CHANGE}
    return compare_pairs(BASE, series, PAIRED_BY, (MIG, score), lambda d: d.mean(-1), what, refines=True, **bounds)


def nearer_than(other: str) -> Finding:
    """Return the evidence that MS-VAE's reconstructions are nearer to the data than those of another series."""
    return cars.by_distance(lambda distance: evidence.compare_at_each(other, MS, "beta", distance, high=0.0))


def falls_by(score: str, **bounds: float) -> Finding:
    """Find the share by which a score falls from beta-TCVAE to MS-VAE, on average over beta."""

    def fall(cells: Cells) -> np.ndarray:
        return (1 - mean_curve(cells, MS) / mean_curve(cells, BASE))[..., 0].mean(-1)

    what = f"share by which {score} falls from {BASE} to {MS}, mean over beta"
    return evidence.find_one(
        what, lambda results: evidence.group_series(results, (BASE, MS), "beta", score), fall, **bounds
    )


def add_pixel_study(name: str, error: str, score: str, data: StandIn) -> None:
    """Register a figure of a pixel error over beta."""
    lower = combine(
        compare_on_average(BASE, MS, "beta", score, high=0.0), compare_on_average(LARGE, MS, "beta", score, high=0.0)
    )
    about = "as the paper says of SmallNORB" if data is cars.NORB else "which the paper says of SmallNORB only"
    slightly = f"{error} is only slightly better than beta-TCVAE's: lower by less than {SLIGHTLY:.0%} (ours), {about}"
    claims = {
        f"MS-VAE's {error} error is below beta-TCVAE's and beta-TCVAE-L's, on average over beta": lower,
        slightly: falls_by(score, high=SLIGHTLY),
    }
    experiment.add(
        name,
        f"{error} error of reconstructions over beta, on {cars.TITLES[data]}.",
        plot_curves("beta", score),
        **cars.sweep_beta(BASE, MS, LARGE, data=data),
        scores=(score, DISTANCE),
        contrast=(BASE, MS),
        claims=claims,
    )


SCORES = (DISTANCE, cars.FID, MIG, RE_ENCODED)


def find_change_of_c(results: Results) -> list[Evidence]:
    """Return the largest change of MIG from a first stage to the MS-VAE on it, a fact without an interval."""
    pairs = compare_pairs(BASE, MS, PAIRED_BY, (MIG, MIG), lambda d: abs(d).max(-1), f"largest change of {MIG}", True)
    (found,) = pairs(results)
    value = found.estimate.value
    return [replace(found, estimate=Estimate(value, value, value), high=MAX_ROUNDING)]


SAME_C = "a check, since it is so by construction: C is the first stage's, and so is its MIG, up to rounding"
UNCHANGED = {SAME_C: Claim(SAME_C, find_change_of_c, trained=False)}
CHECK_NOTE = (
    f"The check allows MIG to change by {MAX_ROUNDING:g}. It was 1e-9 until two of thirty pairs on Cars3D, measured on "
    "a GPU by different programs in TF32, differed by 1e-5, which is one row of 10,000 in another bin."
)
BETTER_AT_EQUAL_SIZE = {
    "MS-VAE reconstructs better than a beta-TCVAE with as many parameters and latents, at every beta": nearer_than(BIG),
    "and has a higher MIG, on average over beta": compare_on_average(BIG, MS, "beta", MIG, low=0.0),
}
NORB: dict[str, Any] = {"notes": [cars.SIZES_NOTE, CHECK_NOTE], "data": cars.NORB}
FALLS = {"MIG falls with beta on SmallNORB": evidence.compare_settings(BASE, "beta", 1, 10, MIG, high=0.0)}
experiment.add(
    "msvae2020/table1",
    "MS-VAE and a beta-TCVAE of the same size, on Cars3D.",
    plot_trade_off(MIG, DISTANCE),
    **cars.sweep_beta(BASE, MS, BIG, notes=[cars.SIZES_NOTE, CHECK_NOTE]),
    published={BIG: {cars.FID: 35.24, MIG: 0.09}, MS: {cars.FID: 22.72, MIG: 0.10}},
    claims={**BETTER_AT_EQUAL_SIZE, **UNCHANGED},
    scores=SCORES,
)
experiment.add(
    "msvae2020/table1-norb",
    "MS-VAE and a beta-TCVAE of the same size, on SmallNORB.",
    plot_trade_off(MIG, DISTANCE),
    reference="table 1 and figure 4",
    **cars.sweep_beta(BASE, MS, BIG, **NORB),
    published={BIG: {cars.FID: 152.19, MIG: 0.16}, MS: {cars.FID: 59.16, MIG: 0.22}},
    claims={**BETTER_AT_EQUAL_SIZE, **FALLS, **UNCHANGED},
    scores=SCORES,
)
NEARER = {
    "MS-VAE's reconstructions are nearer to the data than beta-TCVAE's and beta-TCVAE-L's, at every beta": combine(
        nearer_than(BASE), nearer_than(LARGE)
    ),
    **UNCHANGED,
    f"encoded again, refined images show C as before (MIG changes by less than {MAX_CHANGE}, ours)": mig_is_kept(
        MS, RE_ENCODED, "mean change of MIG after encoding refined images"
    ),
    "at the lowest beta, nearer than Big-VAE's": nearer_than(BIG_VAE),
}
OVER_BETA: dict[str, Any] = {
    "draw": plot_curves("beta", DISTANCE, MIG, across=(MIG, DISTANCE)),
    "scores": SCORES,
}
experiment.add(
    "msvae2020/fig4-norb",
    "Distance of reconstructions and MIG over beta, and against each other, on SmallNORB.",
    **cars.sweep_beta(BASE, MS, LARGE, BIG, BIG_VAE, **NORB),
    **OVER_BETA,
    contrast=(BASE, MS),
    claims={**NEARER, **FALLS},
)
experiment.add(
    "msvae2020/fig4",
    "Distance of reconstructions and MIG over beta, and against each other, on Cars3D.",
    **cars.sweep_beta(BASE, MS, LARGE, BIG, BIG_VAE, notes=[cars.SIZES_NOTE, CHECK_NOTE]),
    **OVER_BETA,
    contrast=(BASE, MS),
    claims={
        **NEARER,
        "MIG rises with beta on Cars3D": evidence.compare_settings(BASE, "beta", 1, 10, MIG, low=0.0),
        "beta-TCVAE has a higher MIG than beta-TCVAE-L, on average over beta": compare_on_average(
            LARGE, BASE, "beta", MIG, low=0.0
        ),
    },
)
APART = "The student is not in fig4, since its loss has another scale and settles later."
experiment.add(
    "msvae2020/fig4-student",
    "Distance of reconstructions and MIG of MS-VAE and of a student of the same teacher, on Cars3D.",
    **cars.sweep_beta(BASE, MS, STUDENT, notes=[cars.SIZES_NOTE, APART]),
    **OVER_BETA,
    contrast=(STUDENT, MS),
    claims={
        "MS-VAE's reconstructions are nearer to the data than those of Jacobian supervision": nearer_than(STUDENT),
        f"the student keeps its teacher's MIG (within {MAX_CHANGE}, ours)": mig_is_kept(
            STUDENT, MIG, f"mean change of {MIG}, {STUDENT}"
        ),
    },
)
add_pixel_study("msvae2020/fig34", "L1", cars.L1, cars.CARS)
add_pixel_study("msvae2020/fig35", "L2", cars.L2, cars.CARS)
add_pixel_study("msvae2020/fig34-norb", "L1", cars.L1, cars.NORB)
add_pixel_study("msvae2020/fig35-norb", "L2", cars.L2, cars.NORB)
