"""Encoders on dSprites (split2020's figures 2, 3, 4, 5, 9 and 11) and on Cars3D (figures 6, 7, 8 and 10)."""

from typing import Any

import numpy as np

from unbraid.experiments.base import Claim, Results, experiment
from unbraid.experiments.drawing import draw_decoded, format_title
from unbraid.experiments.evidence import Finding, combine, compare_extremes, compare_means, exists, pool_runs
from unbraid.experiments.statistics import pearson
from unbraid.papers.split2020.setup import ERROR, FACTOR, KL, MIG, MODELS, build_facts, build_series, compare_split
from unbraid.report.sweep_figures import draw_boxes, draw_scatter

SPLIT = list(build_series(MODELS, ["split"]))
WIDE = "the gain in MIG is more than that of as many parameters in a vanilla encoder (ours)"
WELL_CORRELATED, WELL_DISENTANGLED = 0.5, 0.3
"""Correlation above which two scores are well correlated, and MIG above which a model is well disentangled."""

CORRELATED = f"Well correlated means above {WELL_CORRELATED} (ours)."
NOT_CORRELATED = Claim(
    "the FactorVAE score is not well correlated with MIG",
    pool_runs(
        SPLIT,
        [MIG, FACTOR],
        lambda s: pearson(s[..., 0], s[..., 1]),
        "correlation of the FactorVAE score and MIG, over all runs of both models and encoders",
        high=WELL_CORRELATED,
    ),
)


def draw_best_of_each(results: Results, make: Any) -> Any:
    """Draw reconstructions and traversals from -2 to 2 of the run of each series with the highest MIG."""
    best = [results.select_best(name, MIG) for name in results.series]
    return draw_decoded(make, results, {format_title(member, MIG): member for member in best}, span=2.0)


@experiment(
    "split2020/fig2",
    **build_facts(
        "Correlated noise adds the constant 9.26 to the KL and does not change its gradient. MIG looks at one latent "
        "at a time, whose posterior is the same without the correlation.",
        encoders=("correlated noise", "shared"),
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


@experiment(
    "split2020/fig3",
    **build_facts(),
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
    **build_facts(),
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


HIGHEST = [exists(name, MIG, lambda mig: mig > WELL_DISENTANGLED, f"a MIG above {WELL_DISENTANGLED}") for name in SPLIT]


@experiment(
    "split2020/fig5",
    **build_facts(f"Well disentangled means a MIG above {WELL_DISENTANGLED} (ours).", encoders=["split"]),
    claims=(Claim("the best of all four models are well disentangled", combine(*HIGHEST)),),
)
def fig5(results: Results, make: Any) -> Any:
    """Reconstructions and traversals from -2 to 2 of the models with the highest MIG on dSprites."""
    return draw_best_of_each(results, make)


@experiment(
    "split2020/fig9",
    **build_facts(CORRELATED),
    claims=(NOT_CORRELATED,),
)
def fig9(results: Results, make: Any) -> Any:
    """FactorVAE score of VAE and FactorVAE on dSprites, with and without split encoder."""
    return draw_boxes(make, results.members, FACTOR, "recipe")


@experiment(
    "split2020/fig11",
    **build_facts(models=["beta-VAE"]),
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
    **build_facts(cars=True),
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
    **build_facts(cars=True),
    claims=(
        Claim("the split encoder lowers the reconstruction error of both", compare_split(MODELS, ERROR, high=0.0)),
        Claim("it raises the KL of both", compare_split(MODELS, KL, low=0.0)),
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

    return compare_extremes(model, f"{model}, split", None, [MIG, ERROR], choose, f"{what} of the best model", **bounds)


@experiment(
    "split2020/fig8",
    **build_facts(encoders=["split"], cars=True),
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
    return draw_best_of_each(results, make)


@experiment(
    "split2020/fig10",
    **build_facts(CORRELATED, cars=True),
    claims=(NOT_CORRELATED,),
)
def fig10(results: Results, make: Any) -> Any:
    """FactorVAE score of VAE and FactorVAE on Cars3D, with and without split encoder."""
    return draw_boxes(make, results.members, FACTOR, "recipe")
