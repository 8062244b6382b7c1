"""Pictures that the model generates: daunhawer2019's figures 2, 4, 5 and 7, of runs of figure 3 with all weights 1."""

import math
from typing import Any

from unbraid.experiments.base import experiment
from unbraid.experiments.claims import Evidence
from unbraid.experiments.drawing import draw_pictures
from unbraid.experiments.evidence import Claims, combine, find_mean
from unbraid.experiments.results import Results, derive
from unbraid.experiments.statistics import estimate
from unbraid.metrics import Evaluation
from unbraid.papers.daunhawer2019 import setup
from unbraid.papers.daunhawer2019.setup import JOINT, MIN_ACCURACY, PAIRS, X1_FROM_X2, X2_FROM_X1, exceeds
from unbraid.report.multimodal_pictures import draw_reconstructions, draw_samples, translation

MAX_LOSS = 0.006
"""Nats per pixel beyond the noise that a good reconstruction may lose (ours): a tenth of the mean image's loss."""

OWN_FACTORS = {"m1": ("scale", "orientation"), "m2": ("posX", "posY")}
PROBE_SETTINGS = {
    "smoke": {"samples": 60, "neighbours": 3, "resamples": 2},
    "small": {"samples": 1_000, "resamples": 5},
}
ERROR, APART = "reconstruction/nats", "one shape if drawn apart"
SHARED: dict[str, Any] = {"series": {PAIRS: setup.SPLITS[PAIRS]}, "own_steps": (PAIRS,)}
NOTES = (
    *setup.NOTES,
    setup.BUDGET_NOTE,
    "The figure shows the run in which x2 made from x1 shows its shape most often.",
)
INFORMATION = (
    "I(block; factor) is the mutual information, in nats, of a factor and all latents of the block (probe/knn-block)."
)


def name_information(block: str, factor: str) -> str:
    """Return the name of the score of a block's information about a factor."""
    return f"I({'s' + block[-1] if block != 'c' else block}; {factor})"


def probes(scale: str, *modalities: str) -> setup.Measures:
    """Return the scores of the information of c and s_m about the shape and the modality's own factors."""
    settings = PROBE_SETTINGS.get(scale, {"samples": 5_000, "resamples": 5})
    pairs = [(b, f) for m in modalities for f in ("shape", *OWN_FACTORS[m]) for b in ("c", f"s_{m}")]
    return {name_information(block, factor): (f"probe/knn-block/{block}/{factor}", settings) for block, factor in pairs}


def separates(modality: str) -> Claims:
    """Return the claims that s_m knows more about the modality's own factors, and c more about the shape."""

    def knows_more(block: str, other: str, factor: str) -> Any:
        less, more = name_information(other, factor), name_information(block, factor)
        return exceeds(PAIRS, less, more, f"{more} minus {less}")

    own, short = f"s_{modality}", f"s{modality[-1]}"
    names = " and ".join(OWN_FACTORS[modality])
    return {
        f"rows keep what is specific to {modality}: {names} are in {short} more than in c": combine(
            *(knows_more(own, "c", factor) for factor in OWN_FACTORS[modality])
        ),
        f"columns keep the shape: it is in c more than in {short}": knows_more("c", own, "shape"),
    }


def load_best(results: Results) -> Evaluation:
    """Return the run of the figures."""
    return results.load_evaluation(results.select_best(PAIRS, X2_FROM_X1))


@experiment(
    "daunhawer2019/fig2",
    **SHARED,
    scales=setup.train_at_one(lambda scale: probes(scale, "m2")),
    derived=setup.DERIVED,
    scores=(X2_FROM_X1, *probes("paper", "m2"), setup.REAL_X2),
    claims={
        f"x2 made from x1 shows the shape of x1 in at least {MIN_ACCURACY:.0%}": find_mean(
            PAIRS, X2_FROM_X1, low=MIN_ACCURACY
        ),
        **separates("m2"),
    },
    notes=(*NOTES, INFORMATION),
)
def fig2(results: Results, make: Any) -> Any:
    """x2 made from c of the x1 above a column and s2 of the x2 next to a row, or a draw from the prior (blue)."""
    picture = translation(load_best(results), "m1", "m2")
    return draw_pictures(make, [[("x1 above, x2 beside and below", picture)]])


def entropy(flip: float) -> float:
    """Return the entropy of a pixel's noise in nats, below which no reconstruction loss per pixel can be."""
    return -sum(p * math.log(p) for p in (flip, 1 - flip) if p > 0)


def loses_little(results: Results) -> list[Evidence]:
    """Return the evidence that reconstructions lose few nats per pixel beyond the pixel noise."""
    pixels, noise = 2 * setup.SIDES.get(results.scale, 64) ** 2, entropy(setup.FLIPS.get(results.scale, 0.1))
    cells = results.group_scores(PAIRS, None, ERROR)
    found = estimate(cells, lambda c: c[None][..., 0].mean(-1) / pixels - noise)
    return [Evidence("nats per pixel that are lost, beyond those of the noise", found, high=MAX_LOSS)]


@experiment(
    "daunhawer2019/fig4",
    **SHARED,
    scales=setup.train_at_one(lambda scale: {ERROR: (ERROR, {}), **setup.DIVERGENCES}),
    scores=(ERROR, *setup.DIVERGENCES),
    claims={"reconstructions show what the samples show, without their noise": loses_little},
    notes=(
        *NOTES,
        f"A pixel that is flipped with probability .1 has {entropy(0.1):.4f} nats. The mean image of each modality "
        f"loses .0575 more per pixel, and a good reconstruction at most {MAX_LOSS} more (ours).",
    ),
)
def fig4(results: Results, make: Any) -> Any:
    """Held-out samples of both modalities above their reconstructions."""
    model = load_best(results)
    return draw_pictures(make, [[(f"x{name[-1]}", draw_reconstructions(model, name, 10))] for name in ("m1", "m2")])


@experiment(
    "daunhawer2019/fig5",
    **SHARED,
    scales=setup.train_at_one(lambda scale: {}),
    derived={APART: derive(JOINT, "apart", lambda s: s.details["apart"]), **setup.DERIVED},
    scores=(JOINT, APART, *setup.DERIVED),
    claims={
        "x1 and x2 of one draw from the prior show one shape more often than two draws would": exceeds(
            PAIRS, APART, JOINT, f"{JOINT} minus {APART}"
        )
    },
    notes=NOTES,
)
def fig5(results: Results, make: Any) -> Any:
    """25 draws from the prior of each modality; pictures at the same place share c."""
    pictures = draw_samples(load_best(results), 5, 5)
    return draw_pictures(make, [[(f"x{name[-1]}", pictures[name])] for name in ("m1", "m2")])


@experiment(
    "daunhawer2019/fig7",
    **SHARED,
    scales=setup.train_at_one(lambda scale: probes(scale, "m1", "m2")),
    derived=setup.DERIVED,
    scores=(*probes("paper", "m1", "m2"), X2_FROM_X1, X1_FROM_X2),
    claims={**separates("m1"), **separates("m2")},
    notes=(*NOTES, INFORMATION),
)
def fig7(results: Results, make: Any) -> Any:
    """Swaps of c and s within a modality: c of the image above, s of the image to the left, or priors' draws (blue)."""
    model, shape = load_best(results), {"columns": 9, "rows": 9, "prior_rows": 1, "prior_columns": 1}
    return draw_pictures(make, [[(f"x{name[-1]}", translation(model, name, name, **shape))] for name in ("m1", "m2")])
