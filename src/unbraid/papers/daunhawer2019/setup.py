"""Settings of daunhawer2019 at each scale, and what its experiments have in common.

The paper: pairs of sprites that share their shape, 737,280 of them, pixels flipped with probability .1, a fifth held
out; the networks of its tables 1 and 2; 5 latents for c and for each s_m; beta_c = beta_m = 1; Adam 1e-3 and 100
epochs. Batches of 256 are ours. Every picture is made by decoding means, and a classifier of means says what it shows;
its accuracy on real test images, without their noise, stands in the table. The paper's takes the original images.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from unbraid.experiments.base import Scale
from unbraid.experiments.evidence import Finding, pool_runs
from unbraid.metrics import Score

BETAS = [0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0]
BETA = "beta_alone"
"""The weight of KL(s_2) alone: the paper's beta_2."""

PAIRS, IMAGES = "unseen pairs", "unseen images"
OURS: dict[str, Any] = {"recipe": "partitioned-mvae", "alone": "m2", "c": 5, "s": 5}
SPLITS: dict[str, dict[str, Any]] = {
    PAIRS: {**OURS, "data.unseen": "pairs"},
    IMAGES: {**OURS, "data.unseen": "images"},
}

FIRST, SECOND, JOINT = "shape, x2 from x1", "shape, x1 from x2", "one shape in x1 and x2"
TC, KL_C, KL_1, KL_2 = "TC(c, s2)", "KL(c)", "KL(s1)", "KL(s2)"
TOLD_1, TOLD_2 = "classifier on real x1", "classifier on real x2"
MOSTLY = 0.9
"""Share of pictures that must show a shape for it to be kept (ours)."""

TINY: dict[str, Any] = {
    "data": "sprites-pairs",
    "data.size": 16,
    "data.scales": 3,
    "data.orientations": 2,
    "data.positions": 3,
    "data.flip": 0.0,
    "network": "mlp",
    "encoder.hidden": (16,),
    "decoder.hidden": (16,),
    "batch": 16,
    "steps": 4,
}
LESS: dict[str, Any] = {
    "data": "sprites-pairs",
    "data.size": 32,
    "data.scales": 3,
    "data.orientations": 8,
    "data.positions": 8,
    "data.flip": 0.02,
    "network": "mlp",
    "encoder.hidden": (128,),
    "decoder.hidden": (128,),
    "batch": 64,
    "steps": 2_000,
    "lr": 1e-3,
}
PAPER_BATCH, EPOCHS = 256, 100
STEPS = EPOCHS * round(0.8 * 737_280) // PAPER_BATCH
PAPER: dict[str, Any] = {
    "data": "sprites-pairs",
    "network": "conv-daunhawer",
    "batch": PAPER_BATCH,
    "steps": STEPS,
    "lr": 1e-3,
    "precision": "f32",
}
SHARED: dict[str, dict[str, Any]] = {
    "smoke": {**TINY, "seed": range(2)},
    "small": {**LESS, "seed": range(3)},
    "budget": {
        **PAPER,
        "batch": 64,
        "steps": 30_000,
        "decay": "cosine",
        "anneal": 2_000,
        "precision": "bf16",
        "seed": range(3),
    },
    "paper": {**PAPER, "seed": range(3)},
}
SIDES = {"smoke": 16, "small": 32}
"""Pixels along a side where they are not 64."""

FLIPS = {"smoke": 0.0, "small": 0.02}
"""Share of flipped pixels where it is not .1: small networks on few, small images see no shape below more noise."""

SWEPT: dict[str, list[float]] = {"smoke": [0.01, 1.0], "small": [0.01, 0.1, 1.0, 10.0, 100.0]}
"""Values of beta_2 where they are not all nine; 1 is always among them, for the figures that show pictures."""

CLASSIFIERS = {"smoke": {"samples": 16, "steps": 5}, "small": {"steps": 1_000}}
RATIOS = {"smoke": {"samples": 64, "width": 8, "depth": 2, "steps": 4}, "small": {"width": 200, "steps": 300}}
"""Settings of scores: everywhere else 2,000 steps of the classifier, and the discriminator of the paper's table 3."""

SAME = (
    "What a picture shows is told by a classifier that was trained on real images of the modality, taken as means over "
    "their noise, since decoders say means; its accuracy on those of the held-out rows stands beside, since no number "
    "here can be trusted further than that.",
    "q(c|x_1) is the posterior of c given one modality, with the prior as an expert (the paper's appendix A.3).",
    f"At `paper` there are {EPOCHS} epochs in batches of {PAPER_BATCH} (ours): {STEPS:,} steps. At `small` images have "
    f"32 x 32 pixels, of which {FLIPS['small']} are flipped.",
)
BUDGET = (
    "`budget` has 30,000 steps of batches of 64, 3.3% of the paper's pairs, at a rate that falls from 1e-3 to 0 by a "
    "cosine: meant for a few minutes on one H200, and to end settled. Weights of KLs rise from 0 over the first 2,000 "
    "steps (ours), so that c does not collapse before anything is learned."
)


def told(scores: Mapping[str, Score], name: str, modality: str) -> Score:
    """How often a classifier is right about the shape of real images of a modality."""
    score = scores[name]
    known = score.details["classifiers"][modality]
    value = known["accuracy"][score.details["factor"]]
    return Score("coherence", "classifier", value, known["real_rows"], part=f"real/{modality}")


DERIVED = {TOLD_1: lambda s: told(s, FIRST, "m1"), TOLD_2: lambda s: told(s, FIRST, "m2")}


def coherence(scale: str, **settings: Any) -> dict[str, tuple[str, dict[str, Any]]]:
    """Whether each modality, made from the other or both from the prior, shows the shape; c is a mean unless said."""
    how = {"shared": "mean", **CLASSIFIERS.get(scale, {"samples": 5_000, "steps": 2_000}), **settings}
    parts = {FIRST: "m1-to-m2", SECOND: "m2-to-m1", JOINT: "joint"}
    return {name: (f"coherence/classifier/{part}", how) for name, part in parts.items()}


def divergences() -> dict[str, tuple[str, dict[str, Any]]]:
    """KL of c and of each s_m from their priors."""
    blocks = {KL_C: "c", KL_1: "s_m1", KL_2: "s_m2"}
    return {name: (f"kl-blocks/closed-form/{block}", {}) for name, block in blocks.items()}


def over_betas(measures: Mapping[str, Mapping[str, tuple[str, dict[str, Any]]]]) -> dict[str, Scale]:
    """Scales at which beta_2 is an axis, so that all figures share their runs, with scores by scale."""
    scales = {}
    for name, settings in SHARED.items():
        scales[name] = Scale({**settings, BETA: SWEPT.get(name, BETAS)}, measures=measures[name])
    return scales


def mean_of(series: str, score: str, **where: float) -> Finding:
    """The mean of a score over the runs of a series."""
    return pool_runs([series], [score], lambda s: s[..., 0].mean(-1), f"{score}, {series}", **where)


def exceeds(series: str, less: str, more: str, what: str) -> Finding:
    """One score of a run is above another one of the same run, on average over runs."""
    return pool_runs([series], [less, more], lambda s: np.subtract(s[..., 1], s[..., 0]).mean(-1), what, low=0.0)
