"""Biased sampling of two factors: chen2018's figure 5, on sprites and on 3D faces."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from unbraid.experiments.base import Scale, experiment
from unbraid.experiments.evidence import Finding, combine, find_one, group_series
from unbraid.experiments.results import Results
from unbraid.experiments.stand_in import StandIn
from unbraid.experiments.statistics import Cells
from unbraid.metrics import Score, restricted
from unbraid.papers.chen2018.methods import LARGE_GAN, SMALL_GAN, median
from unbraid.papers.chen2018.setup import BUDGET, FACES, FACES_BUDGET, PAPER, SMALL, SMOKE, TCVAE, VAE, on_faces
from unbraid.report.sweep_figures import draw_boxes
from unbraid.report.tables import Member

POSITIONS = "mig/exact of the two biased factors"
BIASED_FACTORS = ("posX", "posY", "azimuth", "elevation")
CASES = {
    "A": "uniform and independent",
    "B": "independent, not uniform",
    "C": "uncorrelated, dependent",
    "D": "correlated",
}
ROWS = {"smoke": 72, "small": 2_304, "budget": 9_216, "paper": 9_216}
"""Rows of every case at each scale: half of those of case A, since C can keep little more than half."""

FACES_ROWS = 5_775
TWO_FACTORS: dict[str, Any] = {"data.orientations": 1}


def list_splits(scale: str, factors: str = "posX,posY", rows: int | None = None) -> dict[str, str]:
    """Return the rule of each case; all of them keep as many rows."""
    return {case: f"bias:{factors}:{case}:{rows or ROWS[scale]}" for case in CASES}


def case_of(rule: str) -> str:
    return rule.split(":")[2]


def mig_of_two(scores: Mapping[str, Score]) -> Score:
    """Return MIG of the two factors whose sampling is biased; the others are noise."""
    gaps = scores["mig/exact"].details["gaps"]
    return restricted(scores["mig/exact"], [name for name in gaps if name in BIASED_FACTORS])


def build_biased_scale(
    settings: Mapping[str, Any],
    seeds: int,
    gan: Mapping[str, Any],
    splits: Mapping[str, str],
    cases: str = "ABCD",
    **others: Any,
) -> Scale:
    """Return a scale with three methods in some of the cases."""
    rules = [splits[case] for case in cases]
    shared = {**settings, **others, "split": rules, "seed": range(seeds)}
    return Scale(shared, per_series={"InfoGAN": {**gan, "z": 2, "noise": 8}})


def compare_in_case(case: str, other: str) -> Finding:
    """Find the median MIG of beta-TCVAE minus that of another method, in one case."""

    def read_cells(results: Results) -> Cells:
        cells = group_series(results, (other, "beta-TCVAE"), "split", POSITIONS)
        return {name: rows for (name, split), rows in cells.items() if case_of(split) == case}

    def gap(cells: Cells) -> np.ndarray:
        return median(cells["beta-TCVAE"]) - median(cells[other])

    return find_one(f"case {case}, median MIG, beta-TCVAE minus {other}", read_cells, gap, False, low=0.0)


def draw_cases(results: Results, make: Any) -> Any:
    def name(member: Member) -> str:
        case = case_of(member.settings["split"])
        return f"{case}: {CASES[case]}"

    shown = [m._replace(settings={**m.settings, "case": name(m)}) for m in results.members]
    return draw_boxes(make, shown, POSITIONS, "case")


SUPERIOR = {
    f"beta-TCVAE is superior to beta-VAE and InfoGAN in case {case} ({what})": combine(
        *(compare_in_case(case, other) for other in ("beta-VAE", "InfoGAN"))
    )
    for case, what in CASES.items()
}
SHARED: dict[str, Any] = {
    "series": {"beta-VAE": {**VAE, "beta": 4}, "InfoGAN": {"recipe": "info-gan"}, "beta-TCVAE": {**TCVAE, "beta": 4}},
    "metrics": ("mig/exact",),
    "derived": {POSITIONS: mig_of_two},
    "ranges": {POSITIONS: (0.0, 1.0)},
    "scores": (POSITIONS,),
}
LONG_GAN = {**LARGE_GAN, "steps": 18_000}
SMALL_SPRITES: dict[str, Any] = {**SMALL, "data": "sprites", "data.size": 32, "data.positions": 16}
SMALL_SCALES = {
    "smoke": build_biased_scale(
        {**SMOKE, **TWO_FACTORS}, 1, {**SMALL_GAN, "batch": 32}, list_splits("smoke"), "AD", steps=2, batch=32
    ),
    "small": build_biased_scale({**SMALL_SPRITES, **TWO_FACTORS}, 3, SMALL_GAN, list_splits("small")),
}
CHOICES = (
    "In cases B to D the most likely combination is 4 times as likely as the least likely one; the formulas are ours "
    "(`unbraid.data.biased_sampling`). beta = 4 for both; InfoGAN has 2 codes and 8 noise variables.",
    "All cases train on as many rows: without a bound, A has twice as many as C, and a comparison of cases would also "
    "compare amounts of data. The number of steps is ours.",
)
experiment.add(
    "chen2018/fig5",
    "MIG of beta-VAE, InfoGAN and beta-TCVAE on two factors that are sampled in four ways.",
    draw_cases,
    **SHARED,
    scales={
        **SMALL_SCALES,
        "budget": build_biased_scale({**BUDGET, **TWO_FACTORS}, 10, LONG_GAN, list_splits("budget"), steps=9_000),
        "paper": build_biased_scale(
            {**PAPER, **TWO_FACTORS, "data": "sprites"}, 10, LONG_GAN, list_splits("paper"), steps=9_000
        ),
    },
    claims=SUPERIOR,
    notes=(
        "The paper takes 3D faces with fixed light (fig5-faces). Here all scales take sprites with a fixed "
        "orientation: posX and posY are biased; shape and scale are noise with the same distribution at each position. "
        "MIG is that of the two positions, over all rows.",
        *CHOICES,
    ),
)
PLACES_INSTEAD = {"data.lighting": None, **TWO_FACTORS, "split": list(list_splits("paper").values())}
ONE_LIGHT: dict[str, Any] = {"data": StandIn("faces3d", "sprites", PLACES_INSTEAD), "data.lighting": 5}
FACE_SPLITS = list_splits("paper", "azimuth,elevation", FACES_ROWS)
experiment.add(
    "chen2018/fig5-faces",
    "MIG of beta-VAE, InfoGAN and beta-TCVAE on 3D faces, whose pose is sampled in four ways.",
    draw_cases,
    **SHARED,
    scales={
        **SMALL_SCALES,
        "budget": build_biased_scale({**FACES_BUDGET, **ONE_LIGHT}, 10, LONG_GAN, FACE_SPLITS, steps=9_000),
        "paper": build_biased_scale({**FACES, **ONE_LIGHT}, 10, LONG_GAN, FACE_SPLITS, steps=9_000),
    },
    claims=on_faces(SUPERIOR),
    notes=(
        "3D faces need your own renderings (`unbraid data`): azimuth and elevation are biased, the light is fixed, "
        "identity is noise. Without these files and at `smoke` and `small`, sprites replace them as in fig5, and say "
        "nothing about faces.",
        *CHOICES,
    ),
)
