"""Encoders on dSprites (split2020's figures 2, 3, 4, 5, 9 and 11) and on Cars3D (figures 6, 7, 8 and 10)."""

from typing import Any

import numpy as np

from unbraid.experiments.base import Claim, Results, experiment
from unbraid.experiments.drawing import draw_decoded
from unbraid.experiments.evidence import Finding, combine, compare_means, find_one, pool_runs, pool_series
from unbraid.papers.split2020.setup import (
    CORRELATED,
    ERROR,
    FACTOR,
    KL,
    MIG,
    MODELS,
    WIDE,
    build_car_facts,
    build_sprite_facts,
    compare_split,
    correlate_with_mig,
    select_best_of_each,
)
from unbraid.report.sweep_figures import draw_boxes, draw_scatter


@experiment(
    "split2020/fig2",
    **build_sprite_facts(
        "figure 2",
        MODELS,
        ("correlated noise", "shared"),
        "Correlated noise adds the constant 9.26 to the KL and does not change its gradient. MIG looks at one latent "
        "at a time, whose posterior is the same without the correlation.",
    ),
    claims=tuple(
        Claim(f"{what} lowers the MIG of {model}", compare_means(model, f"{model}, {encoder}", MIG, high=0.0))
        for model in MODELS
        for encoder, what in (("correlated noise", "correlated noise (.9)"), ("shared", "an encoder that shares all"))
    ),
)
def fig2(results: Results, make: Any) -> Any:
    """MIG of VAE and FactorVAE on dSprites, with correlated noise and with a shared-parameter encoder."""
    return draw_boxes(make, results.members, MIG, "recipe")


WELL_DISENTANGLED = 0.3
"""A model is well disentangled if its MIG is above this."""


@experiment(
    "split2020/fig3",
    **build_sprite_facts("figure 3", MODELS, ("split", "wide")),
    claims=(
        *(
            Claim(f"the split encoder raises the MIG of {model}", compare_split([model], MIG, low=0.0))
            for model in MODELS
        ),
        Claim(WIDE, compare_split(MODELS, MIG, ", wide", low=0.0)),
    ),
)
def fig3(results: Results, make: Any) -> Any:
    """MIG of VAE and FactorVAE on dSprites, with and without split encoder."""
    return draw_boxes(make, results.members, MIG, "recipe")


@experiment(
    "split2020/fig4",
    **build_sprite_facts("figure 4", MODELS, ("split", "wide")),
    claims=(
        Claim("the split encoder lowers the reconstruction error of both", compare_split(MODELS, ERROR, high=0.0)),
        Claim("it lowers the KL of VAE", compare_split(["VAE"], KL, high=0.0)),
        Claim("it raises the KL of FactorVAE", compare_split(["FactorVAE"], KL, low=0.0)),
        Claim(
            "its error is lower than that of as many parameters in a vanilla encoder (ours)",
            compare_split(MODELS, ERROR, ", wide", high=0.0),
        ),
    ),
)
def fig4(results: Results, make: Any) -> Any:
    """KL against reconstruction error of VAE and FactorVAE on dSprites, with and without split encoder."""
    return draw_scatter(make, results.members, ERROR, KL)


def find_highest() -> Finding:
    """Find the MIG of the best run of each series."""
    names = [name for model in MODELS for name in (model, f"{model}, split")]
    return combine(
        *(
            pool_runs([name], [MIG], lambda s: s[..., 0].max(-1), f"highest MIG of {name}", low=WELL_DISENTANGLED)
            for name in names
        )
    )


@experiment(
    "split2020/fig5",
    **build_sprite_facts(
        "figure 5", MODELS, ("split",), f"Well disentangled means a MIG above {WELL_DISENTANGLED} (ours)."
    ),
    claims=(Claim("the best of all four models are well disentangled", find_highest()),),
)
def fig5(results: Results, make: Any) -> Any:
    """Reconstructions and traversals from -2 to 2 of the models with the highest MIG on dSprites."""
    return draw_decoded(make, results, select_best_of_each(results), span=2.0)


