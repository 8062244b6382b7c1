"""Traversals on photographs and chairs: chen2018's figures 1, 6, 7 and appendix I.

Readers judge what an attribute looks like. The claims test whether a model uses as many latents as the figure needs.
"""

from typing import Any

from unbraid.experiments.base import Scale, experiment
from unbraid.experiments.drawing import Draw, draw_traversals, format_title
from unbraid.experiments.evidence import compare_means, find_mean
from unbraid.experiments.results import Results
from unbraid.experiments.stand_in import StandIn
from unbraid.papers.chen2018.setup import SMALL, SMOKE, TCVAE, VAE

ACTIVE = "units/active"
METRICS = (ACTIVE, "elbo", "reconstruction/nats")
SCORES = (ACTIVE, "elbo/closed-form")
MIN_ATTRIBUTES = 10
"""beta-TCVAE finds more attributes than these on CelebA."""

CONV: dict[str, Any] = {"network": "conv-chen", "steps": 10_000}
WIDTHS = (64, 128, 128, 256, 512)
CELEBA = {**CONV, "data": StandIn("celeba", "sprites"), "z": 32, "batch": 1000}
CELEBA |= {"encoder.widths": WIDTHS, "decoder.widths": WIDTHS}
CHAIRS = {**CONV, "data": StandIn("chairs3d", "sprites"), "batch": 2048}
SHARED = {name: {"beta": [1, 4]} for name in ("VAE", "beta-VAE", "beta-TCVAE")}
"""Settings that share the sweeps of figure 2 at `smoke`."""

ONLY = {"VAE": {"beta": 1}, "beta-VAE": {"beta": [4, 15]}, "beta-TCVAE": {"beta": [4, 15]}}


def build_facts(data: dict[str, Any], **others: Any) -> dict[str, Any]:
    """Return the facts of a figure on photographs or chairs; sprites replace them at small scales."""
    scales = {
        "smoke": Scale({**SMOKE, "seed": range(2)}, per_series=SHARED),
        "small": Scale({**SMALL, "seed": range(3)}),
        "budget": Scale({**data, "precision": "bf16", "seed": range(3)}),
        "paper": Scale({**data, "seed": range(3)}),
    }
    return {"metrics": METRICS, "scores": SCORES, "only": ONLY, "scales": scales, **others}


FACES = (
    "CelebA needs your own files. Sprites replace it without them, and at the other scales. They have no such "
    "attributes, so pictures and verdicts on them say nothing about faces.",
    "beta = 15 for both; 32 latents, 10,000 steps (50 epochs) and 3 seeds are ours. The figure shows the run with the "
    f"most active latents ({ACTIVE}) of each series, the most informative latents first.",
)
BOUND = "which bounds the number of attributes"
MORE_LATENTS = {"beta-TCVAE uses more latents than beta-VAE": compare_means("beta-VAE", "beta-TCVAE", ACTIVE, low=0.0)}


def draw_richest(**options: Any) -> Draw:
    """Return a function that draws traversals of the run of each series that uses the most latents."""

    def draw(results: Results, make: Any) -> Any:
        best = [results.select_best(name, ACTIVE) for name in results.series]
        return draw_traversals(make, results, {format_title(member, ACTIVE): member for member in best}, **options)

    return draw


experiment.add(
    "chen2018/fig1",
    "Traversals of a VAE, a beta-VAE and a beta-TCVAE on CelebA.",
    draw_richest(),
    **build_facts(CELEBA),
    series={"VAE": {**VAE, "beta": 1}, "beta-VAE": {**VAE, "beta": 15}, "beta-TCVAE": {**TCVAE, "beta": 15}},
    claims=MORE_LATENTS,
    notes=(*FACES, "The paper shows one latent: a mustache, which is tied to a smile in the VAE and lost in beta-VAE."),
)
experiment.add(
    "chen2018/fig6",
    "Traversals of a beta-VAE and a beta-TCVAE on 3D chairs, from -2 to 2.",
    draw_richest(span=2.0),
    **build_facts(CHAIRS, only={name: {"beta": 4} for name in ("beta-VAE", "beta-TCVAE")}),
    series={"beta-VAE": {**VAE, "beta": 4}, "beta-TCVAE": {**TCVAE, "beta": 4}},
    claims=MORE_LATENTS,
    notes=(
        "3D chairs need the official files. Sprites replace them without these files, and at the other scales.",
        "The paper's beta-TCVAE learns two properties more than beta-VAE: material, and the rotation of swivel chairs. "
        "beta = 4, the steps and 3 seeds are ours.",
    ),
)
experiment.add(
    "chen2018/fig7",
    "Wide traversals of a beta-VAE and a beta-TCVAE on CelebA.",
    draw_richest(span=6.0),
    **build_facts(CELEBA),
    series={"beta-VAE": {**VAE, "beta": 15}, "beta-TCVAE": {**TCVAE, "beta": 15}},
    claims=MORE_LATENTS,
    notes=(*FACES, "The traversal is wide, to show regions of low probability."),
)
experiment.add(
    "chen2018/appI",
    "Traversals of a beta-TCVAE on CelebA, all of its latents.",
    draw_richest(span=3.0),
    **build_facts(CELEBA),
    series={"beta-TCVAE": {**TCVAE, "beta": 15}},
    claims={
        f"beta-TCVAE discovers more than {MIN_ATTRIBUTES} attributes": find_mean(
            "beta-TCVAE", ACTIVE, f"mean number of active latents, {BOUND}", low=float(MIN_ATTRIBUTES)
        )
    },
    notes=FACES,
)
