"""What the model draws: daunhawer2019's figures 2, 4, 5 and 7, of runs of figure 3 with all weights 1."""

import math
from collections.abc import Mapping
from typing import Any

from unbraid.experiments.base import Claim, Evidence, Results, experiment
from unbraid.experiments.drawing import draw_pictures
from unbraid.experiments.evidence import combine
from unbraid.experiments.statistics import estimate
from unbraid.metrics import Score
from unbraid.papers.daunhawer2019.setup import (
    BETA,
    BUDGET,
    DERIVED,
    FIRST,
    FLIPS,
    JOINT,
    KL_1,
    KL_2,
    KL_C,
    MOSTLY,
    PAIRS,
    SAME,
    SECOND,
    SHARED,
    SIDES,
    SPLITS,
    TOLD_1,
    TOLD_2,
    coherence,
    divergences,
    exceeds,
    mean_of,
    over_betas,
)
from unbraid.report.multimodal_pictures import draw_reconstructions, draw_samples, translation
from unbraid.report.tables import Member

LOST = 0.006
"""Nats per pixel beyond the noise that a good reconstruction may lose (ours): a tenth of what the mean image loses."""

OWN = {"m1": ("scale", "orientation"), "m2": ("posX", "posY")}
KNOWS = {"smoke": {"samples": 60, "neighbours": 3, "resamples": 2}, "small": {"samples": 1_000, "resamples": 5}}
ERROR, APART = "reconstruction/nats", "one shape if drawn apart"
CHOSEN: dict[str, Any] = {"series": {PAIRS: SPLITS[PAIRS]}, "only": {PAIRS: {BETA: 1.0}}}
"""Runs of figure 3 on the paper's split."""

SHOWN = "Shown is the run in which x2 made from x1 shows its shape most often."


def knows(block: str, factor: str) -> str:
    """Name of the score of what a block knows of a factor."""
    return f"I({'s' + block[-1] if block != 'c' else block}; {factor})"


def probes(scale: str, *modalities: str) -> dict[str, tuple[str, dict[str, Any]]]:
    """What c and s_m know of the shape and of the modality's own factors."""
    how = KNOWS.get(scale, {"samples": 5_000, "resamples": 5})
    pairs = [(b, f) for m in modalities for f in ("shape", *OWN[m]) for b in ("c", f"s_{m}")]
    return {knows(block, factor): (f"probe/knn/{block}/{factor}", how) for block, factor in pairs}


def apart_in_latents(modality: str) -> tuple[Claim, Claim]:
    """Rows of a grid keep what s_m knows, columns what c knows."""
    own = f"s_{modality}"
    rows = [
        exceeds(PAIRS, knows("c", f), knows(own, f), f"{knows(own, f)} minus {knows('c', f)}") for f in OWN[modality]
    ]
    shape = exceeds(
        PAIRS, knows(own, "shape"), knows("c", "shape"), f"{knows('c', 'shape')} minus {knows(own, 'shape')}"
    )
    names = " and ".join(OWN[modality])
    return (
        Claim(
            f"rows keep what is specific to {modality}: {names} are in s{modality[-1]} more than in c",
            combine(*rows),
        ),
        Claim(f"columns keep the shape: it is in c more than in s{modality[-1]}", shape),
    )


def best(results: Results) -> Member:
    """The run that is shown."""
    return results.select_best(PAIRS, FIRST)


INFORMATION = (
    "What a block knows is the mutual information, in nats, of a factor and the block's best latent (probe/knn)."
)


@experiment(
    "daunhawer2019/fig2",
    year=2019,
    reference="daunhawer2019, figure 2",
    **CHOSEN,
    scales=over_betas({scale: {**coherence(scale), **probes(scale, "m2")} for scale in SHARED}),
    derived=DERIVED,
    scores=(FIRST, *probes("paper", "m2"), TOLD_2),
    claims=(
        Claim(f"x2 made from x1 shows the shape of x1 in at least {MOSTLY:.0%}", mean_of(PAIRS, FIRST, low=MOSTLY)),
        *apart_in_latents("m2"),
    ),
    notes=(*SAME, BUDGET, SHOWN, INFORMATION),
)
def fig2(results: Results, make: Any) -> Any:
    """x2 made from c of the x1 above a column and s2 of the x2 beside a row, or a draw from the prior (blue)."""
    shown = results.load_evaluation(best(results))
    return draw_pictures(make, [[("x1 above, x2 beside and below", translation(shown, "m1", "m2"))]])


