"""Smaller batches: chen2018's figure S15, on sprites and on 3D faces."""

from collections.abc import Mapping
from typing import Any

from unbraid.experiments.base import Scale, experiment
from unbraid.experiments.claims import Evidence
from unbraid.experiments.drawing import plot_boxes
from unbraid.experiments.evidence import group_series, mean_curve
from unbraid.experiments.results import Results
from unbraid.experiments.statistics import estimate
from unbraid.papers.chen2018 import setup
from unbraid.papers.chen2018.setup import ELBO, MIG, SMALL, SMOKE, SPRITES, TCVAE, build_facts

KEPT_SHARE = 2 / 3
"""A smaller batch is effective if it keeps this share of the MIG at the full batch."""

BATCHES = {"full batch": 1, "batch / 4": 4, "batch / 16": 16}


def build_batch_scale(settings: Mapping[str, Any], seeds: int, batch: int, steps: int) -> Scale:
    """Return a scale with a full batch and two smaller ones, over the same number of images."""
    shared = {key: value for key, value in settings.items() if key not in ("batch", "steps")}
    per_series = {name: {"batch": batch // part, "steps": steps * part} for name, part in BATCHES.items()}
    return Scale({**shared, "seed": range(seeds)}, per_series=per_series)


def compare_batches(results: Results) -> list[Evidence]:
    """Return MIG of each smaller batch minus two thirds of that of the full one, as evidence."""
    cells, pieces = group_series(results, list(BATCHES), None, MIG), []
    for name in list(BATCHES)[1:]:
        found = estimate(
            cells, lambda c, n=name: (mean_curve(c, n) - KEPT_SHARE * mean_curve(c, "full batch"))[..., 0, 0]
        )
        pieces.append(Evidence(f"MIG with {name} minus two thirds of that with the full batch", found, low=0.0))
    return pieces


EFFECTIVE = {"small batches are still effective": compare_batches}
CHOICES = "Batch sizes and the bound are ours. All series see the same number of images."
SUMMARY = "MIG of beta-TCVAE (beta = 6) with smaller batches"
SHARED: dict[str, Any] = {"series": {name: {**TCVAE, "beta": 6} for name in BATCHES}, "scores": (MIG, ELBO)}
SMALLER = {
    "smoke": build_batch_scale(SMOKE, seeds=2, batch=64, steps=2),
    "small": build_batch_scale(SMALL, seeds=3, batch=256, steps=1000),
}
LARGER = {
    "budget": build_batch_scale(setup.BUDGET, seeds=10, batch=2048, steps=18_000),
    "paper": build_batch_scale(setup.PAPER, seeds=40, batch=2048, steps=18_000),
}
ON_FACES = {
    "budget": build_batch_scale(setup.FACES_BUDGET, seeds=10, batch=2048, steps=setup.FACES_STEPS),
    "paper": build_batch_scale(setup.FACES, seeds=40, batch=2048, steps=setup.FACES_STEPS),
}
experiment.add(
    "chen2018/figS15",
    f"{SUMMARY}.",
    plot_boxes(MIG),
    **build_facts(SMALLER | LARGER, **SHARED),
    claims=EFFECTIVE,
    notes=(SPRITES, f"The paper has 3D faces here (figS15-faces). {CHOICES}"),
)
experiment.add(
    "chen2018/figS15-faces",
    f"{SUMMARY}, on 3D faces.",
    plot_boxes(MIG),
    **build_facts(SMALLER | ON_FACES, **SHARED),
    claims=setup.on_faces(EFFECTIVE),
    notes=(setup.FACES_NOTE, CHOICES),
)
