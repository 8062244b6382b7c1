"""A traversal of rows of numbers: how each feature moves while one latent variable does."""

import io
from collections.abc import Callable, Sequence
from typing import Any

from PIL import Image
from torch import Tensor

from unbraid.data.factors import FactorDataset
from unbraid.data.table_columns import list_features, restore
from unbraid.data.tables import columns_of
from unbraid.report.pictures import Picture
from unbraid.report.svg import INK, PALETTE, figure_style, import_report_extra

MAX_PANELS = 12
PANELS_ACROSS = 3
MAX_NAMED_FEATURES = 5
"""Features that are drawn in colour and named, those that move most; the others are grey."""

MIN_MOVE = 0.1
"""A feature that moves less is not named."""

PRINT_INK = "#222222"
DOTS_PER_INCH = 150


def draw_feature_picture(shown: Any, data: FactorDataset) -> Picture:
    """Return `traverse` of rows of numbers as a picture: a panel per latent, a line per feature."""
    import_report_extra("matplotlib").use("Agg", force=False)
    buffer = io.BytesIO()
    with figure_style() as make:
        figure = draw_features(make, shown, data)
        for text in figure.findobj(lambda part: hasattr(part, "get_color") and part.get_color() == INK):
            text.set_color(PRINT_INK)
        figure.savefig(buffer, format="png", dpi=DOTS_PER_INCH, facecolor="white")
    return Picture.of(Image.open(buffer).convert("RGB"))


def draw_features(make: Callable[..., Any], shown: Any, data: FactorDataset) -> Any:
    """Return the figure; the labels of lines say from which value to which a feature moves, in the table's units."""
    count = min(len(shown.latents), MAX_PANELS)
    across = min(PANELS_ACROSS, count)
    down = -(-count // across)
    figure = make(figsize=(3.4 * across, 2.9 * down), layout="constrained")
    panels = figure.subplots(down, across, squeeze=False, sharey=True).flatten()
    columns = columns_of(data)
    names = list_features(columns) if columns else [f"x{place}" for place in range(shown.images.shape[-1])]
    for row, axes in enumerate(panels):
        if row >= count:
            axes.set_visible(False)
            continue
        known = ~shown.values[row].isnan()
        values, features = shown.values[row][known].cpu(), shown.images[row][known].cpu()
        units = restore(columns, features) if columns else features
        _draw_panel(axes, values, features, units, names)
        axes.set_title(f"{shown.names[row]}   {shown.kl[row]:.2f} nats")
        if row % across == 0:
            axes.set_ylabel("standard deviations" if columns else "value")
    return figure


def _draw_panel(axes: Any, values: Tensor, features: Tensor, units: Tensor, names: Sequence[str]) -> None:
    moves = features.max(0).values - features.min(0).values
    order = moves.argsort(descending=True).tolist()
    least = max(MIN_MOVE, 0.15 * float(moves.max()))
    named = [place for place in order[:MAX_NAMED_FEATURES] if float(moves[place]) > least]
    for place in reversed(order):
        if place not in named:
            axes.plot(values, features[:, place], color=INK, alpha=0.2, linewidth=0.8)
    for place, colour in zip(named, PALETTE, strict=False):
        first, last = (_format(float(units[end, place])) for end in (0, -1))
        axes.plot(values, features[:, place], color=colour, label=f"{names[place]}: {first} → {last}")
    axes.grid(axis="y", color=INK, alpha=0.15, linewidth=0.6)
    if named:
        place = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.1)}
        axes.legend(fontsize=7, frameon=False, handlelength=1.2, labelspacing=0.25, **place)


def _format(number: float) -> str:
    if abs(number) >= 1000:
        return f"{number:,.0f}"
    return "0" if abs(number) < 5e-4 else f"{number:.3g}"
