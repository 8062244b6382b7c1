"""Charts as inline SVG whose colours follow the page, light or dark."""

import io
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from unbraid.extras import import_extra

INK, ACCENT = "#010203", "#040506"
"""Placeholders that `to_svg` replaces by the page's colours."""

PALETTE = ("#e07a3f", "#2f9e8f", "#4c7bd9", "#b565c4", "#c9a227", "#7a8691")
"""Line colours that are distinct on light and on dark pages."""

_STYLE = {
    "axes.edgecolor": INK,
    "axes.facecolor": "none",
    "axes.labelcolor": INK,
    "axes.linewidth": 0.6,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlecolor": INK,
    "axes.titlelocation": "left",
    "axes.titlesize": 9,
    "figure.facecolor": "none",
    "font.family": "sans-serif",
    "font.size": 8,
    "lines.linewidth": 1.4,
    "svg.fonttype": "none",
    "text.color": INK,
    "text.parse_math": False,
    "xtick.color": INK,
    "xtick.major.width": 0.6,
    "ytick.color": INK,
    "ytick.major.width": 0.6,
}


def import_report_extra(module: str) -> ModuleType:
    return import_extra(module, "report", "A report")


@contextmanager
def figure_style() -> Iterator[Any]:
    """Yield matplotlib's `Figure` class under the page's style; pyplot's global state stays untouched."""
    figure = import_report_extra("matplotlib.figure")
    with import_report_extra("matplotlib").rc_context({**_STYLE, "svg.hashsalt": "unbraid"}):
        yield figure.Figure


def to_svg(figure: Any, prefix: str) -> str:
    """Return a figure as an SVG element; `prefix` makes its ids unique on the page."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Type": None, "Format": None})
    text = re.sub(r"<metadata>.*?</metadata>", "", buffer.getvalue(), flags=re.DOTALL)
    text = text[text.index("<svg") :].replace(INK, "currentColor").replace(ACCENT, "var(--accent)")
    text = re.sub(r'\b(id="|href="#|url\(#)', rf"\g<1>{prefix}-", text)
    width, height = (round(72 * length) for length in figure.get_size_inches())
    opening = f'<svg viewBox="0 0 {width} {height}" style="--natural: {width}px" aria-hidden="true">'
    return re.sub(r"^<svg[^>]*>", opening, text)


def render_svg(prefix: str, draw: Callable[..., Any], *arguments: Any) -> str:
    """Return the figure that `draw(make, *arguments)` draws, as an SVG element."""
    with figure_style() as make:
        return to_svg(draw(make, *arguments), prefix)


def label_axes(axes: Any, across: str, up: str) -> None:
    """Name both axes and draw a grid."""
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    axes.grid(color=INK, alpha=0.12, linewidth=0.6)


def draw_curve(steps: Sequence[float], values: Sequence[float], prefix: str) -> str:
    """Return a small line chart of one logged number."""
    with figure_style() as make:
        figure = make(figsize=(3.4, 1.9), layout="constrained")
        axes = figure.subplots()
        axes.plot(steps, values, color=ACCENT)
        if len(steps) == 1:
            axes.plot(steps, values, "o", color=ACCENT)
        axes.margins(x=0.01)
        axes.locator_params(nbins=4)
        settled = values[len(values) // 20 :]  # large first values would flatten the rest
        margin = 0.06 * (max(settled) - min(settled)) or 1e-9 + 0.1 * abs(settled[0])
        axes.set_ylim(min(settled) - margin, max(settled) + margin)
        axes.grid(axis="y", color=INK, alpha=0.15, linewidth=0.6)
        axes.set_xlabel("step")
        return to_svg(figure, prefix)
