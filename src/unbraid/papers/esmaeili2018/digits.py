"""esmaeili2018, section 6.3 and figure 7: what a discrete latent learns, and what stays when thickness varies."""

from collections.abc import Mapping
from typing import Any

from unbraid.experiments.base import Claim, Results, Scale, experiment
from unbraid.experiments.drawing import draw_pictures
from unbraid.experiments.evidence import combine, compare_means
from unbraid.metrics import Score
from unbraid.papers.esmaeili2018.kmeans import kmeans_on_pixels
from unbraid.papers.esmaeili2018.pictures import along_factor
from unbraid.papers.esmaeili2018.setup import (
    BETA_SVAE,
    BETA_VAE,
    BUDGET_DIGITS,
    BUDGET_SPRITES,
    FASHION,
    HFVAE,
    LEARNED,
    MNIST,
    OURS,
    PAPER_DIGITS,
    PAPER_SPRITES,
    QUICK,
    SHAPES,
    SMALL_DIGITS,
    SMALL_SPRITES,
    SMOKE,
    SPRITES,
    TELLS,
    mean_of,
    on,
)
from unbraid.report.sweep_figures import draw_boxes
from unbraid.report.tables import Member

ACCURACY, MAJORITY, PURITY = "clusters/hungarian", "clusters/majority", "generated/purity"
RECOVERY, DRAWN = "label recovery", "digits drawn"
NAMES = ("HFVAE, MNIST", "beta-SVAE, MNIST", "HFVAE, Fashion-MNIST", "HFVAE, sprites")
KMEANS, ALONE = "k-means, MNIST", "class alone, MNIST"
DIGITS, SVAE, GARMENTS, FORMS = NAMES


def recovery(scores: Mapping[str, Score]) -> Score:
    """Accuracy above that of the most frequent value, as a share of what is possible: 10 classes are not 3."""
    score = scores[ACCURACY]
    chance = score.details["chance"]
    return Score("clusters", "hungarian", (score.value - chance) / (1 - chance), score.samples, part="recovery")


def drawn(scores: Mapping[str, Score]) -> Score:
    """How many different values the classes stand for: a decoder that ignores them is pure, too, but draws one."""
    score = scores[PURITY]
    return Score("generated", "purity", float(score.details["values"]), score.samples, part="values")


def by_kmeans(sweeps: Mapping[str, Mapping[str, Any]]) -> list[Member]:
    """k-means on the pixels of the digits."""
    members = kmeans_on_pixels(KMEANS, sweeps[DIGITS])
    return [member._replace(scores={**member.scores, RECOVERY: recovery(member.scores)}) for member in members]


