"""A model with private latents against one without (wu2018): daunhawer2019's figure 6."""

from typing import Any

from unbraid.experiments.base import Scale, experiment
from unbraid.experiments.drawing import draw_pictures
from unbraid.experiments.evidence import combine, compare_means, find_mean
from unbraid.experiments.results import Results, derive
from unbraid.papers.daunhawer2019 import setup
from unbraid.papers.daunhawer2019.setup import MIN_ACCURACY, X1_FROM_X2, X2_FROM_X1
from unbraid.report import Picture
from unbraid.report.multimodal_pictures import draw_from_others, translation

PARTITIONED, MVAE = "ours, 5 + 5", "MVAE, 10"
SERIES: dict[str, dict[str, Any]] = {
    PARTITIONED: {"recipe": "partitioned-mvae", "c": 5, "s": 5},
    MVAE: {"recipe": "mvae", "c": 10, "s": 0},
}
ENTROPY, SHARE = "entropy of x1's factors", "share of the real entropy"
DIVERSE_SHARE = 0.5
"""Share of the real entropy above which pictures are diverse (ours)."""

ENTROPY_SETTINGS = {
    "smoke": {"samples": 4, "draws": 8, "steps": 5},
    "small": {"samples": 50, "draws": 50, "steps": 1_000},
}


def make_scale(name: str) -> Scale:
    """Return a scale at which both models draw c, as the paper's figure does for MVAE."""
    settings = {"target": "m1", "source": "m2", **ENTROPY_SETTINGS.get(name, {"samples": 200, "steps": 2_000})}
    measures = {**setup.coherence(name, shared="drawn"), ENTROPY: ("diversity/entropy/m1", settings)}
    seeds = {"seed": range(10)} if name in ("budget", "paper") else {}
    return Scale({**setup.SHARED[name], **seeds}, measures=measures)


@experiment(
    "daunhawer2019/fig6",
    series=SERIES,
    scales={name: make_scale(name) for name in setup.SHARED},
    derived={SHARE: derive(ENTROPY, "share", lambda s: s.value / s.details["real"]), **setup.DERIVED},
    scores=(X1_FROM_X2, X2_FROM_X1, ENTROPY, SHARE, *setup.DERIVED),
    contrast=(MVAE, PARTITIONED),
    own_steps=(PARTITIONED, MVAE),
    claims={
        f"both keep the shape in at least {MIN_ACCURACY:.0%} of x1 made from x2": combine(
            *(find_mean(name, X1_FROM_X2, low=MIN_ACCURACY) for name in SERIES)
        ),
        "x1 made from one x2 is more diverse in ours": compare_means(MVAE, PARTITIONED, ENTROPY, low=0.0),
        "only ours is diverse: more than half of the entropy of real images, and MVAE less": combine(
            find_mean(PARTITIONED, SHARE, low=DIVERSE_SHARE), find_mean(MVAE, SHARE, high=DIVERSE_SHARE)
        ),
    },
    notes=(
        *setup.NOTES,
        "Both models have the same number of parameters: an encoder gives 10 means and 10 log-variances, a decoder "
        "takes 10 numbers. MVAE is trained on the joint bound and on the bound of each modality.",
        "Diversity is the entropy, in nats, of the size and the orientation that the classifier sees in many x1 drawn "
        "for one x2, on average over x2 and both factors. c is drawn from q(c|x2) in both models, and s1 from its "
        "prior in ours. The bound of one half is ours.",
        setup.BUDGET_NOTE,
        "10 seeds are ours.",
        "The figure shows the run of each model that keeps the shape most often.",
        "Noise would be diverse, too: compare the share of pictures that keep the shape.",
    ),
)
def fig6(results: Results, make: Any) -> Any:
    """x1 made from the x2 above each column: s1 by row in ours, a draw of c by row in MVAE."""
    return draw_pictures(make, [[(name, _draw_grid(results, name))] for name in SERIES])


def _draw_grid(results: Results, series: str) -> Picture:
    model = results.load_evaluation(results.select_best(series, X1_FROM_X2))
    return translation(model, "m2", "m1") if series == PARTITIONED else draw_from_others(model, "m2", "m1")
