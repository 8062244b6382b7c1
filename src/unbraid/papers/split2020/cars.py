"""The split encoder on Cars3D: split2020's figures 6, 7, 8 and 10."""

from typing import Any

import numpy as np

from unbraid.experiments.base import Claim, Evidence, Results, experiment
from unbraid.experiments.drawing import draw_decoded
from unbraid.experiments.evidence import Finding, combine
from unbraid.experiments.statistics import Cells, estimate
from unbraid.papers.split2020.setup import (
    CORRELATED,
    ERROR,
    FACTOR,
    KL,
    MIG,
    MODELS,
    SCORES,
    WIDE,
    beats_wide,
    best_of_each,
    on_cars,
    smaller_error,
    split_changes,
    unrelated,
)
from unbraid.report.sweep_figures import draw_boxes, draw_scatter


@experiment(
    "split2020/fig6",
    year=2020,
    reference="split2020, figure 6",
    **on_cars(MODELS, ("split", "wide")),
    scores=SCORES,
    claims=(
        Claim("the split encoder lowers the MIG of VAE", split_changes("VAE", MIG, high=0.0)),
        Claim("it raises the MIG of FactorVAE", split_changes("FactorVAE", MIG, low=0.0)),
        Claim(WIDE, beats_wide(["FactorVAE"], MIG, low=0.0)),
    ),
)
def fig6(results: Results, make: Any) -> Any:
    """MIG of VAE and FactorVAE on Cars3D, with and without split encoder."""
    return draw_boxes(make, results.members, MIG, "recipe")


@experiment(
    "split2020/fig7",
    year=2020,
    reference="split2020, figure 7",
    **on_cars(MODELS, ("split", "wide")),
    scores=SCORES,
    claims=(
        Claim("the split encoder lowers the reconstruction error of both", smaller_error(MODELS)),
        Claim(
            "it raises the KL of both",
            combine(*(split_changes(model, KL, low=0.0) for model in MODELS)),
        ),
    ),
)
def fig7(results: Results, make: Any) -> Any:
    """KL against reconstruction error of VAE and FactorVAE on Cars3D, with and without split encoder."""
    return draw_scatter(make, results.members, ERROR, KL)


def of_the_best(model: str, score: int, what: str, **where: float) -> Finding:
    """MIG (0) or error (1) of the run with the highest MIG, split encoder minus vanilla one."""

    def chosen(rows: np.ndarray) -> np.ndarray:
        best = rows[..., 0].argmax(-1)[..., None]
        return np.take_along_axis(rows[..., score], best, -1)[..., 0]

    def evidence(results: Results) -> list[Evidence]:
        cells: Cells = {name: results.group_scores(name, None, MIG, ERROR)[None] for name in (model, f"{model}, split")}
        found = estimate(cells, lambda c: chosen(c[f"{model}, split"]) - chosen(c[model]))
        return [Evidence(f"{what} of the best model, {model}, split minus {model}", found, **where)]

    return evidence


@experiment(
    "split2020/fig8",
    year=2020,
    reference="split2020, figure 8",
    **on_cars(MODELS, ("split",)),
    scores=SCORES,
    claims=(
        Claim(
            "the models that are shown have better reconstructions with a split encoder",
            combine(*(of_the_best(model, 1, ERROR, high=0.0) for model in MODELS)),
        ),
        Claim(
            "traversals of FactorVAE with a split encoder are more disentangled",
            of_the_best("FactorVAE", 0, MIG, low=0.0),
        ),
    ),
)
def fig8(results: Results, make: Any) -> Any:
    """Reconstructions and traversals from -2 to 2 of the models with the highest MIG on Cars3D."""
    return draw_decoded(make, results, best_of_each(results), span=2.0)


@experiment(
    "split2020/fig10",
    year=2020,
    reference="split2020, figure 10",
    **on_cars(MODELS, ("split", "wide"), CORRELATED),
    scores=SCORES,
    claims=(Claim("the FactorVAE score is not well correlated with MIG", unrelated(MODELS)),),
)
def fig10(results: Results, make: Any) -> Any:
    """FactorVAE score of VAE and FactorVAE on Cars3D, with and without split encoder."""
    return draw_boxes(make, results.members, FACTOR, "recipe")