def data_of(sprites: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """What each series has alone."""
    alone = {**MNIST, "latents": "concrete:10"}
    return {DIGITS: MNIST, SVAE: MNIST, GARMENTS: FASHION, FORMS: {**sprites, **SHAPES}, ALONE: alone}


def purity(**settings: Any) -> dict[str, tuple[str, dict[str, Any]]]:
    """The purity of images decoded from one class."""
    return {PURITY: (PURITY, settings)}


@experiment(
    "esmaeili2018/discrete",
    year=2018,
    reference="esmaeili2018, section 6.3",
    series={DIGITS: HFVAE, SVAE: BETA_SVAE, GARMENTS: HFVAE, FORMS: HFVAE, ALONE: HFVAE},
    baselines=by_kmeans,
    scales={
        "smoke": Scale(
            {key: value for key, value in SMOKE.items() if key != "z"},
            per_series={**on({"latents": "normal:3+concrete:3"}, *NAMES), ALONE: {"latents": "concrete:3"}},
            measures=purity(**QUICK),
        ),
        "small": Scale(SMALL_DIGITS, per_series=data_of(SMALL_SPRITES), measures=purity(**LEARNED)),
        "budget": Scale(BUDGET_DIGITS, per_series=data_of(BUDGET_SPRITES), measures=purity(**LEARNED)),
        "paper": Scale(PAPER_DIGITS, per_series=data_of(PAPER_SPRITES), measures=purity(**LEARNED)),
    },
    metrics=(ACCURACY, MAJORITY),
    derived={RECOVERY: recovery, DRAWN: drawn},
    scores=(PURITY, DRAWN, ACCURACY, MAJORITY, RECOVERY),
    claims=(
        Claim(
            "images of one class are mostly one digit under HFVAE",
            combine(mean_of(DIGITS, PURITY, low=0.5), mean_of(DIGITS, DRAWN, low=5.0)),
        ),
        Claim("they are less often so under beta-SVAE", compare_means(SVAE, DIGITS, PURITY, low=0.0)),
        Claim(
            "labels are recovered best on Fashion-MNIST, then MNIST, poorly on sprites",
            combine(
                compare_means(DIGITS, GARMENTS, RECOVERY, low=0.0), compare_means(FORMS, DIGITS, RECOVERY, low=0.0)
            ),
        ),
        Claim(
            "HFVAE finds digits better than k-means on pixels does", compare_means(KMEANS, DIGITS, ACCURACY, low=0.0)
        ),
        Claim(
            "a class without Normal latents beside it finds them better (ours)",
            compare_means(DIGITS, ALONE, ACCURACY, low=0.0),
        ),
    ),
    notes=(
        OURS,
        SPRITES,
        TELLS,
        "Label recovery is the accuracy above that of always naming the most frequent value, as a share of what is "
        "possible. The comparison with k-means (10,000 training rows, ten starts) and the bounds, one half of the "
        "images and of the digits, are ours.",
        "The class alone is the ablation: the same model without its Normal latents, which can carry the digit, too.",
    ),
)
def discrete(results: Results, make: Any) -> Any:
    """Accuracy of a discrete latent, learned without labels, as a label of digits, garments and shapes."""
    return draw_boxes(make, results.members, ACCURACY, "recipe")


# figure 7

THICKNESS, TIE = "digit kept along thickness", "thickness and its latent"
THREE = {"beta-VAE": BETA_VAE, "beta-SVAE": BETA_SVAE, "HFVAE": HFVAE}
MIXED = ("beta-SVAE", "HFVAE")
ALONG = {"smoke": ("scale", "shape"), "": ("thickness", "digit")}


def kept_along(factor: str, **settings: Any) -> dict[str, tuple[str, dict[str, Any]]]:
    """How often the first factor is kept while the latent of another one moves."""
    return {THICKNESS: ("kept/classifier", {"along": factor, **settings})}


def tie(scores: Mapping[str, Score]) -> Score:
    """Absolute rank correlation of the measured thickness with the latent that was moved."""
    score = scores[THICKNESS]
    return Score("kept", "classifier", abs(score.details["correlation"]), score.samples, part="tie")


@experiment(
    "esmaeili2018/fig7",
    year=2018,
    reference="esmaeili2018, figure 7",
    series=THREE,
    scales={
        "smoke": Scale(
            SMOKE, per_series=on({"latents": "normal+concrete:3"}, *MIXED), measures=kept_along("scale", **QUICK)
        ),
        "small": Scale(SMALL_DIGITS, per_series=on(MNIST, *THREE), measures=kept_along("thickness", **LEARNED)),
        "budget": Scale(BUDGET_DIGITS, per_series=on(MNIST, *THREE), measures=kept_along("thickness", **LEARNED)),
        "paper": Scale(PAPER_DIGITS, per_series=on(MNIST, *THREE), measures=kept_along("thickness", **LEARNED)),
    },
    derived={TIE: tie},
    scores=(THICKNESS, TIE),
    claims=(
        Claim(
            "beta-SVAE keeps the digit more often than beta-VAE",
            compare_means("beta-VAE", "beta-SVAE", THICKNESS, low=0.0),
        ),
        Claim("HFVAE keeps the digit more often than beta-VAE", compare_means("beta-VAE", "HFVAE", THICKNESS, low=0.0)),
    ),
    notes=(
        OURS,
        TELLS,
        "The moved latent is, in each run, the one whose means have the largest rank correlation with the measured "
        "stroke thickness; that correlation stands beside. Kept means: seen as in the row's own reconstruction.",
    ),
)
def fig7(results: Results, make: Any) -> Any:
    """One image of each digit as the latent of its thickness moves from -3 to 3."""
    factor, keep = ALONG["smoke" if results.scale == "smoke" else ""]
    return draw_pictures(make, [[(name, along_factor(results, name, factor, keep))] for name in results.series])
