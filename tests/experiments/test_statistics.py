"""Statistics over seeds against closed forms, scipy and simulated truth."""

import math

import numpy as np
import pytest
from scipy import stats

from unbraid.experiments.statistics import (
    Chance,
    Estimate,
    _resample,
    align_seeds,
    cell_means,
    choose_held_out,
    estimate,
    estimate_share,
    find_fisher_interval,
    find_jackknife_interval,
    gap_at_equal_x,
    mean_difference,
    pearson,
    spearman,
    widen_for,
)


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
        found = estimate(cells, lambda c: mean_difference(c, 0, 1))
        covered.append(found.low < 0.5 < found.high)
    assert 0.83 < np.mean(covered) < 0.95


def test_the_spread_is_that_of_a_statistic_of_one_seed_each():
    rng = np.random.default_rng(3)
    cells = {0: rng.standard_normal((7, 2)), 1: 3 * rng.standard_normal((12, 2))}
    variances = [rows[:, 0].var(ddof=1) for rows in cells.values()]
    of_difference = estimate(cells, lambda c: mean_difference(c, 0, 1))
    assert of_difference.spread == pytest.approx(math.sqrt(sum(variances)))
    of_mean = estimate(cells, lambda c: (c[0][..., 0].mean(-1) + c[1][..., 0].mean(-1)) / 2)
    assert of_mean.spread == pytest.approx(math.sqrt(sum(variances)) / 2)


def test_the_chance_is_the_share_of_pairs_with_the_interval_of_mann_and_whitney():
    rng = np.random.default_rng(5)
    first, second = rng.exponential(size=(12, 1)), 0.3 + rng.exponential(size=(15, 1))
    found = estimate({0: first, 1: second}, lambda c: mean_difference(c, 0, 1)).chance
    above = second[:, 0] > first
    assert found.value == pytest.approx(above.mean(), abs=0.01)
    error = math.sqrt(above.mean(1).var(ddof=1) / 12 + above.mean(0).var(ddof=1) / 15)  # hoeffding1948
    assert found.high - found.low == pytest.approx(2 * 1.71 * error, rel=0.06)  # Student's t with about 25 degrees
    assert found.low < found.value < found.high


def test_the_chance_of_single_runs_is_a_share_of_runs():
    values = np.array([1.0, 2.0, 3.0, -1.0, -2.0, 0.5, 0.1, -0.3])[:, None]
    found = estimate({0: values}, lambda c: c[0][..., 0].mean(-1)).chance
    assert found.value == pytest.approx(5 / 8, abs=0.01)
    assert estimate({0: abs(values)}, lambda c: c[0][..., 0].mean(-1)).chance is None  # always above


def test_chances_move_and_stretch_on_the_scale_of_normal_quantiles():
    chance = Chance(0.5, *stats.norm.cdf([-0.5, 0.5]))
    assert chance.move(1.0) == pytest.approx(stats.norm.cdf([1.0, 0.5, 1.5]))
    assert chance.stretch(2.0) == pytest.approx(stats.norm.cdf([0.0, -1.0, 1.0]))
    moved = Estimate(0.0, -1.0, 1.0, spread=2.0, chance=chance).move(2.0)
    assert moved.chance == pytest.approx(chance.move(1.0))


@pytest.mark.parametrize(
    ("statistic", "how"),
    [
        (lambda c: pearson(cell_means(c)[..., 0], cell_means(c)[..., 1]), {}),
        (lambda c: c[0][..., 0].mean(-1) / c[1][..., 0].mean(-1), {}),
        (lambda c: np.median(c[0][..., 0], -1), {"smooth": False}),
        (lambda c: choose_held_out(align_seeds(c)).mean(-1), {}),  # with one seed there is no other one to choose by
        (lambda c: cell_means(c)[..., 0].max(-1), {}),
    ],
)
def test_statistics_that_are_not_linear_in_means_have_no_known_spread(statistic, how):
    rng = np.random.default_rng(4)
    found = estimate({k: 5 + 0.5 * k + 0.4 * rng.standard_normal((9, 2)) for k in range(3)}, statistic, **how)
    assert math.isnan(found.spread)
    assert found.chance is None


SLOWER = [pytest.param(seeds, marks=pytest.mark.slow) for seeds in ((5,), (3, 10))]


