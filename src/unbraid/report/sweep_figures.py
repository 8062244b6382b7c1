"""Charts of a sweep: scores against settings, trade-offs of two scores, and runs as points."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from unbraid.report.svg import INK, PALETTE, label_axes
from unbraid.report.tables import (
    Member,
    SeedGroup,
    find_varying_settings,
    format_setting,
    group_by_setting,
    has_score,
    is_number,
    list_pairs,
    list_values,
)

MARKERS = ("o", "s", "^", "D", "v", "P")
BOX_WIDTH = 0.7
MAX_POINTS_PER_BOX = 20
"""A box with more values shows its outliers only."""


def assign_colors(members: Sequence[Member]) -> dict[str, str]:
    recipes = list_values(members, "recipe")
    return {recipe: PALETTE[index % len(PALETTE)] for index, recipe in enumerate(recipes)}


def choose_path_key(members: Sequence[Member]) -> str | None:
    """Return the setting along which lines join points: beta, or else the first with numeric values."""
    keys = [key for key in find_varying_settings(members) if key not in ("seed", "recipe")]
    numeric = [key for key in keys if all(is_number(value) for value in list_values(members, key))]
    return "beta" if "beta" in numeric else next(iter(numeric), None)


def group_into_series(members: Sequence[Member]) -> dict[str, list[SeedGroup]]:
    """Return the groups that each line joins, by the name in the legend: they differ in the path's setting only."""
    path, lines = choose_path_key(members), {}
    for setting in group_by_setting(members):
        recipe = setting.members[0].settings.get("recipe", "")
        others = [f"{key}={format_setting(v)}" for key, v in setting.settings.items() if key not in (path, "recipe")]
        lines.setdefault(", ".join([str(recipe), *others]), []).append(setting)
    return lines


def measure_boxes(members: Sequence[Member], key: str) -> float:
    """Return the width of a figure with the boxes of a setting, in inches."""
    count = len(list_values(members, key)) * (1 if key == "recipe" else len(assign_colors(members)))
    return min(9.0, max(3.4, 0.9 + 0.34 * count))


def draw_boxes(make: Any, members: Sequence[Member], score: str, key: str) -> Any:
    """Return a figure of a score against a setting: a box per value and recipe, over seeds and other settings."""
    values, colors = list_values(members, key), assign_colors(members)
    per_value = {} if key == "recipe" else colors
    long = max(len(str(value)) for value in values) * len(values) > 40
    figure = make(figsize=(measure_boxes(members, key), 3.0 if long else 2.5), layout="constrained")
    axes = figure.subplots()
    slot = BOX_WIDTH / max(1, len(per_value))
    for place, value in enumerate(values):
        for index, recipe in enumerate(per_value or [value]):
            chosen = [m for m in members if _has_settings(m, {key: value, "recipe": recipe}) and has_score(m, score)]
            offset = (index - (max(1, len(per_value)) - 1) / 2) * slot
            _draw_box(axes, place + offset, 0.8 * slot, [m.scores[score].value for m in chosen], colors[recipe])
    slanted = {"rotation": 30, "ha": "right", "rotation_mode": "anchor"} if long else {}  # a name ends below its box
    axes.set_xticks(range(len(values)), [str(value) for value in values], **slanted)
    axes.set_xlim(-0.6, len(values) - 0.4)
    axes.set_xlabel("" if key == "recipe" else key)
    axes.set_ylabel(score)
    axes.grid(axis="y", color=INK, alpha=0.15, linewidth=0.6)
    if len(per_value) > 1:
        _legend(figure, colors)
    return figure


def _has_settings(member: Member, settings: dict[str, Any]) -> bool:
    return all(format_setting(member.settings.get(key)) == value for key, value in settings.items())


def _draw_box(axes: Any, place: float, width: float, values: list[float], color: str) -> None:
    if not values:
        return
    line = {"color": color, "linewidth": 1}
    axes.boxplot(
        [values],
        positions=[place],
        widths=width,
        showfliers=len(values) > MAX_POINTS_PER_BOX,
        flierprops={"marker": ".", "markersize": 2, "markerfacecolor": color, "markeredgecolor": color},
        medianprops={"color": color, "linewidth": 2},
        boxprops=line,
        whiskerprops=line,
        capprops=line,
        manage_ticks=False,
    )
    if len(values) <= MAX_POINTS_PER_BOX:
        axes.plot(
            _spread(place, width, len(values)), values, "o", color=color, markersize=3, alpha=0.6, markeredgewidth=0
        )