def entropy(flip: float) -> float:
    """Entropy of a pixel's noise, in nats: no reconstruction has a smaller loss per pixel."""
    return -sum(p * math.log(p) for p in (flip, 1 - flip) if p > 0)


def excess(results: Results) -> list[Evidence]:
    """Nats per pixel that reconstructions lose beyond the pixel noise."""
    pixels, noise = 2 * SIDES.get(results.scale, 64) ** 2, entropy(FLIPS.get(results.scale, 0.1))
    cells = results.group_scores(PAIRS, None, ERROR)
    found = estimate(cells, lambda c: c[None][..., 0].mean(-1) / pixels - noise)
    return [Evidence("nats per pixel that are lost, beyond those of the noise", found, high=LOST)]


@experiment(
    "daunhawer2019/fig4",
    year=2019,
    reference="daunhawer2019, figure 4",
    **CHOSEN,
    scales=over_betas({scale: {ERROR: (ERROR, {}), **coherence(scale), **divergences()} for scale in SHARED}),
    scores=(ERROR, KL_C, KL_1, KL_2),
    claims=(Claim("reconstructions show what the samples show, without their noise", excess),),
    notes=(
        *SAME,
        BUDGET,
        SHOWN,
        f"A pixel that is flipped with probability .1 has {entropy(0.1):.4f} nats; the mean image of each modality "
        f"loses .0575 more per pixel, and a good reconstruction at most {LOST} more (ours).",
    ),
)
def fig4(results: Results, make: Any) -> Any:
    """Held-out samples of both modalities above their reconstructions."""
    shown = results.load_evaluation(best(results))
    return draw_pictures(make, [[(f"x{name[-1]}", draw_reconstructions(shown, name, 10))] for name in ("m1", "m2")])


def drawn_apart(scores: Mapping[str, Score]) -> Score:
    """How often modalities would show one shape if they were drawn without regard to each other."""
    score = scores[JOINT]
    return Score("coherence", "classifier", score.details["apart"], score.samples, part="apart")


@experiment(
    "daunhawer2019/fig5",
    year=2019,
    reference="daunhawer2019, figure 5",
    **CHOSEN,
    scales=over_betas({scale: coherence(scale) for scale in SHARED}),
    derived={APART: drawn_apart, **DERIVED},
    scores=(JOINT, APART, TOLD_1, TOLD_2),
    claims=(
        Claim(
            "x1 and x2 of one draw from the prior show one shape more often than two draws would",
            exceeds(PAIRS, APART, JOINT, f"{JOINT} minus {APART}"),
        ),
    ),
    notes=(*SAME, BUDGET, SHOWN),
)
def fig5(results: Results, make: Any) -> Any:
    """25 draws from the prior of each modality; those at one place are of one c."""
    shown = results.load_evaluation(best(results))
    return draw_pictures(make, [[(f"x{name[-1]}", draw_samples(shown, 5, 5)[name])] for name in ("m1", "m2")])


@experiment(
    "daunhawer2019/fig7",
    year=2019,
    reference="daunhawer2019, figure 7",
    **CHOSEN,
    scales=over_betas({scale: {**coherence(scale), **probes(scale, "m1", "m2")} for scale in SHARED}),
    derived=DERIVED,
    scores=(*probes("paper", "m1", "m2"), FIRST, SECOND),
    claims=(*apart_in_latents("m1"), *apart_in_latents("m2")),
    notes=(*SAME, BUDGET, SHOWN, INFORMATION),
)
def fig7(results: Results, make: Any) -> Any:
    """Swaps of c and s within a modality: c of the image above, s of that beside, or draws from the prior (blue)."""
    shown, how = results.load_evaluation(best(results)), {"columns": 9, "rows": 9, "prior_rows": 1, "prior_columns": 1}
    return draw_pictures(make, [[(f"x{name[-1]}", translation(shown, name, name, **how))] for name in ("m1", "m2")])
