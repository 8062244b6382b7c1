"""Reconstructions against disentanglement over beta: msvae2020's table 1 and figures 4, 34 and 35."""

from typing import Any

import numpy as np

from unbraid.experiments.base import Claim, Evidence, Results, experiment
from unbraid.experiments.curves import draw_curves
from unbraid.experiments.evidence import (
    Finding,
    combine,
    compare_at_each,
    compare_on_average,
    compare_pairs,
    compare_settings,
    group_series,
    mean_curve,
)
from unbraid.experiments.statistics import Cells, estimate
from unbraid.papers.msvae2020.cars import (
    BASE,
    BIG,
    BIG_VAE,
    DISTANCE,
    L1,
    L2,
    LARGE,
    MIG,
    MS,
    NORB,
    PAIR,
    RE_ENCODED,
    SIZES,
    STUDENT,
    on_cars,
)
from unbraid.report.sweep_figures import draw_trade_off

SAME = 0.05
"""Differences of MIG below this one are none (ours)."""

UNCHANGED = Claim(
    "a check, since it is so by construction: C is the first stage's to the bit, and so is its MIG",
    compare_pairs(BASE, MS, PAIR, (MIG, MIG), lambda d: abs(d).max(-1), f"largest change of {MIG}", high=1e-9),
)
STILL_SHOWN = Claim(
    f"encoded again, refined images show C as before (MIG changes by less than {SAME}, ours)",
    compare_pairs(
        BASE,
        MS,
        PAIR,
        (MIG, RE_ENCODED),
        lambda d: d.mean(-1),
        "mean change of MIG after encoding refined images",
        low=-SAME,
        high=SAME,
    ),
)


AS_LARGE = (
    Claim(
        "MS-VAE reconstructs better than a beta-TCVAE with as many parameters and latents, at every beta",
        compare_at_each(BIG, MS, "beta", DISTANCE, high=0.0),
    ),
    Claim("and has a higher MIG, on average over beta", compare_on_average(BIG, MS, "beta", MIG, low=0.0)),
)


@experiment(
    "msvae2020/table1",
    year=2020,
    reference="msvae2020, table 1",
    **on_cars(BASE, MS, BIG, more=[SIZES]),
    scores=(DISTANCE, MIG, RE_ENCODED),
    published={BIG: {DISTANCE: 35.24, MIG: 0.09}, MS: {DISTANCE: 22.72, MIG: 0.10}},
    claims=(*AS_LARGE, UNCHANGED),
)
def table1(results: Results, make: Any) -> Any:
    """MS-VAE and a beta-TCVAE of the same size, on Cars3D."""
    return draw_trade_off(make, results.members, MIG, DISTANCE)


@experiment(
    "msvae2020/table1-norb",
    year=2020,
    reference="msvae2020, table 1 and figure 4",
    **on_cars(BASE, MS, BIG, more=[SIZES], data=NORB),
    scores=(DISTANCE, MIG, RE_ENCODED),
    published={BIG: {DISTANCE: 152.19, MIG: 0.16}, MS: {DISTANCE: 59.16, MIG: 0.22}},
    claims=(
        *AS_LARGE,
        Claim("MIG falls with beta on SmallNORB", compare_settings(BASE, "beta", 1, 10, MIG, high=0.0)),
        UNCHANGED,
    ),
)
def table1_norb(results: Results, make: Any) -> Any:
    """MS-VAE and a beta-TCVAE of the same size, on SmallNORB."""
    return draw_trade_off(make, results.members, MIG, DISTANCE)


