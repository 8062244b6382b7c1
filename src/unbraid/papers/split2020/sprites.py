"""Encoders on dSprites: split2020's figures 2, 3, 4, 5, 9 and 11."""

from collections.abc import Sequence
from typing import Any

from unbraid.experiments.base import Claim, Results, experiment
from unbraid.experiments.drawing import draw_decoded
from unbraid.experiments.evidence import Finding, combine, compare_means, pool_runs
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
    on_sprites,
    smaller_error,
    split_changes,
    unrelated,
)
from unbraid.report.sweep_figures import draw_boxes, draw_scatter

# figure 2


@experiment(
    "split2020/fig2",
    year=2020,
    reference="split2020, figure 2",
    **on_sprites(
        MODELS,
        ("correlated noise", "shared"),
        "Correlated noise adds the constant 9.26 to the KL, whose gradient stays as it is; MIG looks at one latent at "
        "a time, whose posterior is what it would be without the correlation.",
    ),
    scores=SCORES,
    claims=tuple(
        Claim(f"{what} lowers the MIG of {model}", compare_means(model, f"{model}, {encoder}", MIG, high=0.0))
        for model in MODELS
        for encoder, what in (("correlated noise", "correlated noise (.9)"), ("shared", "an encoder that shares all"))
    ),
)
def fig2(results: Results, make: Any) -> Any:
    """MIG of VAE and FactorVAE on dSprites, with correlated noise and with a shared-parameter encoder."""
    return draw_boxes(make, results.members, MIG, "recipe")


# figures 3, 4, 5 and 9: the split encoder on dSprites

BEST = 0.3
"""MIG above which a model is well disentangled."""


@experiment(
    "split2020/fig3",
    year=2020,
    reference="split2020, figure 3",
    **on_sprites(MODELS, ("split", "wide")),
    scores=SCORES,
    claims=(
        *(
            Claim(f"the split encoder raises the MIG of {model}", split_changes(model, MIG, low=0.0))
            for model in MODELS
        ),
        Claim(WIDE, beats_wide(MODELS, MIG, low=0.0)),
    ),
)
def fig3(results: Results, make: Any) -> Any:
    """MIG of VAE and FactorVAE on dSprites, with and without split encoder."""
    return draw_boxes(make, results.members, MIG, "recipe")


@experiment(
    "split2020/fig4",
    year=2020,
    reference="split2020, figure 4",
    **on_sprites(MODELS, ("split", "wide")),
    scores=SCORES,
    claims=(
        Claim("the split encoder lowers the reconstruction error of both", smaller_error(MODELS)),
        Claim("it lowers the KL of VAE", split_changes("VAE", KL, high=0.0)),
        Claim("it raises the KL of FactorVAE", split_changes("FactorVAE", KL, low=0.0)),
        Claim(
            "its error is lower than that of as many parameters in a vanilla encoder (ours)",
            beats_wide(MODELS, ERROR, high=0.0),
        ),
    ),
)
def fig4(results: Results, make: Any) -> Any:
    """KL against reconstruction error of VAE and FactorVAE on dSprites, with and without split encoder."""
    return draw_scatter(make, results.members, ERROR, KL)


def highest(models: Sequence[str]) -> Finding:
    """The MIG of the best run of each series."""
    return combine(
        *(
            pool_runs([name], [MIG], lambda s: s[..., 0].max(-1), f"highest MIG of {name}", low=BEST)
            for model in models
            for name in (model, f"{model}, split")
        )
    )


@experiment(
    "split2020/fig5",
    year=2020,
    reference="split2020, figure 5",
    **on_sprites(MODELS, ("split",), f"Well disentangled means a MIG above {BEST} (ours)."),
    scores=SCORES,
    claims=(Claim("the best of all four models are well disentangled", highest(MODELS)),),
)
def fig5(results: Results, make: Any) -> Any:
    """Reconstructions and traversals from -2 to 2 of the models with the highest MIG on dSprites."""
    return draw_decoded(make, results, best_of_each(results), span=2.0)


@experiment(
    "split2020/fig9",
    year=2020,
    reference="split2020, figure 9",
    **on_sprites(MODELS, ("split", "wide"), CORRELATED),
    scores=SCORES,
    claims=(Claim("the FactorVAE score is not well correlated with MIG", unrelated(MODELS)),),
)
def fig9(results: Results, make: Any) -> Any:
    """FactorVAE score of VAE and FactorVAE on dSprites, with and without split encoder."""
    return draw_boxes(make, results.members, FACTOR, "recipe")


# figure 11: beta-VAE


@experiment(
    "split2020/fig11",
    year=2020,
    reference="split2020, figure 11",
    **on_sprites(["beta-VAE"], ("split", "wide")),
    scores=SCORES,
    claims=(
        Claim("the split encoder raises the MIG of beta-VAE", split_changes("beta-VAE", MIG, low=0.0)),
        Claim("it raises its KL", split_changes("beta-VAE", KL, low=0.0)),
        Claim("it lowers its reconstruction error", split_changes("beta-VAE", ERROR, high=0.0)),
        Claim(WIDE, beats_wide(["beta-VAE"], MIG, low=0.0)),
    ),
)
def fig11(results: Results, make: Any) -> Any:
    """MIG, and KL against reconstruction error, of beta-VAE on dSprites, with and without split encoder."""
    return draw_scatter(make, results.members, ERROR, KL)
