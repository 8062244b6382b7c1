"""Beyond daunhawer2019: three and five modalities, any of them given, against other multimodal models.

The data are MNIST in up to five styles that share the digit. For every set of modalities and every modality outside it,
the model makes that modality from c of the set, and a classifier decides if it shows the digit. The coherence given k
modalities is the mean over all sets of k.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from unbraid.experiments.base import Scale, experiment
from unbraid.experiments.drawing import draw_lines
from unbraid.experiments.evidence import Claims, Finding, combine, compare_means
from unbraid.experiments.results import MissingResultsError, Results
from unbraid.metrics import Score
from unbraid.papers.daunhawer2019.setup import SMOKE, exceeds

COUNTS = (3, 5)
METHODS = ("partitioned-mvae", "mvae", "mmvae", "mopoe")
PARTITIONED = METHODS[0]
DISTANCE, SPREAD = "cross/frechet", "cross/spread"
ONE, OTHERS, REAL = "given one", "given all others", "classifier on real images"
GIVEN = {f"given {k}": f"given-{k}" for k in range(1, max(COUNTS))}
SUBSET_DRAWS = 5
"""Random subsets per row in place of MoPoE's 31 of five modalities, at `small` and `budget`."""


PARTITIONS: dict[str, dict[str, Any]] = {"32": {"c": 32, "s": 0}, "16 + 16": {"c": 16, "s": 16, "beta_m": 3}}
"""Latents: each decoder reads 32 numbers. A large beta_m keeps s_m from taking everything, as the paper advises."""


def series_of(method: str, count: int, partition: str) -> str:
    """Return the name of the series of a method on `count` modalities, with c alone or with c and private latents."""
    return f"{method}, {count}, {partition}"


KINDS = [(method, count, partition) for count in COUNTS for partition in PARTITIONS for method in METHODS]
SERIES: dict[str, dict[str, Any]] = {series_of(*kind): {"recipe": kind[0], **PARTITIONS[kind[2]]} for kind in KINDS}
STYLES: dict[str, dict[str, Any]] = {
    "small": {"network": "mlp", "encoder.hidden": (64,), "decoder.hidden": (64,), "batch": 32, "steps": 600},
    "budget": {"network": "conv-small", "batch": 128, "steps": 6_000, "anneal": 2_000, "annealed": "c"}
    | {"decay": "cosine", "precision": "bf16"},
    "paper": {"network": "conv-small", "batch": 256, "steps": 60_000, "precision": "f32"},
}
CLASSIFIERS = {"smoke": {"samples": 16, "steps": 5}, "small": {"samples": 500, "steps": 1_000}}


def make_scale(name: str) -> Scale:
    """Return the settings of a scale; `smoke` takes pairs of sprites, which need no files."""
    settings = CLASSIFIERS.get(name, {"samples": 2_000, "steps": 2_000})
    measures = {score: (f"coherence/classifier/{part}", settings) for score, part in GIVEN.items()}
    drawn = {"samples": min(1_000, settings["samples"]), "steps": settings["steps"]}
    measures |= {score: (score, drawn) for score in (DISTANCE, SPREAD)}
    if name == "smoke":
        return Scale({**SMOKE, "seed": range(1)}, measures=measures)
    own: dict[str, dict[str, Any]] = {series_of(*kind): {"data.modalities": kind[1]} for kind in KINDS}
    if name != "paper":
        for partition in PARTITIONS:
            own[series_of("mopoe", 5, partition)]["draws"] = SUBSET_DRAWS
    seeds = range(5) if name == "budget" else range(3)
    return Scale({"data": "mnist-styles", **STYLES[name], "seed": seeds}, per_series=own, measures=measures)


def given_all_others(scores: Mapping[str, Score]) -> Score:
    """Return the coherence of each modality given all others."""
    return scores[max(name for name in scores if name in GIVEN)]


def real_accuracy(scores: Mapping[str, Score]) -> Score:
    """Return the classifiers' accuracy on real images, averaged over modalities."""
    score = scores["given 1"]
    accuracies = [one["accuracy"][score.details["factor"]] for one in score.details["classifiers"].values()]
    return Score("coherence", "classifier", float(np.mean(accuracies)), score.samples, part="real")


