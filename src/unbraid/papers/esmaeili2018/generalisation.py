"""esmaeili2018, figure 9: digits with a thickness or a width that training never saw."""

from typing import Any

from unbraid.experiments.base import Claim, Results, Scale, experiment
from unbraid.experiments.drawing import label_axes
from unbraid.papers.esmaeili2018.setup import (
    BUDGET_DIGITS,
    HFVAE,
    MNIST,
    OURS,
    PAPER_DIGITS,
    SMALL_DIGITS,
    SMOKE,
    mean_of,
)
from unbraid.report.svg import PALETTE

PRUNED = "prune:(digit=7 & thickness>=#8) | (digit=0 & width<=#4)"
THICK, NARROW = "thick 7s drawn", "narrow 0s drawn"
THICK_LATENT, NARROW_LATENT = "thickness of 7s encoded", "width of 0s encoded"
RELATED = 0.3
"""A rank correlation above this one says that a latent follows a feature (ours)."""


def measured(thick: str, narrow: str) -> dict[str, tuple[str, dict[str, Any]]]:
    """The two features of the two kinds of rows that were pruned."""
    kinds = {"thickness": (thick, THICK, THICK_LATENT), "width": (narrow, NARROW, NARROW_LATENT)}
    made: dict[str, tuple[str, dict[str, Any]]] = {}
    for measure, (where, drawn, encoded) in kinds.items():
        made[drawn] = ("strokes/reconstruction", {"measure": measure, "where": where})
        made[encoded] = ("strokes/latent", {"measure": measure, "where": where})
    return made


DIGITS = measured("digit=7", "digit=0")
OWN = {"HFVAE": {**MNIST, "split": PRUNED}}
FORMS = "prune:(shape=heart & scale>=#2) | (shape=square & scale<=#0)"


@experiment(
    "esmaeili2018/fig9",
    year=2018,
    reference="esmaeili2018, figure 9",
    series={"HFVAE": HFVAE},
    scales={
        "smoke": Scale(
            {**SMOKE, "split": FORMS},
            per_series={"HFVAE": {"latents": "normal+concrete:3"}},
            measures=measured("shape=heart", "shape=square"),
        ),
        "small": Scale(SMALL_DIGITS, per_series=OWN, measures=DIGITS),
        "budget": Scale(BUDGET_DIGITS, per_series=OWN, measures=DIGITS),
        "paper": Scale(PAPER_DIGITS, per_series=OWN, measures=DIGITS),
    },
    scores=(THICK, NARROW, THICK_LATENT, NARROW_LATENT),
    claims=(
        Claim("it reconstructs 7s thicker than all it was trained on", mean_of("HFVAE", THICK, low=0.5)),
        Claim("it reconstructs 0s narrower than all it was trained on", mean_of("HFVAE", NARROW, low=0.5)),
        Claim("a latent follows the thickness of unseen 7s", mean_of("HFVAE", THICK_LATENT, low=RELATED)),
        Claim("a latent follows the width of unseen 0s", mean_of("HFVAE", NARROW_LATENT, low=RELATED)),
    ),
    notes=(
        OURS,
        "Pruned are the 7s among the thickest fifth of all digits and the 0s among the narrower half. Drawn is the "
        "share of their reconstructions whose measured feature lies in the pruned range; encoded the rank correlation "
        "with the latent that follows the feature in every other row, in the rows between. Cuts and bounds (one half, "
        f"{RELATED}) are ours.",
    ),
)
def fig9(results: Results, make: Any) -> Any:
    """Measured features of digits that training never saw, and of their reconstructions."""
    figure = make(figsize=(7.0, 2.8), layout="constrained")
    member = results.select_members("HFVAE", THICK, NARROW)[0]
    for axes, score in zip(figure.subplots(1, 2), (THICK, NARROW), strict=True):
        details = member.scores[score].details
        for color, part in zip(PALETTE, ("originals", "reconstructions"), strict=False):
            axes.stairs(details[part], details["edges"], fill=True, alpha=0.5, color=color, label=part)
        axes.axvspan(*details["range"], alpha=0.08, color=PALETTE[-1])
        axes.set_title(score)
        label_axes(axes, "pixels", "rows")
    figure.axes[0].legend(frameon=False)
    return figure
