"""Beyond daunhawer2019: three and five modalities, given any of them, against other models of several modalities.

MNIST in up to five styles that share the digit. For every set of modalities and every modality outside it, that one is
made from c of the set, and a classifier tells whether it shows the digit; the mean over all with a set of so many
modalities is the coherence given that many.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from unbraid.experiments.base import Claim, MissingResultsError, Results, Scale, experiment
from unbraid.experiments.curves import draw_lines
from unbraid.experiments.evidence import combine, compare_means
from unbraid.metrics import Score
from unbraid.papers.daunhawer2019.setup import TINY, exceeds

COUNTS = (3, 5)
METHODS = ("partitioned-mvae", "mvae", "mmvae", "mopoe")
MINE = METHODS[0]
WIDTHS: dict[str, dict[str, Any]] = {
    m: {"c": 16, "s": 16, "beta_m": 3} if m == MINE else {"c": 32, "s": 0} for m in METHODS
}
"""Latents: as many for a decoder to read in all models. A large beta_m keeps s_m from taking all (its advice)."""

ONE, OTHERS, REAL = "given one", "given all others", "classifier on real images"
GIVEN = {f"given {k}": f"given-{k}" for k in range(1, max(COUNTS))}
DRAWS = 5
"""Random subsets per row that stand for MoPoE's 31 of five modalities, at `small` and `budget`."""


def named(method: str, count: int) -> str:
    """A method on so many modalities."""
    return f"{method}, {count}"


SERIES: dict[str, dict[str, Any]] = {
    named(method, count): {"recipe": method, **WIDTHS[method]} for count in COUNTS for method in METHODS
}

STYLES: dict[str, dict[str, Any]] = {
    "small": {"network": "mlp", "encoder.hidden": (64,), "decoder.hidden": (64,), "batch": 32, "steps": 600},
    "budget": {"network": "conv-small", "batch": 128, "steps": 6_000, "anneal": 2_000, "precision": "bf16"},
    "paper": {"network": "conv-small", "batch": 256, "steps": 60_000, "precision": "f32"},
}
CLASSIFIERS = {"smoke": {"samples": 16, "steps": 5}, "small": {"samples": 500, "steps": 1_000}}


def scale(name: str) -> Scale:
    """Settings of a scale; at `smoke` pairs of sprites, which are here for everybody."""
    how = CLASSIFIERS.get(name, {"samples": 2_000, "steps": 2_000})
    measures = {score: (f"coherence/classifier/{part}", how) for score, part in GIVEN.items()}
    if name == "smoke":
        return Scale({**TINY, "seed": range(1)}, measures=measures)
    own: dict[str, dict[str, Any]] = {
        named(method, count): {"data.modalities": count} for count in COUNTS for method in METHODS
    }
    if name != "paper":
        own[named("mopoe", 5)]["draws"] = DRAWS
    return Scale({"data": "mnist-styles", **STYLES[name], "seed": range(3)}, per_series=own, measures=measures)


def first(scores: Mapping[str, Score]) -> Score:
    """Coherence given one modality."""
    return scores["given 1"]


def most(scores: Mapping[str, Score]) -> Score:
    """Coherence of each modality given all others."""
    return scores[max(name for name in scores if name in GIVEN)]


def real(scores: Mapping[str, Score]) -> Score:
    """How often the classifiers are right about real images, mean over modalities."""
    score = first(scores)
    known = [one["accuracy"][score.details["factor"]] for one in score.details["classifiers"].values()]
    return Score("coherence", "classifier", float(np.mean(known)), score.samples, part="real")


def above(score: str) -> tuple[Claim, ...]:
    """Ours is more coherent than each other method, for both numbers of modalities."""
    return tuple(
        Claim(
            f"partitioned-mvae is more coherent than {other}, {score} (ours)",
            combine(*(compare_means(named(other, n), named(MINE, n), score, low=0.0) for n in COUNTS)),
        )
        for other in METHODS[1:]
    )


@experiment(
    "daunhawer2019/many",
    year=2019,
    reference="daunhawer2019, beyond the paper",
    series=SERIES,
    scales={name: scale(name) for name in ("smoke", *STYLES)},
    derived={ONE: first, OTHERS: most, REAL: real},
    scores=(*GIVEN, REAL),
    claims=(
        *above(ONE),
        *above(OTHERS),
        Claim(
            "the more modalities are given, the more coherent partitioned-mvae is (ours)",
            combine(*(exceeds(n, ONE, OTHERS, f"{OTHERS} minus {ONE}, {n}") for n in (named(MINE, k) for k in COUNTS))),
        ),
    ),
    notes=(
        "MNIST in five rendered styles (`mnist-styles`) wants MNIST's files (`unbraid data`); at `smoke` pairs of "
        "sprites stand in, about which the claims say nothing. All of this is ours: the paper has two modalities.",
        "All decoders read 32 numbers: c and s_m of 16 each in partitioned-mvae, c of 32 in the others. c is drawn. "
        "KL(s_m) weighs 3 (ours), so that s_m does not take all.",
        f"MoPoE of five modalities draws {DRAWS} subsets per row and step at `small` and `budget`, without bias, in "
        "place of all 31. Weights of KLs rise from 0 over the first 2,000 steps at `budget`.",
    ),
)
def many(results: Results, make: Any) -> Any:
    """Share of made images that show the digit, by the number of modalities that are given."""
    figure = make(figsize=(3.6 * len(COUNTS), 3.0), layout="constrained")
    for axes, count in zip(figure.subplots(1, len(COUNTS), sharey=True), COUNTS, strict=True):
        draw_lines(axes, {m: _by_size(results, named(m, count)) for m in METHODS}, "modalities given", "coherence")
        axes.set_title(f"{count} modalities", fontsize=9)
        axes.set_xticks(range(1, count))
    figure.axes[0].legend(frameon=False, fontsize=7)
    return figure


def _by_size(results: Results, series: str) -> dict[int, list[float]]:
    """Coherence over seeds by the number of given modalities."""
    found = {}
    for size, score in enumerate(GIVEN, start=1):
        try:
            found[size] = results.group_scores(series, None, score)[None][:, 0].tolist()
        except MissingResultsError:
            break
    return found
