"""Charts of latents against factors (chen2018, figure S4): the mean code at each value of each factor."""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from unbraid.data.factors import Factor, FactorDataset
from unbraid.metrics import Evaluation
from unbraid.report.svg import ACCENT, INK, PALETTE, figure_style, import_report_extra, to_svg
from unbraid.report.traversals import compute_coordinate_kl

MIN_ACTIVE_KL_NATS = 0.05
MAX_LATENTS = 10
POSITIONS = ("posX", "posY")
NOMINAL = ("category", "class", "digit", "identity", "instance", "label", "lighting", "object", "shape")
"""Last words of names of factors whose values have no order, even if no words name them."""

MAX_TICKS = 12


class CodesByLabel(NamedTuple):
    """Mean and standard deviation of codes at each value of a label [values, latents]; NaN if no row has the value."""

    mean: np.ndarray
    std: np.ndarray


def codes_by_label(codes: Tensor, labels: Tensor, size: int) -> CodesByLabel:
    """Return the statistics of codes [rows, latents] at labels [rows] below `size`; negative labels are missing."""
    codes, labels = codes.cpu().double(), labels.cpu()
    codes, labels = codes[labels >= 0], labels[labels >= 0]
    count = torch.bincount(labels, minlength=size).double()[:, None]
    mean = torch.zeros(size, codes.shape[1], dtype=codes.dtype).index_add_(0, labels, codes) / count
    squares = torch.zeros_like(mean).index_add_(0, labels, (codes - mean[labels]).square())
    return CodesByLabel(mean.numpy(), (squares / count).sqrt().numpy())


def active_latents(evaluation: Evaluation) -> list[int]:
    """Return the coordinates with the largest KL, in descending order; at least two."""
    kl = compute_coordinate_kl(evaluation)
    order = kl.argsort(descending=True).tolist()
    return order[: max(2, min(MAX_LATENTS, int((kl > MIN_ACTIVE_KL_NATS).sum())))]


def draw_latent_factor(evaluation: Evaluation, prefix: str = "latent-factor") -> str:
    """Return an SVG with one row per factor and one column per active latent.

    Lines are means over all other factors and bands one standard deviation. Factors posX and posY share a row of maps
    (blue is high, red is low). A factor without an order, such as shape, has points; if words name its few values, the
    lines of other factors are drawn for each of them.
    """
    with figure_style() as make:
        figure = make(figsize=measure_panels(evaluation), layout="constrained")
        draw_panels(figure, evaluation)
        return to_svg(figure, prefix)


def measure_panels(evaluation: Evaluation) -> tuple[float, float]:
    """Return the width and height of the panels of one model, in inches."""
    return 0.6 + 1.35 * len(active_latents(evaluation)), 0.5 + 1.2 * len(_list_rows(evaluation.dataset))


def draw_panels(figure: Any, evaluation: Evaluation) -> None:
    """Draw the panels of one model on a figure or subfigure."""
    data, latents = evaluation.dataset, active_latents(evaluation)
    codes, values = evaluation.means[:, latents], evaluation.factors
    rows = _list_rows(data)
    panels = figure.subplots(len(rows), len(latents), squeeze=False, sharey=False)
    for line, factors in zip(panels, rows, strict=True):
        if len(factors) == 2:
            _draw_maps(line, codes, values[:, list(factors)], [data.factors[k] for k in factors])
        else:
            _draw_lines(line, codes, values, data, factors[0])
    for axes, latent in zip(panels[0], latents, strict=True):
        axes.set_title(evaluation.code_names[latent])
    _draw_legend(figure, data)


def _list_rows(data: FactorDataset) -> list[tuple[int, ...]]:
    """Return the factors of each row: two for the map of positions, else one."""
    names = data.factor_names
    if not all(position in names for position in POSITIONS):
        return [(k,) for k in range(len(names))]
    pair = tuple(names.index(position) for position in POSITIONS)
    return [(k,) for k in range(len(names)) if k not in pair] + [pair]


