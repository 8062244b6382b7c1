"""Figures of experiments."""

import math

from unbraid.experiments.drawing import draw_lines
from unbraid.report.svg import figure_style


def test_bands_end_at_the_range_of_a_score():
    """With a few runs, Student's interval of an accuracy reaches beyond 0 and 1."""
    with figure_style() as make:
        axes = make().subplots()
        lines = {"accuracy": {1: [0.0, 1.0, 1.0], 2: [0.1, 0.2, 0.9]}, "loss": {1: [0.0, 5.0], 2: [1.0, 2.0]}}
        bounds = {"accuracy": (0.0, 1.0), "loss": (0.0, math.inf)}
        draw_lines(axes, lines, "beta", "score", bounds)
        bands = [band.get_paths()[0].vertices[:, 1] for band in axes.collections]
    assert [(band.min(), band.max() > 1) for band in bands] == [(0.0, False), (0.0, True)]
