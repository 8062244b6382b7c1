"""Traversals on photographs and chairs: chen2018's figures 1, 6, 7 and appendix I.

What an attribute looks like is for readers to judge; what is tested is whether a model uses as many latents as the
figure needs.
"""

from typing import Any

from unbraid.experiments.base import Claim, Results, Scale, StandIn, experiment
from unbraid.experiments.drawing import draw_traversals, format_title
from unbraid.experiments.evidence import compare_means, pool_runs
from unbraid.papers.chen2018.setup import SMALL, SMOKE, TCVAE, VAE

ACTIVE = "units/active"
METRICS = (ACTIVE, "elbo", "reconstruction/nats")
SCORES = (ACTIVE, "elbo/closed-form")
ATTRIBUTES = 10
"""Attributes that beta-TCVAE finds on CelebA are more than these."""

CELEBA: dict[str, Any] = {
    "data": StandIn("celeba", "sprites"),
    "network": "conv-chen",
    "encoder.widths": (64, 128, 128, 256, 512),
    "decoder.widths": (64, 128, 128, 256, 512),
    "z": 32,
    "batch": 1000,
    "steps": 10_000,
}
CHAIRS: dict[str, Any] = {
    "data": StandIn("chairs3d", "sprites"),
    "network": "conv-chen",
    "batch": 2048,
    "steps": 10_000,
}
SHARED = {"VAE": {"beta": [1, 4]}, "beta-VAE": {"beta": [1, 4]}, "beta-TCVAE": {"beta": [1, 4]}}
"""At `smoke`, the sweeps of figure 2."""

ONLY = {"VAE": {"beta": 1}, "beta-VAE": {"beta": [4, 15]}, "beta-TCVAE": {"beta": [4, 15]}}


def scales(full: dict[str, Any]) -> dict[str, Scale]:
    """Photographs or chairs where their files are here, and sprites elsewhere."""
    return {
        "smoke": Scale({**SMOKE, "seed": range(2)}, per_series=SHARED),
        "small": Scale({**SMALL, "seed": range(3)}),
        "budget": Scale({**full, "precision": "bf16", "seed": range(3)}),
        "paper": Scale({**full, "seed": range(3)}),
    }


FACES = (
    "CelebA wants the user's own files; at the other scales, and without them, sprites stand in. They have no such "
    "attributes, so pictures and verdicts on them say nothing about faces.",
    "beta = 15 for both; 32 latents, 10,000 steps (50 epochs) and 3 seeds are ours. Shown are the runs with the most "
    f"active latents ({ACTIVE}), and of these the most informative latents first.",
)
MORE = Claim("beta-TCVAE uses more latents than beta-VAE", compare_means("beta-VAE", "beta-TCVAE", ACTIVE, low=0.0))


def richest(results: Results, make: Any, **options: Any) -> Any:
    """Traversals of the run of each series that uses the most latents."""
    best = [results.select_best(name, ACTIVE) for name in results.series]
    return draw_traversals(make, results, {format_title(member, ACTIVE): member for member in best}, **options)


@experiment(
    "chen2018/fig1",
    year=2018,
    reference="chen2018, figure 1",
    series={"VAE": {**VAE, "beta": 1}, "beta-VAE": {**VAE, "beta": 15}, "beta-TCVAE": {**TCVAE, "beta": 15}},
    only=ONLY,
    scales=scales(CELEBA),
    metrics=METRICS,
    scores=SCORES,
    claims=(MORE,),
    notes=(*FACES, "The paper shows one latent: a mustache, which is tied to a smile in the VAE and lost in beta-VAE."),
)
def fig1(results: Results, make: Any) -> Any:
    """Traversals of a VAE, a beta-VAE and a beta-TCVAE on CelebA."""
    return richest(results, make)


@experiment(
    "chen2018/fig6",
    year=2018,
    reference="chen2018, figure 6",
    series={"beta-VAE": {**VAE, "beta": 4}, "beta-TCVAE": {**TCVAE, "beta": 4}},
    only={name: {"beta": 4} for name in ("beta-VAE", "beta-TCVAE")},
    scales=scales(CHAIRS),
    metrics=METRICS,
    scores=SCORES,
    claims=(MORE,),
    notes=(
        "3D chairs want the official files; at the other scales, and without them, sprites stand in.",
        "The paper's beta-TCVAE learns two properties more than beta-VAE: material, and the rotation of swivel chairs. "
        "beta = 4, the steps and 3 seeds are ours.",
    ),
)
def fig6(results: Results, make: Any) -> Any:
    """Traversals of a beta-VAE and a beta-TCVAE on 3D chairs, from -2 to 2."""
    return richest(results, make, span=2.0)


@experiment(
    "chen2018/fig7",
    year=2018,
    reference="chen2018, figure 7",
    series={"beta-VAE": {**VAE, "beta": 15}, "beta-TCVAE": {**TCVAE, "beta": 15}},
    only=ONLY,
    scales=scales(CELEBA),
    metrics=METRICS,
    scores=SCORES,
    claims=(MORE,),
    notes=(*FACES, "The traversal is wide, to show what lies in regions of low probability."),
)
def fig7(results: Results, make: Any) -> Any:
    """Wide traversals of a beta-VAE and a beta-TCVAE on CelebA."""
    return richest(results, make, span=6.0)


@experiment(
    "chen2018/appI",
    year=2018,
    reference="chen2018, appendix I",
    series={"beta-TCVAE": {**TCVAE, "beta": 15}},
    only=ONLY,
    scales=scales(CELEBA),
    metrics=METRICS,
    scores=SCORES,
    claims=(
        Claim(
            f"beta-TCVAE discovers more than {ATTRIBUTES} attributes",
            pool_runs(
                ["beta-TCVAE"],
                [ACTIVE],
                lambda scores: scores[..., 0].mean(-1),
                "mean number of active latents, which bounds the number of attributes",
                low=float(ATTRIBUTES),
            ),
        ),
    ),
    notes=FACES,
)
def app_i(results: Results, make: Any) -> Any:
    """Traversals of a beta-TCVAE on CelebA, all of its latents."""
    return richest(results, make, span=3.0)