@experiment(
    "msvae2020/fig4",
    year=2020,
    reference="msvae2020, figure 4",
    **on_cars(BASE, MS, LARGE, BIG, BIG_VAE, more=[SIZES]),
    scores=(DISTANCE, MIG, RE_ENCODED),
    contrast=(BASE, MS),
    claims=(
        Claim(
            "MS-VAE's reconstructions are nearer to the data than beta-TCVAE's and beta-TCVAE-L's, at every beta",
            combine(
                compare_at_each(BASE, MS, "beta", DISTANCE, high=0.0),
                compare_at_each(LARGE, MS, "beta", DISTANCE, high=0.0),
            ),
        ),
        UNCHANGED,
        STILL_SHOWN,
        Claim("at the lowest beta, nearer than Big-VAE's", compare_at_each(BIG_VAE, MS, "beta", DISTANCE, high=0.0)),
        Claim("MIG rises with beta on Cars3D", compare_settings(BASE, "beta", 1, 10, MIG, low=0.0)),
        Claim(
            "beta-TCVAE has a higher MIG than beta-TCVAE-L, on average over beta",
            compare_on_average(LARGE, BASE, "beta", MIG, low=0.0),
        ),
    ),
)
def fig4(results: Results, make: Any) -> Any:
    """Distance of reconstructions and MIG over beta, and against each other, on Cars3D."""
    return draw_curves(make, results, "beta", (DISTANCE, MIG), across=(MIG, DISTANCE))


@experiment(
    "msvae2020/fig4-student",
    year=2020,
    reference="msvae2020, figure 4",
    **on_cars(BASE, MS, STUDENT, more=[SIZES, "Apart from fig4, since its loss has another scale, and settles later."]),
    scores=(DISTANCE, MIG, RE_ENCODED),
    contrast=(STUDENT, MS),
    claims=(
        Claim(
            "MS-VAE's reconstructions are nearer to the data than those of Jacobian supervision",
            compare_at_each(STUDENT, MS, "beta", DISTANCE, high=0.0),
        ),
        Claim(
            f"the student keeps its teacher's MIG (within {SAME}, ours)",
            compare_pairs(
                BASE,
                STUDENT,
                PAIR,
                (MIG, MIG),
                lambda d: d.mean(-1),
                f"mean change of {MIG}, {STUDENT}",
                low=-SAME,
                high=SAME,
            ),
        ),
    ),
)
def fig4_student(results: Results, make: Any) -> Any:
    """Distance of reconstructions and MIG of MS-VAE and of a student of the same teacher, on Cars3D."""
    return draw_curves(make, results, "beta", (DISTANCE, MIG), across=(MIG, DISTANCE))


def slightly(score: str) -> Finding:
    """A score falls by less from beta-TCVAE to MS-VAE than the distance does, each as a share of beta-TCVAE's."""

    def evidence(results: Results) -> list[Evidence]:
        cells = group_series(results, (BASE, MS), "beta", score, DISTANCE)

        def gap(c: Cells) -> np.ndarray:
            fall = 1 - mean_curve(c, MS) / mean_curve(c, BASE)
            return (fall[..., 0] - fall[..., 1]).mean(-1)

        return [Evidence(f"share by which {score} falls, less that of {DISTANCE}", estimate(cells, gap), high=0.0)]

    return evidence


def pixel_claims(name: str, score: str) -> tuple[Claim, ...]:
    """What is said of a pixel error."""
    lower = combine(
        compare_on_average(BASE, MS, "beta", score, high=0.0), compare_on_average(LARGE, MS, "beta", score, high=0.0)
    )
    return (
        Claim(f"MS-VAE's {name} error is below beta-TCVAE's and beta-TCVAE-L's, on average over beta", lower),
        Claim(f"{name} is only slightly better: it falls by a smaller share than the distance (ours)", slightly(score)),
    )


@experiment(
    "msvae2020/fig34",
    year=2020,
    reference="msvae2020, figure 34",
    **on_cars(BASE, MS, LARGE),
    scores=(L1, DISTANCE),
    contrast=(BASE, MS),
    claims=pixel_claims("L1", L1),
)
def fig34(results: Results, make: Any) -> Any:
    """L1 error of reconstructions over beta, on Cars3D."""
    return draw_curves(make, results, "beta", (L1,))


@experiment(
    "msvae2020/fig35",
    year=2020,
    reference="msvae2020, figure 35",
    **on_cars(BASE, MS, LARGE),
    scores=(L2, DISTANCE),
    contrast=(BASE, MS),
    claims=pixel_claims("L2", L2),
)
def fig35(results: Results, make: Any) -> Any:
    """L2 error of reconstructions over beta, on Cars3D."""
    return draw_curves(make, results, "beta", (L2,))
