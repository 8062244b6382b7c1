"""Statistics over seeds against closed forms, scipy and simulated truth."""

import math

import numpy as np
import pytest
from scipy import stats

from unbraid.papers.statistics import Estimate, difference, estimate, gap_at_equal, means, pearson, spearman


def test_interval_of_a_mean_is_that_of_the_normal_distribution():
    values = np.random.default_rng(0).standard_normal(400)[:, None]
    found = estimate({"a": values}, lambda c: c["a"][..., 0].mean(-1))
    half = 1.645 * values.std() / 20
    assert found.value == pytest.approx(values.mean())
    assert (found.low, found.high) == pytest.approx((values.mean() - half, values.mean() + half), abs=0.15 * half)


def test_intervals_of_differences_cover_the_truth_about_nine_times_in_ten():
    rng, covered = np.random.default_rng(1), []
    for _ in range(200):
        cells = {0: rng.standard_normal((20, 1)), 1: 0.5 + rng.standard_normal((20, 1))}
        found = estimate(cells, lambda c: difference(c, 0, 1))
        covered.append(found.low < 0.5 < found.high)
    assert 0.83 < np.mean(covered) < 0.95


def test_scores_of_a_run_stay_together_when_seeds_are_drawn_again():
    x = np.random.default_rng(0).standard_normal(10)
    found = estimate({0: np.stack([x, 2 * x], -1)}, lambda c: (2 * c[0][..., 0] - c[0][..., 1]).mean(-1))
    assert found == pytest.approx((0.0, 0.0, 0.0))


def test_correlations_agree_with_scipy():
    x, y = np.random.default_rng(0).standard_normal((2, 5, 12))
    for k in range(5):
        assert pearson(x, y)[k] == pytest.approx(stats.pearsonr(x[k], y[k]).statistic)
        assert spearman(x, y)[k] == pytest.approx(stats.spearmanr(x[k], y[k]).statistic)
    assert math.isnan(pearson(np.ones(3), np.arange(3.0)))


def test_means_keep_the_order_of_the_cells():
    cells = {2: np.full((3, 2), 2.0), 1: np.full((4, 2), 1.0)}
    assert means(cells).tolist() == [[2.0, 2.0], [1.0, 1.0]]


def test_gap_between_curves_at_equal_x():
    first = np.array([[0.0, 0.0], [4.0, 4.0]])  # y = x
    second = np.array([[5.0, 8.0], [1.0, 4.0], [3.0, 6.0]])  # y = x + 3, not in order
    assert gap_at_equal(first, second) == pytest.approx(3.0)
    assert gap_at_equal(np.stack([first, first + np.array([0, 1])]), second[None]) == pytest.approx([3.0, 2.0])
    assert math.isnan(gap_at_equal(first, second + np.array([10, 0])))


def test_one_seed_has_no_interval():
    found = estimate({0: np.ones((1, 1))}, lambda c: c[0][..., 0].mean(-1))
    assert found.value == 1
    assert math.isnan(found.low)
    assert str(found) == "1"
    assert str(Estimate(0.5, 0.4, 0.6)) == "0.5 (0.4..0.6)"
