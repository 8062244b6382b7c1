"""Disentanglement and generation over beta_2: daunhawer2019's figure 3, on both splits of the pairs."""

from typing import Any

import numpy as np

from unbraid.experiments.base import experiment
from unbraid.experiments.claims import Evidence
from unbraid.experiments.drawing import collect_points, draw_lines, format_tick
from unbraid.experiments.evidence import Finding, combine
from unbraid.experiments.results import Results
from unbraid.experiments.statistics import Cells, align_seeds, cell_means, choose_held_out, estimate, pearson
from unbraid.papers.daunhawer2019 import setup
from unbraid.papers.daunhawer2019.setup import BETA, IMAGES, KL_2, KL_C, PAIRS, TC, X1_FROM_X2, X2_FROM_X1

COLLAPSED_NATS = 1.0
"""KL(s_2) below which s_2 has collapsed (ours): a place among 32 x 32 is 6.9 nats."""

MIN_FALL = 0.1
"""Accuracy that the end of the sweep must lose against its best point (ours): the best of nine is never below."""

RATIO_SETTINGS = {"smoke": {"samples": 64, "width": 8, "depth": 2, "steps": 4}, "small": {"width": 200, "steps": 300}}
"""Settings of the discriminator where it is not that of the paper's table 3."""


def correlate_over_beta(cells: Cells) -> np.ndarray:
    """Return the correlation over beta_2 of the first two scores for each seed [seed], where KL(s_2) is above 1 nat.

    A collapsed s_2 has a low TC, too, but that is the paper's exception. NaN if fewer than 3 values of beta_2 are left.
    """
    first, second, carried = (align_seeds(cells, score) for score in range(3))  # [beta, seed]
    found = []
    for x, y, kept in zip(first.T, second.T, (carried > COLLAPSED_NATS).T, strict=True):
        found.append(float(pearson(x[kept], y[kept])) if kept.sum() >= 3 else np.nan)
    return np.array(found)


def better_where_low(series: str, accuracy: str) -> Finding:
    """Return the evidence that accuracy and TC(c, s_2) are negatively correlated over beta_2.

    Each seed gives one correlation. Which of several tied accuracies is the highest says nothing.
    """

    def evidence(results: Results) -> list[Evidence]:
        each = correlate_over_beta(results.group_scores(series, BETA, accuracy, TC, KL_2))
        found = estimate({None: each[:, None]}, lambda c: c[None][..., 0].mean(-1)).within(-1.0, 1.0)
        what = f"correlation of {accuracy} and {TC} over beta_2 with {KL_2} above {COLLAPSED_NATS:g}, mean over seeds"
        return [Evidence(f"{what}, {series}", found, high=0.0)]

    return evidence


def collapses(series: str) -> Finding:
    """Return the evidence that at the largest beta_2 s_2 collapses, and TC(c, s_2) is below its mean."""

    def evidence(results: Results) -> list[Evidence]:
        cells = results.group_scores(series, BETA, KL_2, TC)
        last = max(cells)
        carried = estimate(cells, lambda c: c[last][..., 0].mean(-1)).within(*results.find_bounds(KL_2))
        below = estimate(cells, lambda c: c[last][..., 1].mean(-1) - cell_means(c)[..., 1].mean(-1))
        return [
            Evidence(f"{KL_2} at beta_2 {last:g}, {series}", carried, high=COLLAPSED_NATS),
            Evidence(f"{TC} at beta_2 {last:g}, minus its mean over beta_2, {series}", below, high=0.0),
        ]

    return evidence


def last_below_best(cells: Cells) -> np.ndarray:
    """Return the mean of the last cell minus that of the best one.

    The other seeds choose the best cell for each seed, since the best of nine would lie above the last by chance.
    """
    found = align_seeds(cells)
    return (found[..., -1, :] - choose_held_out(found)).mean(-1)


def accuracy_falls(series: str) -> Finding:
    """Return the evidence that x_2 from x_1 is less accurate at the largest beta_2 than at the best one."""

    def evidence(results: Results) -> list[Evidence]:
        cells = results.group_scores(series, BETA, X2_FROM_X1)  # in the order of beta_2
        what = f"{X2_FROM_X1} at beta_2 {max(cells):g} minus that at the best one, {series}"
        return [Evidence(what, estimate(cells, last_below_best), high=-MIN_FALL)]

    return evidence