@pytest.mark.parametrize("seeds", [(3,), (3, 3), (5, 5), *SLOWER])
def test_intervals_of_few_seeds_cover_the_truth_about_nine_times_in_ten(seeds):
    assert 0.85 < covering(seeds) < 0.96


def test_percentiles_alone_cover_it_in_three_of_five_cases_of_three_seeds():
    assert 0.55 < covering((3,), smooth=False) < 0.68


def covering(seeds, **how):
    """How often the interval of a sum of means, with signs in turn, holds the truth."""
    rng, covered = np.random.default_rng(2), []
    for _ in range(400):
        cells = {k: (1 + k) * rng.standard_normal((n, 1)) for k, n in enumerate(seeds)}
        found = estimate(cells, lambda c: sum((-1) ** k * c[k][..., 0].mean(-1) for k in c), **how)
        covered.append(found.low < 0.0 < found.high)
    return np.mean(covered)


def test_a_mean_of_few_seeds_has_students_interval():
    values = np.random.default_rng(3).standard_normal(5)
    found = estimate({0: values[:, None]}, lambda c: c[0][..., 0].mean(-1))
    low, high = stats.t.interval(0.9, 4, values.mean(), values.std(ddof=1) / math.sqrt(5))
    assert (found.low, found.high) == pytest.approx((low, high), abs=0.15 * (high - low))


@pytest.mark.parametrize(("seeds", "freedom"), [((3,), 2), ((10,), 4), ((3, 3), 4)])
def test_one_of_several_intervals_is_widened_by_its_degrees_of_freedom(seeds, freedom):
    values = np.array([-1.0, 0.0, 1.0, *[0.5, -0.5] * 4])
    cells = {k: np.resize(values, (n, 1)) for k, n in enumerate(seeds)}
    found = estimate(cells, lambda c: sum(c[k][..., 0].mean(-1) for k in c))
    wide = widen_for(5, found)
    expected = stats.t.ppf(1 - 0.05 / 5, freedom) / stats.t.ppf(0.95, freedom)
    assert min(4, found.freedom) == pytest.approx(freedom, rel=0.02)  # never more than four
    assert (wide.high - wide.value) / (found.high - found.value) == pytest.approx(expected, rel=0.02)
    assert widen_for(1, found) == found


def test_a_median_keeps_its_percentiles():
    values = np.array([0.0, 1.0, 5.0])[:, None]
    found = estimate({0: values}, lambda c: np.median(c[0][..., 0], -1), smooth=False)
    assert found[:4] == (1.0, 0.0, 5.0, 2.0)


def test_a_share_of_few_is_never_sure():
    assert (
        estimate_share(np.array([True, True, True])).low < 0.75
    )  # 3 of 3 are no evidence against "at most three quarters"
    assert estimate_share(np.zeros(3, bool)).high > 0.25
    many = estimate_share(np.arange(1000) < 300)
    half = 1.645 * math.sqrt(0.3 * 0.7 / 1000)
    assert many[:3] == pytest.approx((0.3, 0.3 - half, 0.3 + half), abs=0.002)


def test_scores_of_a_run_stay_together_when_seeds_are_drawn_again():
    x = np.random.default_rng(0).standard_normal(10)
    found = estimate({0: np.stack([x, 2 * x], -1)}, lambda c: (2 * c[0][..., 0] - c[0][..., 1]).mean(-1))
    assert found[:3] == pytest.approx((0.0, 0.0, 0.0))


def test_correlations_agree_with_scipy():
    x, y = np.random.default_rng(0).standard_normal((2, 5, 12))
    for k in range(5):
        assert pearson(x, y)[k] == pytest.approx(stats.pearsonr(x[k], y[k]).statistic)
        assert spearman(x, y)[k] == pytest.approx(stats.spearmanr(x[k], y[k]).statistic)
    assert math.isnan(pearson(np.ones(3), np.arange(3.0)))


def test_means_keep_the_order_of_the_cells():
    cells = {2: np.full((3, 2), 2.0), 1: np.full((4, 2), 1.0)}
    assert cell_means(cells).tolist() == [[2.0, 2.0], [1.0, 1.0]]


