"""Models on which MIG and the Higgins score disagree: chen2018's figures S12 to S14.

A rank is the share of all models that are worse. A model is *controversial* if its rank by the Higgins score lies far
above its rank by MIG.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy.stats import rankdata

from unbraid.experiments.base import Claim, Results, Scale, experiment
from unbraid.experiments.drawing import draw_latents, label_axes
from unbraid.experiments.evidence import Finding, pool_runs
from unbraid.experiments.statistics import spearman
from unbraid.papers.chen2018.setup import FACTORS, MIG, OVER_BETA, SPRITES, VAE, build_facts
from unbraid.report import traversal
from unbraid.report.svg import ACCENT, INK, PALETTE
from unbraid.report.tables import Member

HIGGINS = "betavae/logistic, the factors of MIG"
MODELS_SHOWN = 5
FAR_APART = 0.25
"""Ranks are far apart if they differ by more than this."""


SAMPLES = {"smoke": {"factors": FACTORS, "train": 200, "test": 200}, "small": {}}
OVER_MODELS = {
    name: Scale(scale.settings, measures={HIGGINS: ("betavae/logistic", SAMPLES.get(name, {"factors": FACTORS}))})
    for name, scale in OVER_BETA.items()
}
"""Scales of figure 2's beta-VAEs, with their Higgins score."""


def rank_scores(scores: np.ndarray) -> np.ndarray:
    """Return ranks [..., run, score] by each of the scores."""
    return (rankdata(scores, axis=-2) - 1) / scores.shape[-2]


def rank_gaps(scores: np.ndarray) -> np.ndarray:
    """Return ranks by the Higgins score minus ranks by MIG [..., run], from scores [..., run, (MIG, Higgins)]."""
    ranks = rank_scores(scores)
    return ranks[..., 1] - ranks[..., 0]


def nth_gap(scores: np.ndarray, place: int) -> np.ndarray:
    """Return the rank gap of the model at `place` among the most controversial ones, or else of the last one."""
    gaps = np.sort(rank_gaps(scores), axis=-1)[..., ::-1]
    return gaps[..., min(place, gaps.shape[-1]) - 1]


def excess_mig(scores: np.ndarray) -> np.ndarray:
    """Return the mean MIG of the most controversial models minus the median of all."""
    order = np.argsort(-rank_gaps(scores), axis=-1)[..., :MODELS_SHOWN]
    mig = scores[..., 0]
    return np.take_along_axis(mig, order, -1).mean(-1) - np.median(mig, -1)


def pool_models(statistic: Any, what: str, **bounds: float) -> Finding:
    """Find a statistic of MIG and the Higgins score of all models."""
    return pool_runs(["beta-vae"], [MIG, HIGGINS], statistic, what, **bounds)


def find_controversial(results: Results) -> list[tuple[Member, str]]:
    """Return the most controversial models in order, each with both of its ranks in words."""
    models = results.select_members("beta-vae", MIG, HIGGINS)
    scores = np.array([[m.scores[MIG].value, m.scores[HIGGINS].value] for m in models])
    shares = rank_scores(scores)
    order = np.argsort(-rank_gaps(scores))[:MODELS_SHOWN]
    return [(models[k], f"better than {shares[k, 0]:.0%} by MIG, {shares[k, 1]:.0%} by Higgins") for k in order]


def share_facts(*claims: Claim, notes: tuple[str, ...] = ()) -> Mapping[str, Any]:
    """Return the facts of one of the three figures."""
    models = "The models are the beta-VAEs of figure 2 (the paper has 200), resampled without regard to beta."
    notes = (SPRITES, f"{models} The bounds are ours.", *notes)
    return build_facts(OVER_MODELS, series={"beta-vae": VAE}, scores=(MIG, HIGGINS), claims=claims, notes=notes)


def draw_agreement(axes: Any, results: Results, shown: int) -> None:
    """Draw both scores of every model, with the `shown` most controversial ones in colours."""
    models = results.select_members("beta-vae", MIG, HIGGINS)
    points = [(m.scores[HIGGINS].value, m.scores[MIG].value) for m in models]
    axes.scatter(*zip(*points, strict=True), s=9, color=INK, alpha=0.4, linewidths=0)
    for number, (model, words) in enumerate(find_controversial(results)[:shown]):
        at = model.scores[HIGGINS].value, model.scores[MIG].value
        axes.plot(*at, "o", color=PALETTE[number % len(PALETTE)], markersize=6, label=f"{'abcde'[number]}: {words}")
    label_axes(axes, HIGGINS, MIG)
    axes.legend(fontsize=7, frameon=False)


@experiment(
    "chen2018/figS12",
    **share_facts(
        Claim(
            "a model that MIG ranks low can have a high Higgins score",
            pool_models(lambda s: nth_gap(s, 1), "largest gap of ranks, as a share of the models", low=FAR_APART),
        ),
        Claim(
            "in general, both scores agree",
            pool_models(lambda s: spearman(s[..., 0], s[..., 1]), "rank correlation of both scores", low=0.0),
        ),
        Claim(
            "the Higgins score is inflated",
            pool_models(lambda s: (s[..., 1] - s[..., 0]).mean(-1), "mean Higgins score minus mean MIG", low=0.0),
        ),
        notes=("In the paper the Higgins score ranks one model above 75% of all, and MIG above 26%: a gap of .49.",),
    ),
)
def fig_s12(results: Results, make: Any) -> Any:
    """MIG against the Higgins score, and a traversal of the most controversial model."""
    figure = make(figsize=(6.4, 7.0), layout="constrained")
    above, below = figure.subplots(2, 1)
    draw_agreement(above, results, 2)
    below.imshow(np.asarray(traversal(results.load_evaluation(find_controversial(results)[0][0]))))
    below.set_title("a", fontsize=8, color=ACCENT)
    below.set_axis_off()
    return figure


@experiment(
    "chen2018/figS13",
    **share_facts(
        Claim(
            f"the {MODELS_SHOWN} most controversial models are ranked far higher by the Higgins score",
            pool_models(
                lambda s: nth_gap(s, MODELS_SHOWN), f"gap of ranks of the model in place {MODELS_SHOWN}", low=FAR_APART
            ),
        ),
    ),
)
def fig_s13(results: Results, make: Any) -> Any:
    """MIG against the Higgins score, with the most controversial models in colours."""
    figure = make(figsize=(6.4, 4.0), layout="constrained")
    draw_agreement(figure.subplots(), results, MODELS_SHOWN)
    return figure


@experiment(
    "chen2018/figS14",
    **share_facts(
        Claim(
            "the most controversial models are entangled, by MIG",
            pool_models(excess_mig, f"mean MIG of the {MODELS_SHOWN} minus the median of all", high=0.0),
        ),
        notes=("The paper's most controversial model is better than 75% by the Higgins score, and than 25% by MIG.",),
    ),
)
def fig_s14(results: Results, make: Any) -> Any:
    """Latents against factors, of the most controversial models."""
    models = enumerate(find_controversial(results))
    return draw_latents(
        make, {f"{'abcde'[k]}: {words}": results.load_evaluation(model) for k, (model, words) in models}
    )
