"""Models on which MIG and the Higgins score disagree: chen2018's figures S12 to S14.

A rank is the share of all models that are worse. A model is *controversial* if its rank by the Higgins score lies far
above its rank by MIG. The models with the largest gaps have large gaps by chance, too, and their MIG is low because
they were chosen so. Therefore one protocol of the Higgins score (posterior means) chooses them, the other one
(posterior samples, as in the paper) gives the gap, and a third score says whether they are entangled. That keeps out
noise of a protocol, but not of a model: two scores whose ranks correlate by .8 have such gaps, whatever the reason.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.stats import rankdata

from unbraid.experiments.base import Scale, experiment
from unbraid.experiments.claims import Evidence, WideEvidence
from unbraid.experiments.drawing import draw_latents
from unbraid.experiments.evidence import Claims, Finding, pool_runs
from unbraid.experiments.results import Results
from unbraid.experiments.statistics import Estimate
from unbraid.metrics import Score
from unbraid.papers.chen2018.setup import FACTORS, MIG, OVER_BETA, SPRITES, VAE, build_facts
from unbraid.report import traversal
from unbraid.report.svg import ACCENT, INK, PALETTE, label_axes
from unbraid.report.tables import LEVEL, RESAMPLES, Member

HIGGINS = "betavae/logistic, the factors of MIG"
SAMPLED = "betavae/logistic-sampled, the factors of MIG"
DCI = "dci/booster/disentanglement"
MODELS_SHOWN = 5
INFLATED = "Higgins score above chance"
FAR_APART = 0.25
"""Ranks are far apart if they differ by more than this."""

BEST_SHARE = 0.25
"""The share of all models that are the most disentangled ones."""


SAMPLES = {"smoke": {"factors": FACTORS, "train": 200, "test": 200}, "small": {}}
TREES = {"smoke": {"factors": ("shape", "scale"), "train": 60, "test": 30}}


def build_measures(scale: str) -> dict[str, tuple[str, dict[str, Any]]]:
    """Return the Higgins score by both protocols, and DCI."""
    own = SAMPLES.get(scale, {"factors": FACTORS})
    measures = {name: (name.partition(",")[0], own) for name in (HIGGINS, SAMPLED)}
    return {**measures, DCI: (DCI, TREES.get(scale, {"train": 5_000, "test": 1_000}))}


OVER_MODELS = {name: Scale(scale.settings, measures=build_measures(name)) for name, scale in OVER_BETA.items()}
"""Scales of figure 2's beta-VAEs, with their Higgins scores and DCI."""


def rank_scores(scores: np.ndarray) -> np.ndarray:
    """Return ranks [..., run, score] by each of the scores."""
    return (rankdata(scores, axis=-2) - 1) / scores.shape[-2]


def rank_gaps(scores: np.ndarray) -> np.ndarray:
    """Return ranks by the Higgins score minus ranks by MIG [..., run], from scores [..., run, (MIG, Higgins)]."""
    ranks = rank_scores(scores)
    return ranks[..., 1] - ranks[..., 0]


def confirmed_gap(scores: np.ndarray, count: int) -> np.ndarray:
    """Return the mean rank gap by SAMPLED of the `count` models that are most controversial by HIGGINS.

    Scores are [..., run, (MIG, HIGGINS, SAMPLED)].
    """
    chosen = np.argsort(-rank_gaps(scores[..., :2]), axis=-1)[..., :count]
    gaps = rank_gaps(scores[..., [0, 2]])
    return np.take_along_axis(gaps, chosen, -1).mean(-1)


def share_of_best(scores: np.ndarray) -> np.ndarray:
    """Return the share of the best models by MIG that are among the best by SAMPLED, too.

    Scores are [..., run, (MIG, HIGGINS, SAMPLED)]; the best are a quarter of all.
    """
    count = max(1, round(BEST_SHARE * scores.shape[-2]))
    place = np.argsort(np.argsort(-scores, axis=-2, kind="stable"), axis=-2)
    best = place < count
    return (best[..., 0] & best[..., 2]).sum(-1) / count


def above_chance(scores: Mapping[str, Score]) -> Score:
    """Return the Higgins score with chance, one over the number of factors, moved to 0."""
    score = scores[SAMPLED]
    chance = 1 / len(score.details["accuracy"])
    return replace(score, value=(score.value - chance) / (1 - chance), interval=None, part="above-chance")


def pool_models(statistic: Any, what: str, *others: str, **bounds: float) -> Finding:
    """Find a statistic of MIG, both Higgins scores and other scores of all models."""
    return pool_runs(["beta-vae"], [MIG, HIGGINS, SAMPLED, *others], statistic, what, **bounds)


