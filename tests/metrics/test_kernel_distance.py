"""KID: against the sums of the paper written out, without bias, with an interval that covers the truth."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from tests.support.messages import naming
from unbraid.errors import DataError, UsageError
from unbraid.metrics.generative.features import base
from unbraid.metrics.generative.kernel_distance import kid


def slow_kid(x, y, paired=False):
    """Section 4 of binkowski2018, one pair at a time."""

    def kernel(a, b):
        return (sum(p * q for p, q in zip(a, b, strict=True)) / len(a) + 1) ** 3

    def mean(first, second, different):
        values = [kernel(a, b) for i, a in enumerate(first) for j, b in enumerate(second) if not (different and i == j)]
        return sum(values) / len(values)

    return mean(x, x, True) + mean(y, y, True) - 2 * mean(x, y, paired)


@given(st.integers(0, 10_000), st.integers(2, 12), st.integers(2, 12), st.integers(1, 6))
@settings(max_examples=20)
def test_it_is_the_papers_sum(seed, n, m, d):
    rng = np.random.default_rng(seed)
    x, y = rng.standard_normal((n, d)), rng.standard_normal((m, d)) + 1
    assert kid(x, y).value == pytest.approx(slow_kid(x, y), rel=1e-9, abs=1e-9)
    assert kid(x, y).value == pytest.approx(kid(y, x).value, rel=1e-9, abs=1e-9)
    both = min(n, m)
    assert kid(x[:both], y[:both], paired=True).value == pytest.approx(
        slow_kid(x[:both], y[:both], paired=True), rel=1e-9, abs=1e-9
    )


def test_pieces_change_nothing(monkeypatch):
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((50, 4)), rng.standard_normal((41, 4))
    whole = kid(x, y), kid(x[:41], y, paired=True)
    monkeypatch.setitem(base.MAX_PAIRS_IN_MEMORY, "cpu", 300)
    pieces = kid(x, y), kid(x[:41], y, paired=True)
    for one, other in zip(whole, pieces, strict=True):
        assert one.value == pytest.approx(other.value, rel=1e-12)
        assert one.interval == pytest.approx(other.interval, rel=1e-12)


def truth(shift, d=3):
    """MMD^2 of N(0, 1) and N(shift, 1) in d dimensions, from a million independent pairs."""
    rng = np.random.default_rng(99)
    x, x2, y, y2 = (rng.standard_normal((1_000_000, d)) + s for s in (0, 0, shift, shift))

    def mean(a, b):
        return (((a * b).sum(1) / d + 1) ** 3).mean()

    return mean(x, x2) + mean(y, y2) - mean(x, y2) - mean(x2, y)


def test_it_has_no_bias_and_its_interval_covers_the_truth():
    rng = np.random.default_rng(1)
    for shift, least in ((0.0, 0.93), (0.7, 0.9)):
        expected = 0.0 if shift == 0 else truth(shift)
        scores = [kid(rng.standard_normal((40, 3)), rng.standard_normal((60, 3)) + shift) for _ in range(300)]
        values = np.array([score.value for score in scores])
        assert values.mean() == pytest.approx(expected, abs=4 * values.std() / np.sqrt(300) + 0.01 * expected)
        covered = np.mean([score.interval[0] <= expected <= score.interval[1] for score in scores])
        assert covered >= least


def test_infinite_sixth_moments_have_no_interval():
    rng = np.random.default_rng(0)
    for _ in range(3):
        normal, light = rng.standard_normal((2, 600, 6)), rng.standard_t(9, (2, 2_000, 6))
        assert kid(*normal).interval is not None
        assert kid(*light).interval is not None, "with 9 degrees of freedom, moments up to the eighth are finite"
        heavy = rng.standard_t(3, (2, 2_000, 6))
        for score in (kid(*heavy), kid(*heavy, subsets=2, size=100)):
            assert score.interval is None
            assert score.covers.startswith("none: a few rows")


def test_pairs_are_left_out():
    x = np.random.default_rng(0).standard_normal((30, 4))
    assert kid(x, x, paired=True).value == pytest.approx(0, abs=1e-12)
    assert kid(x, x, paired=True).interval == pytest.approx((0, 0), abs=1e-12)
    assert kid(x, x).value < 0, "independent sets are never equal"


def test_subsets_give_the_same_in_the_mean():
    rng = np.random.default_rng(2)
    x, y = rng.standard_normal((60, 3)), rng.standard_normal((60, 3)) + 1
    whole, some = kid(x, y), kid(x, y, subsets=600, size=20)
    assert some.value == pytest.approx(whole.value, abs=4 * some.details["deviation"] / np.sqrt(600))
    assert np.diff(some.interval) == pytest.approx(np.diff(whole.interval), rel=0.35)
    assert kid(x, y, subsets=3).value == pytest.approx(whole.value), "a subset of all rows is all rows"
    assert kid(x, y, subsets=3).interval is None
    assert kid(x, y, subsets=5, size=20, seed=1) == kid(x, y, subsets=5, size=20, seed=1)


def test_it_grows_with_the_noise_and_answers_clearly():
    rng = np.random.default_rng(3)
    x, noise = rng.standard_normal((200, 6)), rng.standard_normal((200, 6))
    values = [kid(x, x + s * noise, paired=True).value for s in (0, 0.3, 1, 3)]
    assert values == sorted(values)
    with pytest.raises(UsageError, match=naming("subsets", 1)):
        kid(x, x, subsets=0)
    with pytest.raises(UsageError, match=naming(200, 199)):
        kid(x, x[1:], paired=True)
    with pytest.raises(DataError, match="features"):
        kid(x * 1e60, x)
    with pytest.raises(UsageError, match=naming("features_b", "shape")):
        kid(x, x[0])
