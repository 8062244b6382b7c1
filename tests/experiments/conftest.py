"""Experiments are registered when the papers are imported; most tests need no fine figures."""

from contextlib import contextmanager

import pytest

import unbraid.papers  # noqa: F401
from unbraid.experiments import statistics, writing
from unbraid.report.svg import figure_style


@pytest.fixture
def coarse_figures(monkeypatch):
    """Leave out the layout, which draws a figure once more; test_reproduce.py draws some with it."""

    @contextmanager
    def without_layout():
        with figure_style() as make:
            yield lambda **options: make(**{**options, "layout": None})

    monkeypatch.setattr(writing, "FIGURE_DPI", 20)
    monkeypatch.setattr(writing, "figure_style", without_layout)


@pytest.fixture
def few_resamples(monkeypatch):
    """A tenth of the resamples: balanced as they are, these move the ends of an interval little."""
    monkeypatch.setattr(statistics, "RESAMPLES", 400)
    monkeypatch.setattr(statistics, "RESAMPLES_PER_CELL", 40)