def find_gap(count: int, what: str) -> Finding:
    """Find the mean gap of ranks of the most controversial models; with more models it grows rather than settles."""
    found = pool_models(lambda s: confirmed_gap(s, count), what)
    return lambda results: [WideEvidence(what, each.estimate, low=FAR_APART) for each in found(results)]


def agree_on_best(results: Results) -> list[Evidence]:
    """Return the share of the best models by MIG that are among the best by the Higgins score."""
    found = pool_models(share_of_best, "share of the best quarter by MIG in that by the Higgins score", low=0.5)
    return [replace(each, estimate=each.estimate.within(0.0, 1.0)) for each in found(results)]


def entangled_by_dci(results: Results) -> list[Evidence]:
    """Return DCI of the most controversial models minus the mean of all, with an interval from random choices."""
    scores = results.group_scores("beta-vae", None, MIG, HIGGINS, DCI)[None]
    chosen = np.argsort(-rank_gaps(scores[:, :2]))[:MODELS_SHOWN]
    values = scores[:, 2]
    rng = np.random.default_rng(0)
    draws = np.array([rng.permutation(values)[: len(chosen)].mean() for _ in range(RESAMPLES)]) - values.mean()
    gap, half = values[chosen].mean() - values.mean(), float(np.quantile(np.abs(draws), LEVEL, method="higher"))
    what = f"mean {DCI} of the {MODELS_SHOWN} minus that of all"
    return [WideEvidence(what, Estimate(gap, gap - half, gap + half), high=0.0)]


def find_controversial(results: Results) -> list[tuple[Member, str]]:
    """Return the most controversial models in order, each with both of its ranks in words."""
    models = results.select_members("beta-vae", MIG, HIGGINS)
    scores = np.array([[m.scores[MIG].value, m.scores[HIGGINS].value] for m in models])
    shares = rank_scores(scores)
    order = np.argsort(-rank_gaps(scores))[:MODELS_SHOWN]
    return [(models[k], f"better than {shares[k, 0]:.0%} by MIG, {shares[k, 1]:.0%} by Higgins") for k in order]


def share_facts(claims: Claims, *notes: str) -> Mapping[str, Any]:
    """Return the facts of one of the three figures."""
    models = (
        "The models are the beta-VAEs of figure 2 (the paper has 200), resampled without regard to beta. The Higgins "
        "score of posterior means chooses the controversial models, that of samples gives the gap."
    )
    known = (SPRITES, f"{models} The bounds are ours.", *notes)
    facts = build_facts(OVER_MODELS, series={"beta-vae": VAE}, claims=claims, notes=known)
    scores = (MIG, HIGGINS, SAMPLED, INFLATED, DCI)
    return {**facts, "scores": scores, "derived": {**facts["derived"], INFLATED: above_chance}}


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
        {
            "a model that MIG ranks low can have a high Higgins score": find_gap(
                1, "gap of ranks of the most controversial model"
            ),
            "in general, both scores agree on the most disentangled models": agree_on_best,
            "the Higgins score is inflated": pool_models(
                lambda s: (s[..., 3] - s[..., 0]).mean(-1),
                "mean Higgins score above chance minus mean MIG",
                INFLATED,
                low=0.0,
            ),
        },
        "In the paper the Higgins score ranks one model above 75% of all, and MIG above 26%: a gap of .49. The "
        "largest gap grows with the number of models, even if the scores differ by noise alone.",
        "What could hardly fail: the Higgins score counts what a classifier can tell apart, and MIG the gap to the "
        "second latent; with chance moved to 0 for both, nothing else aligns their scales.",
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
        {
            f"the {MODELS_SHOWN} most controversial models are ranked far higher by the Higgins score": find_gap(
                MODELS_SHOWN, f"mean gap of ranks of the {MODELS_SHOWN}"
            )
        }
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
        {"the most controversial models are entangled, by a score that did not choose them": entangled_by_dci},
        f"The interval is that of {MODELS_SHOWN} models drawn at random, so more models do not narrow it. DCI counts "
        "the shape, which MIG and the Higgins score leave out here.",
        "The paper's most controversial model is better than 75% by the Higgins score, and than 25% by MIG.",
    ),
)
def fig_s14(results: Results, make: Any) -> Any:
    """Latents against factors, of the most controversial models."""
    models = enumerate(find_controversial(results))
    return draw_latents(
        make, {f"{'abcde'[k]}: {words}": results.load_evaluation(model) for k, (model, words) in models}
    )
