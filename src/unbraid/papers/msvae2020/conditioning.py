"""Information about C in refined images, and about attributes in C and Z: msvae2020's figures 5 and 6, on Cars3D."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from unbraid.experiments.base import experiment
from unbraid.experiments.drawing import Draw, collect_points, draw_lines
from unbraid.experiments.evidence import Finding, combine, compare_scores, compare_settings, find_at_each, find_mean
from unbraid.experiments.results import Results
from unbraid.experiments.stand_in import StandIn
from unbraid.metrics import Score
from unbraid.papers.msvae2020.cars import BASE, CARS, DISTANCE, METRICS, MS, NORB, TITLES, sweep_beta

M1, M2, M3, M4 = "cond/Y", "cond/X", "cond/Z-noise", "cond/Y-noise"
NAMES = {f"M{number} ({score})": score for number, score in enumerate((M1, M2, M3, M4), start=1)}
MIN_SHARE_OF_M1, MIN_RATIO_TO_M4 = 0.8, 2.0
"""Share of M1 above which M3 tracks M1, and ratio of M3 to M4 above which M3 is much larger (ours)."""

FROM_C, FROM_Z, FROM_BOTH = "attributes/mlp/c", "attributes/mlp/z", "attributes/mlp/c+z"
GAIN = "attributes/gain"
"""Gain of C+Z over the better of C and Z, on the attribute with the smallest gain."""


def ratio_exceeds(above: str, below: str, low: float) -> Finding:
    """Return the evidence that one score of MS-VAE is on average `low` times another one, at each beta."""
    return find_at_each(
        f"{above} / {below}", [MS], "beta", [above, below], lambda s: s[..., 0].mean(-1) / s[..., 1].mean(-1), low=low
    )


CONDITIONED: dict[str, Any] = {
    "scores": (M1, M2, M3, M4, DISTANCE),
    "claims": {
        "Z adds what the reconstruction lacks: M2 > M1": compare_scores(MS, "beta", M1, M2, low=0.0),
        "with noise for z images tell less of C than y does, and with noise for y hardly anything: M1 > M3 >> M4 "
        f"(M3 more than {MIN_RATIO_TO_M4:g} times M4, ours)": combine(
            compare_scores(MS, "beta", M3, M1, low=0.0), ratio_exceeds(M3, M4, MIN_RATIO_TO_M4)
        ),
        f"M3 tracks M1 without dropping much (at least {MIN_SHARE_OF_M1:.0%} of it, ours)": ratio_exceeds(
            M3, M1, MIN_SHARE_OF_M1
        ),
    },
}


def smallest_gain(scores: Mapping[str, Score]) -> Score:
    """Return the smallest gain over attributes: accuracy from C+Z minus that from the better of C and Z."""
    c, z, both = (scores[name].details["accuracy"] for name in (FROM_C, FROM_Z, FROM_BOTH))
    return replace(scores[FROM_BOTH], value=min(both[name] - max(c[name], z[name]) for name in both), interval=None)


ATTRIBUTES: dict[str, Any] = {
    "scores": (FROM_C, FROM_Z, FROM_BOTH, GAIN),
    "claims": {
        "on every attribute, C and Z together are better than either alone": find_mean(
            MS, GAIN, f"mean {GAIN}", low=0.0
        ),
        "the accuracy from C falls as beta rises": compare_settings(MS, "beta", 1, 10, FROM_C, high=0.0),
        "and that from Z rises": compare_settings(MS, "beta", 1, 10, FROM_Z, low=0.0),
    },
}
FEWER = "The paper uses SmallNORB's five attributes (fig6-norb); Cars3D has three factors."


def plot_scores(names: Mapping[str, str], unit: str) -> Draw:
    """Return a function that draws scores of MS-VAE over beta."""

    def draw(results: Results, make: Any) -> Any:
        figure = make(figsize=(4.2, 2.9), layout="constrained")
        axes = figure.subplots()
        lines = {name: collect_points(results, MS, "beta", score) for name, score in names.items()}
        draw_lines(axes, lines, "beta", unit, {name: results.find_bounds(score) for name, score in names.items()})
        figure.legend(loc="outside upper left", ncols=2, fontsize=7, frameon=False)
        return figure

    return draw


def add_conditioning(name: str, data: StandIn) -> None:
    """Register figure 5 on one of the data sets."""
    what = "Information about C in the codes of reconstructions, with noise in place of z or of y"
    study = sweep_beta(BASE, MS, metrics=(*METRICS, M1, M2, M3, M4), data=data)
    draw = plot_scores(NAMES, "normalised information")
    experiment.add(name, f"{what}, on {TITLES[data]}.", draw, **study, **CONDITIONED)


def add_attributes(name: str, data: StandIn, *notes: str) -> None:
    """Register figure 6 on one of the data sets."""
    study = sweep_beta(BASE, MS, notes=notes, data=data)
    for scale_name, scale in study["scales"].items():
        settings = {"train": 20, "test": 10, "steps": 2} if scale_name == "smoke" else {}
        attributes = {score: (score, settings) for score in (FROM_C, FROM_Z, FROM_BOTH)}
        study["scales"][scale_name] = replace(scale, measures={**scale.measures, **attributes})
    study["derived"] |= {GAIN: smallest_gain}
    what = "Accuracy of a small network that reads attributes from C, from Z and from both"
    draw = plot_scores({"C": FROM_C, "Z": FROM_Z, "C+Z": FROM_BOTH}, "mean accuracy")
    experiment.add(name, f"{what}, on {TITLES[data]}.", draw, **study, **ATTRIBUTES)


add_conditioning("msvae2020/fig5", CARS)
add_conditioning("msvae2020/fig5-norb", NORB)
add_attributes("msvae2020/fig6", CARS, FEWER)
add_attributes("msvae2020/fig6-norb", NORB)
