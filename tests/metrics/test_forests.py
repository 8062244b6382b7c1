"""Forests are the same wherever they grow."""

import sys

import numpy as np
import pytest

from unbraid.metrics.predictive import forests
from unbraid.metrics.predictive.forests import APART, Plot, grow


@pytest.fixture
def apart():
    token = APART.set(True)
    yield
    APART.reset(token)


def plot(weighted=False):
    random = np.random.default_rng(0)
    train, test = random.normal(size=(80, 3)), random.normal(size=(30, 3))
    classes = (train[:, 0] > 0).astype(np.int64) + 2 * (train[:, 1] > 0.3)
    weights = random.integers(0, 3, 80).astype(float) if weighted else None
    return Plot(train, test, [classes, train[:, 2] ** 2], [False, True], trees=7, seed=3, threads=2, weights=weights)


@pytest.mark.parametrize("weighted", [False, True])
def test_in_a_process_of_their_own_they_are_what_they_are_here(weighted, monkeypatch):
    here, token = grow(plot(weighted)), APART.set(True)
    monkeypatch.setattr(forests, "_grow_here", lambda *_: pytest.fail("they grew here"))
    there = grow(plot(weighted))
    APART.reset(token)
    for mine, theirs in zip(here, there, strict=True):
        assert np.array_equal(mine.importance, theirs.importance)
        assert np.array_equal(mine.predicted, theirs.predicted)
        assert mine.predicted.dtype == theirs.predicted.dtype


@pytest.mark.usefixtures("apart")
def test_if_no_process_can_be_had_they_grow_here_and_it_is_said(monkeypatch, tmp_path):
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho 'no more processes' >&2\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(broken))
    with pytest.warns(UserWarning, match="no more processes"):
        assert len(grow(plot())) == 2


def test_what_was_grown_is_counted():
    counted = []
    grow(plot(), lambda: counted.append(1))
    assert len(counted) == 2
