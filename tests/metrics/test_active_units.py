"""Active units: a slow version, codes whose count is known, bad input."""

import json
import statistics

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from tests.support.evaluations import aligned_encoder, fixed_evaluation, full_grid
from tests.support.messages import naming
from unbraid.errors import DataError, UsageError
from unbraid.metrics import evaluate
from unbraid.metrics.unsupervised.active_units import active_units


@settings(max_examples=20)
@given(st.lists(st.floats(0, 0.3), min_size=1, max_size=6), st.floats(0, 0.05))
def test_agrees_with_a_slow_version(widths, threshold):
    """burda2016: units whose mean has a variance over the data above the threshold."""
    means = np.random.default_rng(0).standard_normal((50, len(widths))) * widths
    variances = [statistics.pvariance(column.tolist()) for column in means.T]
    score = active_units(means, threshold=threshold)
    assert score.value == sum(variance > threshold for variance in variances)
    assert list(score.details["variance"].values()) == pytest.approx(variances, abs=1e-12)


def test_of_an_aligned_encoder():
    grid = full_grid((3, 4, 5))
    score = active_units(aligned_encoder(grid, 0.1)[0])
    assert (score.name, score.value, score.samples, score.interval) == ("units/active", 3, 60, (3, 3))
    assert score.details["active"] == ["z0", "z1", "z2"]
    json.dumps(score.as_record())


def test_a_latent_far_from_zero_is_not_active_for_that():
    means = np.stack([np.full(1_000, 0.1 + 1e8), np.linspace(0, 1, 1_000)], axis=1)
    assert active_units(means, threshold=0.0).value == 1
    assert active_units(torch.from_numpy(means)).value == 1


def test_of_an_evaluation():
    grid = full_grid((3, 4, 5))
    (score,) = evaluate(fixed_evaluation(*aligned_encoder(grid, 0.1), grid), ["units"])
    assert score.value == 3
    (score,) = evaluate(fixed_evaluation(*aligned_encoder(grid, 0.1), grid), ["units"], threshold=5.0)
    assert score.value == 0


@pytest.mark.parametrize(
    ("given", "error", "facts"),
    [
        ({"means": np.zeros((1, 2))}, DataError, ["rows", 2]),
        ({"means": np.full((3, 2), np.nan)}, DataError, ["NaN"]),
        ({"means": np.zeros(3)}, UsageError, ["shape"]),
        ({"means": np.zeros((3, 2)), "threshold": -1.0}, UsageError, ["threshold"]),
        ({"means": np.zeros((3, 2)), "latents": ["z"]}, UsageError, [2, 1]),
    ],
)
def test_bad_input_is_refused(given, error, facts):
    with pytest.raises(error, match=naming(*facts)):
        active_units(**given)
