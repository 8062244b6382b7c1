"""Figures of scores over a setting: one line per series, with intervals over seeds."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from unbraid.experiments.base import MissingResultsError, Results
from unbraid.experiments.drawing import Draw
from unbraid.report.svg import PALETTE, label_axes
from unbraid.report.tables import mean_interval

Points = Mapping[Any, Sequence[float]]
"""Values of a score over seeds, by the value of a setting."""


def draw_curves(
    make: Any, results: Results, key: str, scores: Sequence[str], across: tuple[str, str] | None = None
) -> Any:
    """Draw one panel per score over the setting `key`; `across` adds a panel of two scores against each other."""
    panels = len(scores) + (across is not None)
    figure = make(figsize=(3.4 * panels, 2.9), layout="constrained")
    row = np.atleast_1d(figure.subplots(1, panels))
    for axes, score in zip(row, scores, strict=False):
        draw_lines(axes, {name: collect_points(results, name, key, score) for name in results.series}, key, score)
    if across is not None:
        for color, name in zip(PALETTE, results.series, strict=False):
            columns = [collect_points(results, name, key, score) for score in across]
            x, y = ([np.mean(values) for values in column.values()] for column in columns)
            row[-1].plot(x, y, "o-", color=color, linewidth=1, markersize=3, label=name)
        label_axes(row[-1], *across)
    row[0].legend(frameon=False, fontsize=7)
    return figure


def plot_curves(key: str, *scores: str, across: tuple[str, str] | None = None) -> Draw:
    """Return a function that draws scores over the setting `key`, as `draw_curves` does."""
    return lambda results, make: draw_curves(make, results, key, scores, across)


def draw_lines(axes: Any, lines: Mapping[str, Points], across: str, up: str) -> None:
    """Draw means over a setting with 90% intervals; a line of one point crosses the whole panel."""
    places = {at for line in lines.values() for at in line}
    for color, (name, line) in zip(PALETTE, lines.items(), strict=False):
        if not line:
            continue
        means = [np.mean(values) for values in line.values()]
        if len(line) == 1 and len(places) > 1:
            axes.axhline(means[0], color=color, linewidth=1, linestyle="--", label=name)
            continue
        axes.plot(list(line), means, "o-", color=color, linewidth=1, markersize=3, label=name)
        bands = [mean_interval(values) or (mean, mean) for values, mean in zip(line.values(), means, strict=True)]
        axes.fill_between(list(line), *zip(*bands, strict=True), color=color, alpha=0.15, linewidth=0)
    label_axes(axes, across, up)


def collect_points(results: Results, series: str, key: str, score: str) -> dict[Any, list[float]]:
    """Return the values of a score by the value of a setting, or nothing if the series lacks the score."""
    try:
        cells = results.group_scores(series, key, score)
    except MissingResultsError:
        return {}
    return {at: rows[:, 0].tolist() for at, rows in cells.items()}
