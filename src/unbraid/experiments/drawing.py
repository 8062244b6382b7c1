"""Figures that several experiments draw: scores over a setting, and models side by side."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from unbraid.experiments.results import MissingResultsError, Results
from unbraid.metrics import Evaluation
from unbraid.report import Picture, traversal
from unbraid.report.latent_factor import draw_panels, measure_panels
from unbraid.report.run_page import draw_reconstructions
from unbraid.report.svg import PALETTE, label_axes
from unbraid.report.sweep_figures import draw_boxes, draw_scatter, draw_trade_off
from unbraid.report.tables import Member, mean_interval

PICTURE_WIDTH_INCHES = 3.2
Draw = Callable[[Results, Any], Any]
"""A function that draws the figure of an experiment."""

Points = Mapping[Any, Sequence[float]]
"""Values of a score over seeds, by the value of a setting."""


def plot_boxes(score: str) -> Draw:
    """Return a function that draws a score as boxes, one per series."""
    return lambda results, make: draw_boxes(make, results.members, score, "recipe")


def plot_scatter(across: str, up: str) -> Draw:
    """Return a function that draws two scores against each other, one point per run."""
    return lambda results, make: draw_scatter(make, results.members, across, up)


def plot_trade_off(across: str, up: str) -> Draw:
    """Return a function that draws the means of two scores against each other, joined along a setting."""
    return lambda results, make: draw_trade_off(make, results.members, across, up)


def draw_latents(make: Any, models: Mapping[str, Evaluation]) -> Any:
    """Draw latents against factors of several models, one below the other."""
    sizes = [measure_panels(model) for model in models.values()]
    heights = [height + 0.3 for _, height in sizes]
    figure = make(figsize=(max(width for width, _ in sizes), sum(heights)), layout="constrained")
    parts = np.atleast_1d(figure.subfigures(len(models), 1, height_ratios=heights))
    for part, (title, model) in zip(parts, models.items(), strict=True):
        part.suptitle(title, fontsize=9)
        draw_panels(part, model)
    return figure


def draw_pictures(make: Any, columns: Sequence[Sequence[tuple[str, Picture]]]) -> Any:
    """Draw columns of pictures with titles; a row is as high as its highest picture."""
    rows = list(zip(*columns, strict=True))
    heights = [max(picture.height / picture.width for _, picture in row) for row in rows]
    figure = make(
        figsize=(PICTURE_WIDTH_INCHES * len(columns), PICTURE_WIDTH_INCHES * sum(heights) + 0.3 * len(rows)),
        layout="constrained",
    )
    panels = figure.subplots(len(rows), len(columns), squeeze=False, height_ratios=heights)
    for line, row in zip(panels, rows, strict=True):
        for axes, (title, picture) in zip(line, row, strict=True):
            axes.imshow(np.asarray(picture.convert("RGB")), interpolation="antialiased")
            axes.set_title(title, fontsize=8)
            axes.set_axis_off()
    return figure


def draw_traversals(make: Any, results: Results, members: Mapping[str, Member], **options: Any) -> Any:
    """Draw the images that each model decodes while one latent of one data point moves."""
    columns = [[(title, traversal(results.load_evaluation(m), **options))] for title, m in members.items()]
    return draw_pictures(make, columns)


def draw_decoded(make: Any, results: Results, members: Mapping[str, Member], **options: Any) -> Any:
    """Draw the reconstructions of each model above its traversals."""
    columns = []
    for title, member in members.items():
        model = results.load_evaluation(member)
        columns.append([(title, draw_reconstructions(model)), ("", traversal(model, **options))])
    return draw_pictures(make, columns)


def plot_sides(across: str, up: str) -> Draw:
    """Return a function that draws the sides of an equation against each other, a point per model, and the diagonal."""

    def draw(results: Results, make: Any) -> Any:
        figure = draw_scatter(make, results.members, across, up)
        ends = figure.axes[0].get_xlim()
        figure.axes[0].plot(ends, ends, color=PALETTE[-1], linewidth=0.8, zorder=0)
        return figure

    return draw


def format_title(member: Member, score: str) -> str:
    """Return a title with the series and the score of a run."""
    return f"{member.settings['recipe']}, {score} {member.scores[score].value:.2f}"


def format_tick(value: Any, _: Any) -> str:
    """Return a tick's number as plain text.

    The usual labels of a logarithmic axis are mathematical text, which figures switch off for the sake of names.
    """
    return f"{value:g}"


def draw_curves(
    make: Any, results: Results, key: str, scores: Sequence[str], across: tuple[str, str] | None = None
) -> Any:
    """Draw one panel per score over the setting `key`; `across` adds a panel of two scores against each other."""
    panels = len(scores) + (across is not None)
    figure = make(figsize=(3.4 * panels, 2.9), layout="constrained")
    row = np.atleast_1d(figure.subplots(1, panels))
    for axes, score in zip(row, scores, strict=False):
        lines = {name: collect_points(results, name, key, score) for name in results.series}
        draw_lines(axes, lines, key, score, dict.fromkeys(lines, results.find_bounds(score)))
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


def draw_lines(
    axes: Any, lines: Mapping[str, Points], across: str, up: str, bounds: Mapping[str, tuple[float, float]]
) -> None:
    """Draw means over a setting with 90% intervals; a line of one point crosses the whole panel.

    `bounds` are the smallest and the largest possible value of each line; no interval goes beyond them.
    """
    places = {at for line in lines.values() for at in line}
    for color, (name, line) in zip(PALETTE, lines.items(), strict=False):
        if not line:
            continue
        means = [np.mean(values) for values in line.values()]
        if len(line) == 1 and len(places) > 1:
            axes.axhline(means[0], color=color, linewidth=1, linestyle="--", label=name)
            continue
        axes.plot(list(line), means, "o-", color=color, linewidth=1, markersize=3, label=name)
        pairs = zip(line.values(), means, strict=True)
        bands = [mean_interval(values, bounds[name]) or (mean, mean) for values, mean in pairs]
        axes.fill_between(list(line), *zip(*bands, strict=True), color=color, alpha=0.15, linewidth=0)
    label_axes(axes, across, up)


def collect_points(results: Results, series: str, key: str, score: str) -> dict[Any, list[float]]:
    """Return the values of a score by the value of a setting, or nothing if the series lacks the score."""
    try:
        cells = results.group_scores(series, key, score)
    except MissingResultsError:
        return {}
    return {at: rows[:, 0].tolist() for at, rows in cells.items()}
