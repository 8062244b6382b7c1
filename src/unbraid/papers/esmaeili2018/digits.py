"""Digits in esmaeili2018: what a discrete latent learns (section 6.3), and whether thickness changes it (figure 7)."""

from collections.abc import Mapping
from typing import Any

from unbraid.experiments.base import Claim, Results, Scale, derive, experiment
from unbraid.experiments.drawing import draw_pictures
from unbraid.experiments.evidence import combine, compare_means, find_mean
from unbraid.experiments.sprites import STAND_IN
from unbraid.papers.esmaeili2018 import setup
from unbraid.papers.esmaeili2018.kmeans import cluster_pixels
from unbraid.papers.esmaeili2018.pictures import traverse_factor
from unbraid.papers.esmaeili2018.setup import DIGITS, HFVAE, LEARNED, MNIST, OURS, QUICK, SMOKE, assign
from unbraid.report.sweep_figures import draw_boxes
from unbraid.report.tables import Member

ACCURACY, MAJORITY, PURITY = "clusters/hungarian", "clusters/majority", "generated/purity"
RECOVERY, DRAWN = "label recovery", "digits drawn"
NAMES = ("HFVAE, MNIST", "beta-SVAE, MNIST", "HFVAE, Fashion-MNIST", "HFVAE, sprites")
KMEANS, CLASS_ONLY = "k-means, MNIST", "class alone, MNIST"
HFVAE_MNIST, SVAE_MNIST, HFVAE_FASHION, HFVAE_SPRITES = NAMES


score_recovery = derive(ACCURACY, "recovery", lambda s: (s.value - s.details["chance"]) / (1 - s.details["chance"]))
"""Accuracy above that of the most frequent value, as a share of the possible gain: 10 classes and 3 are comparable."""

count_drawn = derive(PURITY, "values", lambda s: s.details["values"])
"""Number of values that the classes draw; a decoder that ignores its class is pure, but draws one."""


def cluster_digits(sweeps: Mapping[str, Mapping[str, Any]]) -> list[Member]:
    """Return members for k-means on the pixels of the digits."""
    members = cluster_pixels(KMEANS, sweeps[HFVAE_MNIST])
    return [member._replace(scores={**member.scores, RECOVERY: score_recovery(member.scores)}) for member in members]


def build_discrete_scale(scale: str) -> Scale:
    """Return one of the three larger scales."""
    per_series = {
        **assign(MNIST, HFVAE_MNIST, SVAE_MNIST),
        HFVAE_FASHION: setup.FASHION,
        HFVAE_SPRITES: {**setup.SPRITES[scale], **setup.SHAPES},
        CLASS_ONLY: {**MNIST, "latents": "concrete:10"},
    }
    return Scale(DIGITS[scale], per_series, {PURITY: (PURITY, LEARNED)})


@experiment(
    "esmaeili2018/discrete",
    reference="section 6.3",
    series={
        HFVAE_MNIST: HFVAE,
        SVAE_MNIST: setup.BETA_SVAE,
        HFVAE_FASHION: HFVAE,
        HFVAE_SPRITES: HFVAE,
        CLASS_ONLY: HFVAE,
    },
    baselines=cluster_digits,
    scales={
        "smoke": Scale(
            {key: value for key, value in SMOKE.items() if key != "z"},
            {**assign({"latents": "normal:3+concrete:3"}, *NAMES), CLASS_ONLY: {"latents": "concrete:3"}},
            {PURITY: (PURITY, QUICK)},
        ),
        **{scale: build_discrete_scale(scale) for scale in DIGITS},
    },
    metrics=(ACCURACY, MAJORITY),
    derived={RECOVERY: score_recovery, DRAWN: count_drawn},
    scores=(PURITY, DRAWN, ACCURACY, MAJORITY, RECOVERY),
    claims=(
        Claim(
            "images of one class are mostly one digit under HFVAE",
            combine(find_mean(HFVAE_MNIST, PURITY, low=0.5), find_mean(HFVAE_MNIST, DRAWN, low=5.0)),
        ),
        Claim("they are less often so under beta-SVAE", compare_means(SVAE_MNIST, HFVAE_MNIST, PURITY, low=0.0)),
        Claim(
            "labels are recovered best on Fashion-MNIST, then MNIST, poorly on sprites",
            combine(
                compare_means(HFVAE_MNIST, HFVAE_FASHION, RECOVERY, low=0.0),
                compare_means(HFVAE_SPRITES, HFVAE_MNIST, RECOVERY, low=0.0),
            ),
        ),
        Claim(
            "HFVAE finds digits better than k-means on pixels does",
            compare_means(KMEANS, HFVAE_MNIST, ACCURACY, low=0.0),
        ),
        Claim(
            "a class without Normal latents beside it finds them better (ours)",
            compare_means(HFVAE_MNIST, CLASS_ONLY, ACCURACY, low=0.0),
        ),
    ),
    notes=(
        OURS,
        STAND_IN,
        setup.CLASSIFIER,
        "Label recovery is the accuracy above that of the most frequent value, as a share of the possible gain. The "
        "comparison with k-means (10,000 training rows, ten starts) and the bounds (half of the images and half of the "
        "digits) are ours.",
        "The class alone is the ablation: the same model without its Normal latents, which can carry the digit, too.",
    ),
)
def discrete(results: Results, make: Any) -> Any:
    """Accuracy of a discrete latent, learned without labels, as a label of digits, garments and shapes."""
    return draw_boxes(make, results.members, ACCURACY, "recipe")


PRESERVED, TIE = "digit kept along thickness", "thickness and its latent"
MODELS = {"beta-VAE": setup.BETA_VAE, "beta-SVAE": setup.BETA_SVAE, "HFVAE": HFVAE}
MIXED = ("beta-SVAE", "HFVAE")


def preserve_along(factor: str, **settings: Any) -> dict[str, tuple[str, dict[str, Any]]]:
    """Return the measure of how often the class stays while the latent of another factor moves."""
    return {PRESERVED: ("kept/classifier", {"along": factor, **settings})}


@experiment(
    "esmaeili2018/fig7",
    series=MODELS,
    scales=setup.build_digit_scales(
        Scale(SMOKE, assign({"latents": "normal+concrete:3"}, *MIXED), preserve_along("scale", **QUICK)),
        assign(MNIST, *MODELS),
        preserve_along("thickness", **LEARNED),
    ),
    derived={TIE: derive(PRESERVED, "tie", lambda s: abs(s.details["correlation"]))},
    scores=(PRESERVED, TIE),
    claims=(
        Claim(
            "beta-SVAE keeps the digit more often than beta-VAE",
            compare_means("beta-VAE", "beta-SVAE", PRESERVED, low=0.0),
        ),
        Claim("HFVAE keeps the digit more often than beta-VAE", compare_means("beta-VAE", "HFVAE", PRESERVED, low=0.0)),
    ),
    notes=(
        OURS,
        setup.CLASSIFIER,
        "In each run the latent moves whose means have the largest rank correlation with the measured thickness; the "
        "table shows that correlation. A digit is kept if it is classified as in the row's reconstruction.",
    ),
)
def fig7(results: Results, make: Any) -> Any:
    """One image of each digit as the latent of its thickness moves from -3 to 3."""
    factor, keep = ("scale", "shape") if results.scale == "smoke" else ("thickness", "digit")
    return draw_pictures(make, [[(name, traverse_factor(results, name, factor, keep))] for name in results.series])
