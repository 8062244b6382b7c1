"""Models on which MIG and the Higgins score disagree: chen2018's figures S12 to S14.

A model is the more *controversial* the higher its rank by the Higgins score lies above its rank by MIG; a
rank is the share of all models that are worse.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy.stats import rankdata

from unbraid.experiments.base import Claim, Results, Scale, experiment
from unbraid.experiments.drawing import draw_latents, label_axes
from unbraid.experiments.evidence import Finding, pool_runs
from unbraid.experiments.statistics import spearman
from unbraid.papers.chen2018.setup import FACTORS, METRICS, MIG, OVER_BETA, SPRITES, VAE, without_shape
from unbraid.report import traversal
from unbraid.report.svg import ACCENT, INK, PALETTE
from unbraid.report.tables import Member

HIGGINS = "betavae/logistic, the factors of MIG"
MOST = 5
"""Models that are shown."""

APART = 0.25
"""Ranks that differ by more than this share of the models are far apart."""


def with_higgins(scale: str, **settings: Any) -> Scale:
    """The beta-VAEs of figure 2, and their Higgins score."""
    return Scale(OVER_BETA[scale].settings, measures={HIGGINS: ("betavae/logistic", settings)})


OVER_MODELS = {
    "smoke": with_higgins("smoke", factors=FACTORS, train=200, test=200),
    "small": with_higgins("small"),
    "budget": with_higgins("budget", factors=FACTORS),
    "paper": with_higgins("paper", factors=FACTORS),
}


def ranks(scores: np.ndarray) -> np.ndarray:
    """Ranks [..., run, score] by each of the scores."""
    return (rankdata(scores, axis=-2) - 1) / scores.shape[-2]


def rank_gaps(scores: np.ndarray) -> np.ndarray:
    """Rank by the Higgins score minus rank by MIG [..., run], of scores [..., run, (MIG, Higgins)]."""
    return ranks(scores)[..., 1] - ranks(scores)[..., 0]


def nth_gap(scores: np.ndarray, place: int) -> np.ndarray:
    """The rank gap of the model at some place among the most controversial, or of the last one."""
    gaps = np.sort(rank_gaps(scores), axis=-1)[..., ::-1]
    return gaps[..., min(place, gaps.shape[-1]) - 1]


def mig_of_most(scores: np.ndarray) -> np.ndarray:
    """Mean MIG of the most controversial models minus the median of all."""
    order = np.argsort(-rank_gaps(scores), axis=-1)[..., :MOST]
    mig = scores[..., 0]
    return np.take_along_axis(mig, order, -1).mean(-1) - np.median(mig, -1)


def over_models(statistic: Any, what: str, **where: float) -> Finding:
    """Evidence from MIG and the Higgins score of all models."""
    return pool_runs(["beta-vae"], [MIG, HIGGINS], statistic, what, **where)


def controversial(results: Results) -> list[tuple[Member, str]]:
    """The most controversial models, the first one first, and in words where both scores rank them."""
    models = results.select_members("beta-vae", MIG, HIGGINS)
    scores = np.array([[m.scores[MIG].value, m.scores[HIGGINS].value] for m in models])
    shares = ranks(scores)
    order = np.argsort(-rank_gaps(scores))[:MOST]
    return [(models[k], f"better than {shares[k, 0]:.0%} by MIG, {shares[k, 1]:.0%} by Higgins") for k in order]


def facts(figure: str, *claims: Claim, notes: tuple[str, ...] = ()) -> Mapping[str, Any]:
    """What the three figures have in common."""
    how = (
        "The models are those of figure 2's beta-VAEs (the paper has 200); the bounds are ours. Models are drawn anew "
    )
    return {
        "year": 2018,
        "reference": f"chen2018, figure {figure}",
        "series": {"beta-vae": VAE},
        "scales": OVER_MODELS,
        "metrics": METRICS,
        "derived": {MIG: without_shape},
        "scores": (MIG, HIGGINS),
        "claims": claims,
        "notes": (SPRITES, f"{how}by the bootstrap whatever their beta is.", *notes),
    }


def draw_agreement(axes: Any, results: Results, most: int) -> None:
    """Both scores of every model, the most controversial ones in colours."""
    models = results.select_members("beta-vae", MIG, HIGGINS)
    points = [(m.scores[HIGGINS].value, m.scores[MIG].value) for m in models]
    axes.scatter(*zip(*points, strict=True), s=9, color=INK, alpha=0.4, linewidths=0)
    for number, (model, words) in enumerate(controversial(results)[:most]):
        at = model.scores[HIGGINS].value, model.scores[MIG].value
        axes.plot(*at, "o", color=PALETTE[number % len(PALETTE)], markersize=6, label=f"{'abcde'[number]}: {words}")
    label_axes(axes, HIGGINS, MIG)
    axes.legend(fontsize=7, frameon=False)


@experiment(
    "chen2018/figS12",
    **facts(
        "S12",
        Claim(
            "a model that MIG ranks low can have a high Higgins score",
            over_models(lambda s: nth_gap(s, 1), "largest gap of ranks, as a share of the models", low=APART),
        ),
        Claim(
            "in general, both scores agree",
            over_models(lambda s: spearman(s[..., 0], s[..., 1]), "rank correlation of both scores", low=0.0),
        ),
        Claim(
            "the Higgins score is inflated",
            over_models(lambda s: (s[..., 1] - s[..., 0]).mean(-1), "mean Higgins score minus mean MIG", low=0.0),
        ),
        notes=("In the paper the Higgins score ranks one model above 75% of all, and MIG above 26%: a gap of .49.",),
    ),
)
def fig_s12(results: Results, make: Any) -> Any:
    """MIG against the Higgins score, and what the most controversial model decodes."""
    figure = make(figsize=(6.4, 7.0), layout="constrained")
    above, below = figure.subplots(2, 1)
    draw_agreement(above, results, 2)
    below.imshow(np.asarray(traversal(results.load_evaluation(controversial(results)[0][0]))))
    below.set_title("a", fontsize=8, color=ACCENT)
    below.set_axis_off()
    return figure


@experiment(
    "chen2018/figS13",
    **facts(
        "S13",
        Claim(
            f"the {MOST} most controversial models are ranked far higher by the Higgins score",
            over_models(lambda s: nth_gap(s, MOST), f"gap of ranks of the model in place {MOST}", low=APART),
        ),
    ),
)
def fig_s13(results: Results, make: Any) -> Any:
    """MIG against the Higgins score, with the most controversial models in colours."""
    figure = make(figsize=(6.4, 4.0), layout="constrained")
    draw_agreement(figure.subplots(), results, MOST)
    return figure


@experiment(
    "chen2018/figS14",
    **facts(
        "S14",
        Claim(
            "the most controversial models are entangled, by MIG",
            over_models(mig_of_most, f"mean MIG of the {MOST} minus the median of all", high=0.0),
        ),
        notes=("The paper's most controversial model is better than 75% by the Higgins score, and than 25% by MIG.",),
    ),
)
def fig_s14(results: Results, make: Any) -> Any:
    """Latents against factors, of the most controversial models."""
    models = enumerate(controversial(results))
    return draw_latents(
        make, {f"{'abcde'[k]}: {words}": results.load_evaluation(model) for k, (model, words) in models}
    )