def test_gap_between_curves_at_equal_x():
    first = np.array([[0.0, 0.0], [4.0, 4.0]])  # y = x
    second = np.array([[5.0, 8.0], [1.0, 4.0], [3.0, 6.0]])  # y = x + 3, not in order
    assert gap_at_equal_x(first, second) == pytest.approx(3.0)
    assert gap_at_equal_x(np.stack([first, first + np.array([0, 1])]), second[None]) == pytest.approx([3.0, 2.0])
    assert math.isnan(gap_at_equal_x(first, second + np.array([10, 0])))


def test_one_seed_has_no_interval():
    found = estimate({0: np.ones((1, 1))}, lambda c: c[0][..., 0].mean(-1))
    assert found.value == 1
    assert math.isnan(found.low)
    assert str(found) == "1"
    assert str(Estimate(0.5, 0.4, 0.6)) == "0.5 (0.4..0.6)"


def test_ends_stay_in_the_range_of_the_quantity_and_enclose_the_value():
    assert Estimate(0.9, 0.5, 1.3).within(0, 1)[:3] == (0.9, 0.5, 1)
    assert Estimate(-0.01, -0.2, 0.1).within(0, 1)[:3] == (-0.01, -0.01, 0.1)  # an estimate may lie outside by chance
    assert Estimate(0.5, 0.4, 0.6).within(-math.inf, math.inf)[:3] == (0.5, 0.4, 0.6)
    lone = Estimate(0.5, math.nan, math.nan).within(0, 1)
    assert math.isnan(lone.low) and math.isnan(lone.high)


def test_the_width_is_welchs_and_does_not_depend_on_the_order_of_runs():
    """Of a linear statistic nothing is estimated from resamples, of a ratio of means little."""
    rng = np.random.default_rng(1)
    first, second = rng.normal(0.0, 1.0, (5, 1)), rng.normal(0.3, 2.0, (6, 1))
    variances = first.var(ddof=1) / 5, second.var(ddof=1) / 6
    freedom = sum(variances) ** 2 / (variances[0] ** 2 / 4 + variances[1] ** 2 / 5)
    width = 2 * stats.t.ppf(0.95, freedom) * math.sqrt(sum(variances))
    for _ in range(4):
        cells = {"a": rng.permutation(first), "b": rng.permutation(second)}
        found = estimate(cells, lambda c: mean_difference(c, "a", "b"))
        assert found.high - found.low == pytest.approx(width, rel=1e-9)
        assert found.freedom == pytest.approx(freedom)
    pair = {name: rng.normal(5.0, 1.0, (6, 1)) for name in "ab"}
    widths = []
    for _ in range(8):
        cells = {name: rng.permutation(rows) for name, rows in pair.items()}
        found = estimate(cells, lambda c: c["b"][..., 0].mean(-1) / c["a"][..., 0].mean(-1))
        widths.append(found.high - found.low)
    assert np.std(widths) < 0.01 * np.mean(widths)  # 400 plain resamples would give 0.035


def test_resamples_contain_each_seed_equally_often():
    drawn = _resample(np.arange(5)[:, None], 40, np.random.default_rng(0))
    assert (np.bincount(drawn.ravel()) == 40).all()


@pytest.mark.parametrize("count", [4, 5, 40])
def test_fishers_interval_of_a_correlation_is_that_of_scipy(count):
    x, y = np.random.default_rng(count).normal(size=(2, count))
    found = stats.pearsonr(x, y + x)
    expected = found.confidence_interval(0.9)
    assert find_fisher_interval(found.statistic, count) == pytest.approx(expected)


def test_fishers_interval_is_a_point_where_it_is_unknown():
    assert find_fisher_interval(0.4, 3) == (0.4, 0.4)
    assert find_fisher_interval(1.0, 40) == (1.0, 1.0)


def test_jackknifed_interval_of_a_mean_is_students():
    rows = np.random.default_rng(0).normal(size=(7, 1))
    expected = stats.t.interval(0.9, 6, rows.mean(), stats.sem(rows[:, 0]))
    assert find_jackknife_interval(rows, lambda s: s[..., 0].mean(-1)) == pytest.approx(expected)
    assert find_jackknife_interval(rows[:2], lambda s: s[..., 0].std(-1)) == (rows[:2].std(), rows[:2].std())


def test_an_interval_covers_another():
    assert Estimate(0.5, 0.2, 0.6).cover(0.3, 0.9)[:3] == (0.5, 0.2, 0.9)