def _choose_split(data: FactorDataset) -> int | None:
    """Return the factor whose values have separate lines: the first with few values that are words."""
    named = (k for k, factor in enumerate(data.factors) if _has_words(factor) and factor.size <= len(PALETTE))
    return next(named, None)


def _has_words(factor: Factor) -> bool:
    return factor.values is not None and isinstance(factor.values[0], str)


def is_nominal(factor: Factor) -> bool:
    """Return True if a factor's values are categories, which no line may join."""
    return _has_words(factor) or factor.name.lower().replace("-", "_").split("_")[-1] in NOMINAL


def _draw_lines(line: np.ndarray, codes: Tensor, values: Tensor, data: FactorDataset, k: int) -> None:
    factor, split = data.factors[k], _choose_split(data)
    x = np.arange(factor.size)
    if is_nominal(factor) or split is None:
        stats = codes_by_label(codes, values[:, k], factor.size)
        for j, axes in enumerate(line):
            if is_nominal(factor):
                axes.errorbar(x, stats.mean[:, j], stats.std[:, j], fmt="o", color=ACCENT, markersize=3, linewidth=1)
            else:
                _draw_band(axes, x, stats.mean[:, j], stats.std[:, j], ACCENT)
    else:
        groups = data.factors[split].size
        stats = codes_by_label(codes, _combine(values[:, split], values[:, k], factor.size), groups * factor.size)
        for j, axes in enumerate(line):
            for g in range(groups):
                part = slice(g * factor.size, (g + 1) * factor.size)
                _draw_band(axes, x, stats.mean[part, j], stats.std[part, j], PALETTE[g])
    _format_axes(line, factor)


def _combine(slow: Tensor, fast: Tensor, size: int) -> Tensor:
    """Return two labels as one, -1 if either is missing; `size` is that of the fast one."""
    return torch.where((slow < 0) | (fast < 0), -1, slow * size + fast)


def _draw_band(axes: Any, x: np.ndarray, mean: np.ndarray, std: np.ndarray, color: str) -> None:
    axes.plot(x, mean, color=color)
    axes.fill_between(x, mean - std, mean + std, color=color, alpha=0.12, linewidth=0)


def _format_axes(line: np.ndarray, factor: Factor) -> None:
    for axes in line:
        axes.set_ylim(-2.8, 2.8)
        axes.axhline(0, color=INK, alpha=0.2, linewidth=0.6, zorder=0)
        axes.set_xticks([0, factor.size - 1])
        axes.tick_params(labelleft=axes is line[0], labelsize=6)
        if is_nominal(factor):
            shown = range(0, factor.size, -(-factor.size // MAX_TICKS))
            words = [str(place if factor.values is None else factor.values[place])[:7] for place in shown]
            axes.set_xticks(shown, words, rotation=30)
            axes.margins(x=0.2)
    line[0].set_ylabel(factor.name)


def _draw_maps(line: np.ndarray, codes: Tensor, values: Tensor, factors: list[Factor]) -> None:
    """Draw the mean code at each position, with y downwards as in the image."""
    across, down = factors[0].size, factors[1].size
    stats = codes_by_label(codes, _combine(values[:, 1], values[:, 0], across), down * across)
    reach = float(np.nanmax(np.abs(stats.mean))) or 1.0
    for j, axes in enumerate(line):
        axes.imshow(stats.mean[:, j].reshape(down, across), cmap="RdBu", vmin=-reach, vmax=reach, aspect="auto")
        axes.set_xticks([])
        axes.set_yticks([])
        axes.spines[:].set_visible(False)
    line[0].set_ylabel("position")


def _draw_legend(figure: Any, data: FactorDataset) -> None:
    split = _choose_split(data)
    if split is None or len(data.factors) == 1:
        return
    words = data.factors[split].values or ()
    make = import_report_extra("matplotlib.lines").Line2D
    lines = [make([], [], color=color, label=str(word)) for color, word in zip(PALETTE, words, strict=False)]
    figure.legend(handles=lines, loc="outside lower left", ncols=len(lines), frameon=False)
