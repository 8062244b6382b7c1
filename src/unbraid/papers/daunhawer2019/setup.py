"""Settings of daunhawer2019 at each scale, and the scores and evidence that its experiments share.

The paper: pairs of sprites that share their shape, 737,280 of them, pixels flipped with probability .1, a fifth held
out; the networks of its tables 1 and 2; 5 latents for c and for each s_m; beta_c = beta_m = 1; Adam 1e-3 and 100
epochs. Batches of 256 are ours. Every picture is a decoded mean, and a classifier that was trained on means decides
what it shows; the table has its accuracy on real test images without their noise. The paper's classifier takes the
original images.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from unbraid.experiments.base import Scale
from unbraid.experiments.evidence import Finding, pool_runs
from unbraid.metrics import Score

Measures = Mapping[str, tuple[str, dict[str, Any]]]

BETAS = [0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0]
BETA = "beta_alone"
"""Weight of KL(s_2): the paper's beta_2."""

PAIRS, IMAGES = "unseen pairs", "unseen images"
SPLITS: dict[str, dict[str, Any]] = {
    name: {"recipe": "partitioned-mvae", "alone": "m2", "c": 5, "s": 5, "data.unseen": unseen}
    for name, unseen in ((PAIRS, "pairs"), (IMAGES, "images"))
}

X2_FROM_X1, X1_FROM_X2, JOINT = "shape, x2 from x1", "shape, x1 from x2", "one shape in x1 and x2"
TC, KL_C, KL_1, KL_2 = "TC(c, s2)", "KL(c)", "KL(s1)", "KL(s2)"
REAL_X1, REAL_X2 = "classifier on real x1", "classifier on real x2"
MIN_ACCURACY = 0.9
"""Share of pictures that must show a shape for it to be kept (ours)."""


def small_settings(size: int, flip: float, orientations: int, positions: int, hidden: int) -> dict[str, Any]:
    """Return the settings of few small images and of networks with one hidden layer."""
    data = {"size": size, "scales": 3, "orientations": orientations, "positions": positions, "flip": flip}
    networks = {"network": "mlp", "encoder.hidden": (hidden,), "decoder.hidden": (hidden,)}
    return {"data": "sprites-pairs", **{f"data.{key}": value for key, value in data.items()}, **networks}


SMOKE = {**small_settings(16, 0.0, 2, 3, hidden=16), "batch": 16, "steps": 4}
SMALL = {**small_settings(32, 0.02, 8, 8, hidden=128), "batch": 64, "steps": 2_000, "lr": 1e-3}
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
BUDGET: dict[str, Any] = {"batch": 64, "steps": 30_000, "decay": "cosine", "precision": "bf16"}
BUDGET |= {"anneal": 2_000, "annealed": "c"}
SHARED: dict[str, dict[str, Any]] = {
    "smoke": {**SMOKE, "seed": range(1)},
    "small": {**SMALL, "seed": range(3)},
    "budget": {**PAPER, **BUDGET, "seed": range(3)},
    "paper": {**PAPER, "seed": range(3)},
}
SIDES = {"smoke": 16, "small": 32}
"""Pixels along a side where they are not 64."""

FLIPS = {"smoke": 0.0, "small": 0.02}
"""Share of flipped pixels where it is not .1: with more noise, small networks see no shape on few small images."""

BETAS_AT: dict[str, list[float]] = {"smoke": [0.01, 1.0], "small": [0.01, 0.1, 1.0, 10.0, 100.0]}
"""Values of beta_2 where they are not all nine."""

CLASSIFIERS = {"smoke": {"samples": 16, "steps": 5}, "small": {"steps": 1_000}}
NOTES = (
    "A classifier decides what a picture shows. It was trained on real images of the modality without their noise, "
    "since decoders output means. The table has its accuracy on such images of held-out rows; no number here can be "
    "more reliable than that.",
    "q(c|x_1) is the posterior of c given one modality, with the prior as an expert (the paper's appendix A.3).",
    f"At `paper` there are {EPOCHS} epochs in batches of {PAPER_BATCH} (ours): {STEPS:,} steps. At `small` images have "
    f"32 x 32 pixels, and a share of {FLIPS['small']} of them is flipped.",
)
BUDGET_NOTE = (
    "`budget` has 30,000 steps of batches of 64, 3.3% of the paper's pairs, and a rate that falls from 1e-3 to 0 by a "
    "cosine. It takes a few minutes on one H200 and should end settled. The weight of KL(c) alone rises from 0 over "
    "the first 2,000 steps (ours), so that c need not collapse before anything is learned. At beta_2 = 1 it often "
    "does so all the same, and rounding decides in which seeds."
)


def real_accuracy(scores: Mapping[str, Score], modality: str) -> Score:
    """Return the classifier's accuracy on the shape of real images of a modality."""
    details = scores[X2_FROM_X1].details
    classifier = details["classifiers"][modality]
    accuracy = classifier["accuracy"][details["factor"]]
    return Score("coherence", "classifier", accuracy, classifier["real_rows"], part=f"real/{modality}")


DERIVED = {REAL_X1: lambda scores: real_accuracy(scores, "m1"), REAL_X2: lambda scores: real_accuracy(scores, "m2")}


def coherence(scale: str, **settings: Any) -> Measures:
    """Return the accuracies of the shape in each modality, made from the other or both from the prior.

    c is a mean unless `settings` say otherwise.
    """
    settings = {"shared": "mean", **CLASSIFIERS.get(scale, {"samples": 5_000, "steps": 2_000}), **settings}
    parts = {X2_FROM_X1: "m1-to-m2", X1_FROM_X2: "m2-to-m1", JOINT: "joint"}
    return {name: (f"coherence/classifier/{part}", settings) for name, part in parts.items()}


DIVERGENCES: Measures = {
    name: (f"kl-blocks/closed-form/{block}", {}) for name, block in ((KL_C, "c"), (KL_1, "s_m1"), (KL_2, "s_m2"))
}


def sweep_beta(measures: Callable[[str], Measures]) -> dict[str, Scale]:
    """Return scales with beta_2 as an axis, coherence and the `measures` of a scale."""
    scales = {}
    for name, settings in SHARED.items():
        swept = {**settings, BETA: BETAS_AT.get(name, BETAS)}
        scales[name] = Scale(swept, measures={**coherence(name), **measures(name)})
    return scales


def train_at_one(measures: Callable[[str], Measures]) -> dict[str, Scale]:
    """Return scales with beta_2 = 1, which all figures of pictures share.

    There are ten seeds (ours), since c ends empty in some and not in others.
    """
    scales = {}
    for name, settings in SHARED.items():
        seeds = {"seed": range(10)} if name in ("budget", "paper") else {}
        scales[name] = Scale({**settings, **seeds, BETA: 1.0}, measures={**coherence(name), **measures(name)})
    return scales


def exceeds(series: str, less: str, more: str, what: str) -> Finding:
    """Return the evidence that one score of a run is above another one of the same run, on average over runs."""
    return pool_runs([series], [less, more], lambda s: np.subtract(s[..., 1], s[..., 0]).mean(-1), what, low=0.0)