def define_study(split: str, note: str, **settings: Any) -> dict[str, Any]:
    """Return series, scales, scores and notes of figure 3 on one split of the pairs, perhaps with other settings."""

    def measures(scale: str) -> setup.Measures:
        return {TC: ("tc-blocks/ratio/s_m2", RATIO_SETTINGS.get(scale, {})), **setup.DIVERGENCES}

    return {
        "series": {split: {**setup.SPLITS[split], **settings}},
        "own_steps": (split,),
        "scales": setup.sweep_beta(measures),
        "derived": setup.DERIVED,
        "scores": (X2_FROM_X1, X1_FROM_X2, TC, KL_2, setup.KL_1, KL_C, *setup.DERIVED),
        "notes": (
            *setup.NOTES,
            setup.BUDGET_NOTE,
            "beta_alone is the paper's beta_2, the weight of KL(s2); all other weights are 1. c is the posterior mean, "
            "s is drawn from its prior. The paper only gives its numbers in a figure; its bars are standard deviations "
            "over 3 runs, the bands here are 90% intervals of the mean.",
            f"A KL(s2) below {COLLAPSED_NATS:g} nat counts as collapsed, and {MIN_FALL:g} less as less often (ours). "
            "At a small beta_2 a low TC can be collapse, too: if s2 knows everything, nothing is left in c; see KL(c).",
            note,
        ),
    }


def draw_over_beta(results: Results, make: Any) -> Any:
    """Draw three panels over beta_2, one column for each split."""
    figure = make(figsize=(3.6 * len(results.series), 6.2), layout="constrained")
    panels = figure.subplots(3, len(results.series), sharex=True, sharey="row", squeeze=False)
    rows = (((X2_FROM_X1, X1_FROM_X2), "", "accuracy"), ((TC,), "", TC), ((KL_2, KL_C), "beta_2", "KL"))
    for column, series in zip(panels.T, results.series, strict=True):
        for axes, (scores, across, up) in zip(column, rows, strict=True):
            lines = {score: collect_points(results, series, BETA, score) for score in scores}
            draw_lines(axes, lines, across, up, {score: results.find_bounds(score) for score in scores})
        column[0].set_title(series, fontsize=9)
        column[0].set_ylim(0, 1.02)
        column[2].set_xscale("log")
        column[2].xaxis.set_major_formatter(format_tick)
        column[2].xaxis.set_minor_formatter("")
    for axes in panels[::2, 0]:
        axes.legend(frameon=False, fontsize=7)
    return figure


experiment.add(
    "daunhawer2019/fig3",
    "Accuracy of the shape in cross-generated images, TC(c, s2), and KL(s2) and KL(c), over beta_2.",
    draw_over_beta,
    **define_study(PAIRS, "With a split of pairs, training sees every clean image; fig3-images has another split."),
    claims={
        "x2 made from x1 shows the shape best where TC(c, s2) is low": better_where_low(PAIRS, X2_FROM_X1),
        "x1 made from x2 shows the shape best where TC(c, s2) is low": better_where_low(PAIRS, X1_FROM_X2),
        "at the largest beta_2 the low TC is that of a collapsed s2": collapses(PAIRS),
        "and x2 made from x1 shows the shape less often there than at its best": accuracy_falls(PAIRS),
    },
)
experiment.add(
    "daunhawer2019/fig3-subset",
    "Figure 3 with c of the other modalities alone.",
    draw_over_beta,
    reference="figure 3, another reading of the objective",
    **define_study(
        PAIRS,
        "Each modality is reconstructed from c of the others alone, and the KL of the subsets has the weight 1: the "
        "text allows this reading, too.",
        reconstruct="subset",
        beta_subsets=1.0,
    ),
    claims={
        f"with subsets only, {accuracy} is best where TC(c, s2) is low": better_where_low(PAIRS, accuracy)
        for accuracy in (X2_FROM_X1, X1_FROM_X2)
    },
)
BETTER = [better_where_low(IMAGES, accuracy) for accuracy in (X2_FROM_X1, X1_FROM_X2)]


experiment.add(
    "daunhawer2019/fig3-images",
    "Figure 3 on held-out pairs with an image that training never saw.",
    draw_over_beta,
    reference="figure 3, beyond the paper",
    **define_study(IMAGES, "Each held-out pair has at least one image with factor values of no training pair (ours)."),
    claims={
        "what figure 3 shows holds for images that training never saw (ours)": combine(
            *BETTER, collapses(IMAGES), accuracy_falls(IMAGES)
        )
    },
)
