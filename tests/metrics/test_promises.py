"""What each metric's decorator promises, held against codes whose scores are known."""

import functools
from collections.abc import Mapping

import numpy as np
import pytest

from tests.support.evaluations import aligned_encoder, fixed_evaluation, full_grid
from unbraid.metrics import evaluate, metric

SIZES = (4, 5, 6)
ROWS = np.tile(full_grid(SIZES), (5, 1))
FEW = {"train": 2_000, "test": 1_000, "resamples": 5, "steps": 250}
"""Settings of metrics that the promises need no more of, on these few rows."""


def promising(fact):
    """Metrics that promise something; a costly one is only held to what a perfect code scores."""
    told = {name: metric[name].facts for name in metric if getattr(metric[name].facts, fact) not in (None, ())}
    beyond = {"weights", "discrete", "images", "staged", "modalities"}
    usual = {name: facts for name, facts in told.items() if not beyond & set(facts.needs)}
    return [name for name, facts in usual.items() if fact == "perfect" or not facts.costly]


def promised(name, fact, part):
    value = getattr(metric[name].facts, fact)
    return value.get(part) if isinstance(value, Mapping) else value


def scored(name, means, stds):
    evaluation = fixed_evaluation(means, stds, ROWS)
    if "peers" in metric[name].facts.needs:
        others = [mixed()[0][:, :4] + noise(seed)[0][:, :4] for seed in (2, 3)]
        evaluation.peers = tuple(fixed_evaluation(other, np.full(other.shape, 0.1), ROWS) for other in others)
    usual = metric[name].resolve({})
    few = {key: value for key, value in FEW.items() if value < (usual.get(key) or 0)}
    return evaluate(evaluation, [name], **{**few, **metric[name].facts.trial})


def perfect():
    return aligned_encoder(ROWS, 0.02)


def noise(seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((len(ROWS), 6)), np.full((len(ROWS), 6), 0.02)


def mixed():
    """Codes that know something of everything, no two latents alike."""
    rng = np.random.default_rng(1)
    means = (ROWS - ROWS.mean(0)) / ROWS.std(0) @ rng.standard_normal((3, 5)) + 0.5 * rng.standard_normal(
        (len(ROWS), 5)
    )
    return means, np.exp(rng.uniform(-3, 0, means.shape))


@functools.cache
def scores_of(name, codes):
    """Scores of one of the codes above, shared by the tests of all promises."""
    return scored(name, *codes())


@pytest.mark.parametrize("name", promising("bounds"))
def test_values_stay_within_their_bounds(name):
    low, high = metric[name].facts.bounds
    for codes in (perfect, noise, mixed):
        for score in scores_of(name, codes):
            assert low <= score.value <= high, score.name
            if score.interval is not None:
                assert low <= score.interval[0] <= score.value <= score.interval[1] <= high, score.name


@pytest.mark.parametrize("name", promising("perfect"))
def test_a_perfect_code_reaches_the_ceiling(name):
    told = [(score, promised(name, "perfect", score.part)) for score in scores_of(name, perfect)]
    assert any(expected is not None for _, expected in told)
    for score, expected in told:
        assert expected is None or score.value == pytest.approx(expected, abs=0.02), score.name


@pytest.mark.parametrize("name", promising("noise"))
def test_noise_scores_nothing(name):
    told = [(score, promised(name, "noise", score.part)) for score in scores_of(name, noise)]
    assert any(expected is not None for _, expected in told)
    for score, expected in told:
        assert expected is None or score.value == pytest.approx(expected, abs=0.1), score.name


@pytest.mark.parametrize("name", promising("invariant"))
def test_codes_may_be_reordered_flipped_or_scaled(name):
    """All that a metric promises at once: what one change breaks, no other one mends."""
    means, stds = mixed()
    changes = metric[name].facts.invariant
    assert set(changes) <= {"order", "sign", "scale"}
    if "order" in changes:
        means, stds = means[:, [3, 0, 4, 1, 2]], stds[:, [3, 0, 4, 1, 2]]
    if "sign" in changes:
        means = means * [1, -1, -1, 1, -1]
    if "scale" in changes:
        factor = np.array([0.25, 8, 1, 0.5, 64])  # powers of two, which floats multiply by exactly
        means, stds = means * factor, stds * factor
    found = {score.name: score.value for score in scored(name, means, stds)}
    assert found == pytest.approx({score.name: score.value for score in scores_of(name, mixed)}, abs=1e-5)
