"""Ours against a model without latents of each modality's own (wu2018): daunhawer2019's figure 6."""

from collections.abc import Mapping
from typing import Any

from unbraid.experiments.base import Claim, Results, Scale, experiment
from unbraid.experiments.drawing import draw_pictures
from unbraid.experiments.evidence import combine, compare_means
from unbraid.metrics import Score
from unbraid.papers.daunhawer2019.setup import (
    BUDGET,
    DERIVED,
    FIRST,
    MOSTLY,
    SAME,
    SECOND,
    SHARED,
    TOLD_1,
    TOLD_2,
    coherence,
    mean_of,
)
from unbraid.report import Picture
from unbraid.report.multimodal_pictures import draw_from_others, translation

MINE, THEIRS = "ours, 5 + 5", "MVAE, 10"
SERIES: dict[str, dict[str, Any]] = {
    MINE: {"recipe": "partitioned-mvae", "c": 5, "s": 5},
    THEIRS: {"recipe": "mvae", "c": 10, "s": 0},
}
VARIETY, SHARE = "entropy of x1's factors", "share of the real entropy"
HALF = 0.5
"""Share of the real entropy above which pictures are diverse (ours)."""

SIZES = {"smoke": {"samples": 4, "draws": 8, "steps": 100}, "small": {"samples": 50, "draws": 50, "steps": 1_000}}
LONGER = {"budget": {"seed": range(5)}, "paper": {"seed": range(5)}}


def share(scores: Mapping[str, Score]) -> Score:
    """Entropy of the factors of pictures made of one condition, as a share of that of real images."""
    score = scores[VARIETY]
    return Score("diversity", "entropy", score.value / score.details["real"], score.samples, part="share")


def scale(name: str) -> Scale:
    """Both models draw c, as the paper's figure has it for MVAE."""
    how = {"target": "m1", "source": "m2", **SIZES.get(name, {"samples": 200, "steps": 2_000})}
    drawn = {**coherence(name, shared="drawn"), VARIETY: ("diversity/entropy/m1", how)}
    return Scale({**SHARED[name], **LONGER.get(name, {})}, measures=drawn)


@experiment(
    "daunhawer2019/fig6",
    year=2019,
    reference="daunhawer2019, figure 6",
    series=SERIES,
    scales={name: scale(name) for name in SHARED},
    derived={SHARE: share, **DERIVED},
    scores=(SECOND, FIRST, VARIETY, SHARE, TOLD_1, TOLD_2),
    contrast=(THEIRS, MINE),
    claims=(
        Claim(
            f"both keep the shape in at least {MOSTLY:.0%} of x1 made from x2",
            combine(*(mean_of(name, SECOND, low=MOSTLY) for name in SERIES)),
        ),
        Claim("x1 made from one x2 is more diverse in ours", compare_means(THEIRS, MINE, VARIETY, low=0.0)),
        Claim(
            "only ours is diverse: more than half of the entropy of real images, and MVAE less",
            combine(mean_of(MINE, SHARE, low=HALF), mean_of(THEIRS, SHARE, high=HALF)),
        ),
    ),
    notes=(
        *SAME,
        "Both models have the same number of parameters: an encoder gives 10 means and 10 log-variances, a decoder "
        "takes 10 numbers. MVAE is trained on the joint bound and those of each modality alone.",
        "Diversity is the entropy, in nats, of the size and the orientation that the classifier sees in many x1 drawn "
        "for one x2, on average over x2 and both factors; c is drawn from q(c|x2) in both models, and s1 from its "
        "prior in ours. The bound of one half is ours.",
        BUDGET,
        "5 seeds are ours.",
        "Shown is the run of each that keeps the shape most often.",
        "Noise would be diverse, too: the share of pictures that keep the shape stands beside.",
    ),
)
def fig6(results: Results, make: Any) -> Any:
    """x1 made from the x2 above each column: s1 by row in ours, a draw of c by row in MVAE."""
    return draw_pictures(make, [[(name, _grid(results, name))] for name in SERIES])


def _grid(results: Results, series: str) -> Picture:
    shown = results.load_evaluation(results.select_best(series, SECOND))
    return translation(shown, "m2", "m1") if series == MINE else draw_from_others(shown, "m2", "m1")
