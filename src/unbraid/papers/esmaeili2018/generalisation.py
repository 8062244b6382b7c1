"""Digits with a thickness or a width that training never saw: esmaeili2018's figure 9."""

from typing import Any

from unbraid.experiments.base import Scale, experiment
from unbraid.experiments.evidence import find_mean
from unbraid.experiments.results import MissingResultsError, Results
from unbraid.papers.esmaeili2018.setup import HFVAE, MNIST, OURS, SMOKE, build_digit_scales
from unbraid.report.svg import PALETTE, label_axes

PRUNED = "prune:(digit=7 & thickness>=#8) | (digit=0 & width<=#4)"
THICK, NARROW = "thick 7s drawn", "narrow 0s drawn"
THICK_LATENT, NARROW_LATENT = "thickness of 7s encoded", "width of 0s encoded"
MIN_CORRELATION = 0.3
"""A latent follows a feature if their rank correlation is above this (ours)."""


def measure_strokes(thick: str, narrow: str) -> dict[str, tuple[str, dict[str, Any]]]:
    """Return measures of both features; `thick` and `narrow` select the rows of each kind."""
    kinds = {"thickness": (thick, THICK, THICK_LATENT), "width": (narrow, NARROW, NARROW_LATENT)}
    return {
        score: (f"strokes/{protocol}", {"measure": feature, "where": where})
        for feature, (where, *scores) in kinds.items()
        for score, protocol in zip(scores, ("reconstruction", "latent"), strict=True)
    }


PRUNED_SHAPES = "prune:(shape=heart & scale>=#2) | (shape=square & scale<=#0)"


@experiment(
    "esmaeili2018/fig9",
    series={"HFVAE": HFVAE},
    scales=build_digit_scales(
        Scale(
            {**SMOKE, "split": PRUNED_SHAPES},
            {"HFVAE": {"latents": "normal+concrete:3"}},
            measure_strokes("shape=heart", "shape=square"),
        ),
        {"HFVAE": {**MNIST, "split": PRUNED}},
        measure_strokes("digit=7", "digit=0"),
    ),
    scores=(THICK, NARROW, THICK_LATENT, NARROW_LATENT),
    claims={
        "it reconstructs 7s thicker than all it was trained on": find_mean("HFVAE", THICK, low=0.5),
        "it reconstructs 0s narrower than all it was trained on": find_mean("HFVAE", NARROW, low=0.5),
        "a latent follows the thickness of unseen 7s": find_mean("HFVAE", THICK_LATENT, low=MIN_CORRELATION),
        "a latent follows the width of unseen 0s": find_mean("HFVAE", NARROW_LATENT, low=MIN_CORRELATION),
    },
    notes=(
        OURS,
        "We prune the 7s among the thickest fifth of all digits and the 0s among the narrower half. Drawn is the share "
        "of their reconstructions whose measured feature lies in the pruned range. Encoded is the rank correlation "
        "with a latent: half of the rows choose the latent that follows the feature, the others give the value. "
        f"Cuts and bounds (one half, {MIN_CORRELATION}) are ours.",
    ),
)
def fig9(results: Results, make: Any) -> Any:
    """Measured features of digits that training never saw, and of their reconstructions."""
    figure = make(figsize=(7.0, 2.8), layout="constrained")
    member = results.select_members("HFVAE", THICK, NARROW)[0]
    for axes, score in zip(figure.subplots(1, 2), (THICK, NARROW), strict=True):
        details = member.scores[score].details
        if "edges" not in details:
            raise MissingResultsError("these results are scores without histograms")
        for color, part in zip(PALETTE, ("originals", "reconstructions"), strict=False):
            axes.stairs(details[part], details["edges"], fill=True, alpha=0.5, color=color, label=part)
        axes.axvspan(*details["range"], alpha=0.08, color=PALETTE[-1])
        axes.set_title(score)
        label_axes(axes, "pixels", "rows")
    figure.axes[0].legend(frameon=False)
    return figure