def _spread(place: float, width: float, count: int) -> list[float]:
    """Return places side by side inside a box, neighbours far apart, so that equal values do not hide each other."""
    order = np.argsort(np.argsort([(0.618 * i) % 1 for i in range(count)]))
    return [place + 0.6 * width * ((rank + 0.5) / count - 0.5) for rank in order]


def draw_trade_off(make: Any, members: Sequence[Member], across: str, up: str) -> Any:
    """Return a figure of two scores: a point per setting at the means, with 90% intervals, joined along the path."""
    figure, axes = _make_plane(make, across, up)
    path = choose_path_key(members)
    for index, (name, settings) in enumerate(group_into_series(members).items()):
        color, marker = PALETTE[index % len(PALETTE)], MARKERS[index // len(PALETTE) % len(MARKERS)]
        shown = [setting for setting in settings if setting.values(across) and setting.values(up)]
        points = [(_mean(setting, across), _mean(setting, up)) for setting in shown]
        if not points:
            continue
        axes.plot(*zip(*points, strict=True), color=color, linewidth=1, alpha=0.6)
        for setting, (x, y) in zip(shown, points, strict=True):
            error = {"xerr": _error(setting, across, x), "yerr": _error(setting, up, y)}
            axes.errorbar(x, y, **error, fmt=marker, color=color, markersize=4.5, elinewidth=0.8, capsize=1.5)
            _annotate(axes, setting, path, (x, y))
        axes.plot([], [], marker=marker, color=color, label=name)
    figure.legend(loc="outside upper left", ncols=2, frameon=False)
    return figure


def draw_scatter(make: Any, members: Sequence[Member], across: str, up: str) -> Any:
    """Return a figure of two scores: a small point per run, and a diamond per setting at the means."""
    figure, axes = _make_plane(make, across, up)
    colors, path = assign_colors(members), choose_path_key(members)
    for recipe, color in colors.items():
        points = list_pairs(members, recipe, across, up)
        if points:
            axes.scatter(*zip(*points, strict=True), s=12, color=color, alpha=0.45, edgecolors=INK, linewidths=0.4)
    for setting in group_by_setting(members):
        if setting.values(across) and setting.values(up):
            x, y = _mean(setting, across), _mean(setting, up)
            color = colors[setting.members[0].settings.get("recipe", "")]
            axes.plot(x, y, "D", color=color, markersize=6, markeredgecolor=INK, markeredgewidth=0.6)
            _annotate(axes, setting, path, (x, y))
    _legend(figure, colors)
    return figure


def _make_plane(make: Any, across: str, up: str) -> tuple[Any, Any]:
    figure = make(figsize=(6.4, 4.0), layout="constrained")
    axes = figure.subplots()
    label_axes(axes, across, up)
    return figure, axes


def _annotate(axes: Any, setting: SeedGroup, path: str | None, point: tuple[float, float]) -> None:
    """Write the value of the path's setting next to a point."""
    if path is not None:
        label = f"{setting.settings[path]:g}"
        axes.annotate(label, point, (5, 5), textcoords="offset points", fontsize=7, color=INK)


def _legend(figure: Any, colors: dict[str, str]) -> None:
    axes = figure.axes[0]
    handles = [axes.plot([], [], "s", color=color, label=name)[0] for name, color in colors.items()]
    figure.legend(handles=handles, loc="outside upper left", ncols=min(4, len(handles)), frameon=False)


def _mean(setting: SeedGroup, score: str) -> float:
    return float(np.mean(setting.values(score)))


def _error(setting: SeedGroup, score: str, mean: float) -> list[list[float]] | None:
    interval = setting.mean_interval(score)
    return None if interval is None else [[max(0.0, mean - interval[0])], [max(0.0, interval[1] - mean)]]
