"""Whether C still rules, and what C and Z know: msvae2020's figures 5 and 6, on Cars3D."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from unbraid.experiments.base import Claim, Evidence, Results, experiment
from unbraid.experiments.curves import collect_points, draw_lines
from unbraid.experiments.drawing import label_axes
from unbraid.experiments.evidence import Finding, combine, compare_scores, compare_settings, pool_runs
from unbraid.experiments.statistics import Cells, estimate
from unbraid.metrics import Score
from unbraid.papers.msvae2020.cars import BASE, DISTANCE, METRICS, MS, on_cars

M1, M2, M3, M4 = "cond/Y", "cond/X", "cond/Z-noise", "cond/Y-noise"
TRACKS, MUCH = 0.8, 2.0
"""Share of M1 that M3 has where it tracks it, and how often M4 goes into M3 where it is much larger (ours)."""

FROM_C, FROM_Z, FROM_BOTH = "attributes/mlp/c", "attributes/mlp/z", "attributes/mlp/c+z"
GAIN = "attributes/gain"
"""Of C+Z over the better of C and Z alone, on the attribute where it is least."""


def ratio(series: str, key: str, above: str, below: str, **where: float) -> Finding:
    """The mean of one score over that of another, at each value of a setting."""

    def evidence(results: Results) -> list[Evidence]:
        cells, made = results.group_scores(series, key, above, below), []
        for at in cells:

            def share(c: Cells, at: Any = at) -> Any:
                return c[at][..., 0].mean(-1) / c[at][..., 1].mean(-1)

            made.append(Evidence(f"{above} / {below}, {key} {at:g}", estimate(cells, share), **where))
        return made

    return evidence


@experiment(
    "msvae2020/fig5",
    year=2020,
    reference="msvae2020, figure 5",
    **on_cars(BASE, MS, metrics=(*METRICS, M1, M2, M3, M4)),
    scores=(M1, M2, M3, M4, DISTANCE),
    claims=(
        Claim("Z adds what the reconstruction lacks: M2 > M1", compare_scores(MS, "beta", M1, M2, low=0.0)),
        Claim(
            "with noise for z images tell less of C than y does, and with noise for y hardly anything: M1 > M3 >> M4 "
            f"(M3 more than {MUCH:g} times M4, ours)",
            combine(compare_scores(MS, "beta", M3, M1, low=0.0), ratio(MS, "beta", M3, M4, low=MUCH)),
        ),
        Claim(
            f"M3 tracks M1 without dropping much (at least {TRACKS:.0%} of it, ours)",
            ratio(MS, "beta", M3, M1, low=TRACKS),
        ),
    ),
)
def fig5(results: Results, make: Any) -> Any:
    """Information that codes of reconstructions have of C, with noise in the place of z and of y, on Cars3D."""
    names = {f"M{number} ({score})": score for number, score in enumerate((M1, M2, M3, M4), start=1)}
    return _lines(results, make, names, "normalised information")


def least_gain(scores: Mapping[str, Score]) -> Score:
    """On the attribute where it is least: accuracy from C+Z, less that from the better of C and Z."""
    c, z, both = (scores[name].details["accuracy"] for name in (FROM_C, FROM_Z, FROM_BOTH))
    return replace(scores[FROM_BOTH], value=min(both[name] - max(c[name], z[name]) for name in both), interval=None)


def attribute_facts() -> dict[str, Any]:
    """Series, scales and scores of figure 6."""
    made = on_cars(BASE, MS, more=["The paper has SmallNORB's five attributes; Cars3D has three factors."])
    small = {"train": 20, "test": 10, "steps": 2}
    for name, scale in made["scales"].items():
        how = small if name == "smoke" else {}
        more = {score: (score, how) for score in (FROM_C, FROM_Z, FROM_BOTH)}
        own = {**scale.measures, **more}
        made["scales"][name] = replace(scale, measures=own)
    return {**made, "derived": {**made["derived"], GAIN: least_gain}}


@experiment(
    "msvae2020/fig6",
    year=2020,
    reference="msvae2020, figure 6",
    **attribute_facts(),
    scores=(FROM_C, FROM_Z, FROM_BOTH, GAIN),
    claims=(
        Claim(
            "on every attribute, C and Z together are better than either alone",
            pool_runs([MS], [GAIN], lambda s: s[..., 0].mean(-1), f"mean {GAIN}", low=0.0),
        ),
        Claim("the accuracy from C falls as beta rises", compare_settings(MS, "beta", 1, 10, FROM_C, high=0.0)),
        Claim("and that from Z rises", compare_settings(MS, "beta", 1, 10, FROM_Z, low=0.0)),
    ),
)
def fig6(results: Results, make: Any) -> Any:
    """Accuracy of attributes that a small network reads from C, from Z and from both, on Cars3D."""
    return _lines(results, make, {"C": FROM_C, "Z": FROM_Z, "C+Z": FROM_BOTH}, "mean accuracy")


def _lines(results: Results, make: Any, names: Mapping[str, str], up: str) -> Any:
    """Several scores of MS-VAE over beta."""
    figure = make(figsize=(4.2, 2.9), layout="constrained")
    axes = figure.subplots()
    draw_lines(axes, {name: collect_points(results, MS, "beta", score) for name, score in names.items()}, "beta", up)
    label_axes(axes, "beta", up)
    axes.legend(frameon=False, fontsize=7)
    return figure