def compare_with(other: str, partition: str, score: str, **bounds: float) -> Finding:
    """Find a score of ours minus that of another method with the same latents, for both numbers of modalities."""
    names = [(series_of(other, n, partition), series_of(PARTITIONED, n, partition)) for n in COUNTS]
    return combine(*(compare_means(theirs, mine, score, **bounds) for theirs, mine in names))


def compare_all(what: str, score: str, **bounds: float) -> Claims:
    """Return a claim about each other method and each choice of latents."""
    return {
        f"partitioned-mvae is {what} {other} of the same latents ({partition}), {score} (ours)": compare_with(
            other, partition, score, **bounds
        )
        for partition in PARTITIONS
        for other in METHODS[1:]
    }


def private_latents_help(score: str, **bounds: float) -> Finding:
    """Find a score of ours with private latents minus that without, for both numbers of modalities."""
    pairs = [[series_of(PARTITIONED, n, partition) for partition in PARTITIONS] for n in COUNTS]
    return combine(*(compare_means(without, with_them, score, **bounds) for without, with_them in pairs))


RISES = [
    exceeds(name, ONE, OTHERS, f"{OTHERS} minus {ONE}, {name}")
    for name in (series_of(PARTITIONED, count, partition) for count in COUNTS for partition in PARTITIONS)
]


@experiment(
    "daunhawer2019/many",
    reference="beyond the paper",
    series=SERIES,
    scales={name: make_scale(name) for name in ("smoke", *STYLES)},
    derived={ONE: lambda scores: scores["given 1"], OTHERS: given_all_others, REAL: real_accuracy},
    scores=(*GIVEN, REAL, DISTANCE, SPREAD),
    claims={
        **compare_all("more coherent than", ONE, low=0.0),
        **compare_all("more coherent than", OTHERS, low=0.0),
        "private latents make partitioned-mvae more varied (ours)": private_latents_help(SPREAD, low=0.0),
        "and bring its images nearer to the data (ours)": private_latents_help(DISTANCE, high=0.0),
        "the more modalities are given, the more coherent partitioned-mvae is (ours)": combine(*RISES),
    },
    notes=(
        "MNIST in five rendered styles (`mnist-styles`) needs MNIST's files (`unbraid data`). At `smoke` pairs of "
        "sprites replace it; the claims say nothing about them. All of this is ours: the paper has two modalities.",
        "All decoders read 32 numbers, and every method has both partitions of them: c of 32 alone, and c and s_m of "
        "16 each, where KL(s_m) has the weight 3 (ours) so that s_m does not take everything. c is drawn.",
        f"MoPoE of five modalities draws {SUBSET_DRAWS} subsets per row and step at `small` and `budget` in place of "
        "all 31, without bias. At `budget` the weight of KL(c) rises from 0 over the first 2,000 steps, and the rate "
        "falls to 0 by a cosine.",
    ),
)
def many(results: Results, make: Any) -> Any:
    """Share of generated images that show the digit, by the number of given modalities."""
    figure = make(figsize=(3.6 * len(COUNTS), 6.0), layout="constrained")
    panels = figure.subplots(len(PARTITIONS), len(COUNTS), sharey=True)
    for row, partition in zip(panels, PARTITIONS, strict=True):
        for axes, count in zip(row, COUNTS, strict=True):
            lines = {method: _coherence_by_size(results, series_of(method, count, partition)) for method in METHODS}
            draw_lines(axes, lines, "modalities given", "coherence", dict.fromkeys(lines, (0.0, 1.0)))
            axes.set_title(f"{count} modalities, {partition}", fontsize=9)
            axes.set_xticks(range(1, count))
    figure.axes[0].legend(frameon=False, fontsize=7)
    return figure


def _coherence_by_size(results: Results, series: str) -> dict[int, list[float]]:
    """Return the coherence over seeds by the number of given modalities."""
    found = {}
    for size, score in enumerate(GIVEN, start=1):
        try:
            found[size] = results.group_scores(series, None, score)[None][:, 0].tolist()
        except MissingResultsError:
            break
    return found