@experiment(
    "split2020/fig9",
    **build_sprite_facts("figure 9", MODELS, ("split", "wide"), CORRELATED),
    claims=(Claim("the FactorVAE score is not well correlated with MIG", correlate_with_mig()),),
)
def fig9(results: Results, make: Any) -> Any:
    """FactorVAE score of VAE and FactorVAE on dSprites, with and without split encoder."""
    return draw_boxes(make, results.members, FACTOR, "recipe")


@experiment(
    "split2020/fig11",
    **build_sprite_facts("figure 11", ["beta-VAE"], ("split", "wide")),
    claims=(
        Claim("the split encoder raises the MIG of beta-VAE", compare_split(["beta-VAE"], MIG, low=0.0)),
        Claim("it raises its KL", compare_split(["beta-VAE"], KL, low=0.0)),
        Claim("it lowers its reconstruction error", compare_split(["beta-VAE"], ERROR, high=0.0)),
        Claim(WIDE, compare_split(["beta-VAE"], MIG, ", wide", low=0.0)),
    ),
)
def fig11(results: Results, make: Any) -> Any:
    """MIG, and KL against reconstruction error, of beta-VAE on dSprites, with and without split encoder."""
    return draw_scatter(make, results.members, ERROR, KL)


@experiment(
    "split2020/fig6",
    **build_car_facts("figure 6", MODELS, ("split", "wide")),
    claims=(
        Claim("the split encoder lowers the MIG of VAE", compare_split(["VAE"], MIG, high=0.0)),
        Claim("it raises the MIG of FactorVAE", compare_split(["FactorVAE"], MIG, low=0.0)),
        Claim(WIDE, compare_split(["FactorVAE"], MIG, ", wide", low=0.0)),
    ),
)
def fig6(results: Results, make: Any) -> Any:
    """MIG of VAE and FactorVAE on Cars3D, with and without split encoder."""
    return draw_boxes(make, results.members, MIG, "recipe")


@experiment(
    "split2020/fig7",
    **build_car_facts("figure 7", MODELS, ("split", "wide")),
    claims=(
        Claim("the split encoder lowers the reconstruction error of both", compare_split(MODELS, ERROR, high=0.0)),
        Claim(
            "it raises the KL of both",
            compare_split(MODELS, KL, low=0.0),
        ),
    ),
)
def fig7(results: Results, make: Any) -> Any:
    """KL against reconstruction error of VAE and FactorVAE on Cars3D, with and without split encoder."""
    return draw_scatter(make, results.members, ERROR, KL)


def compare_best(model: str, score: int, what: str, **bounds: float) -> Finding:
    """Find MIG (0) or error (1) of the run with the highest MIG, split encoder minus vanilla one."""

    def choose(rows: np.ndarray) -> np.ndarray:
        best = rows[..., 0].argmax(-1)[..., None]
        return np.take_along_axis(rows[..., score], best, -1)[..., 0]

    split = f"{model}, split"
    return find_one(
        f"{what} of the best model, {split} minus {model}",
        pool_series(model, split, scores=[MIG, ERROR]),
        lambda c: choose(c[split]) - choose(c[model]),
        **bounds,
    )


@experiment(
    "split2020/fig8",
    **build_car_facts("figure 8", MODELS, ("split",)),
    claims=(
        Claim(
            "the models that are shown have better reconstructions with a split encoder",
            combine(*(compare_best(model, 1, ERROR, high=0.0) for model in MODELS)),
        ),
        Claim(
            "traversals of FactorVAE with a split encoder are more disentangled",
            compare_best("FactorVAE", 0, MIG, low=0.0),
        ),
    ),
)
def fig8(results: Results, make: Any) -> Any:
    """Reconstructions and traversals from -2 to 2 of the models with the highest MIG on Cars3D."""
    return draw_decoded(make, results, select_best_of_each(results), span=2.0)


@experiment(
    "split2020/fig10",
    **build_car_facts("figure 10", MODELS, ("split", "wide"), CORRELATED),
    claims=(Claim("the FactorVAE score is not well correlated with MIG", correlate_with_mig()),),
)
def fig10(results: Results, make: Any) -> Any:
    """FactorVAE score of VAE and FactorVAE on Cars3D, with and without split encoder."""
    return draw_boxes(make, results.members, FACTOR, "recipe")
