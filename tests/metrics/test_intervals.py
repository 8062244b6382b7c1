"""Intervals: shares, medians, halves of rows; levels of scores; questions; coverage, in a quick version."""

import runpy
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binomtest, ttest_ind

from tests.support.evaluations import aligned_encoder, fixed_evaluation, full_grid
from tests.support.messages import naming
from unbraid.errors import UsageError
from unbraid.metrics import compare_evaluations, compare_seeds, evaluate, metric, mig, mig_corrected
from unbraid.metrics.arrays import to_labels
from unbraid.metrics.information.corrected import infomec_corrected, modularity_corrected
from unbraid.metrics.information.histogram import JointHistograms, discretise_by_rank, has_touching_clumps
from unbraid.metrics.intervals import (
    Spread,
    draw_halves,
    halve_again,
    halves_interval,
    halves_share_interval,
    mean_share_interval,
    measure_halves,
    median_interval,
    share_interval,
)
from unbraid.metrics.questions import QUESTIONS, explain

GRID = np.tile(full_grid((3, 4, 5)), (40, 1))


@pytest.mark.parametrize(("right", "rows"), [(499, 500), (500, 500), (0, 20), (7, 9)])
def test_a_share_has_wilsons_interval(right, rows):
    expected = binomtest(right, rows).proportion_ci(method="wilson")
    hits = np.arange(rows) < right
    for found in (share_interval(right / rows, rows), mean_share_interval(hits)):
        assert found == pytest.approx((expected.low, expected.high), abs=2e-5)
    assert found[0] < found[1]


def test_a_share_that_varies_more_than_its_rows_is_less_sure():
    halves = 0.9 + 0.02 * np.sqrt(2) * np.random.default_rng(0).standard_normal(400)  # of half the rows
    low, high = halves_share_interval(0.9, halves, 500)
    assert high - low == pytest.approx(4 * 0.02, rel=0.1)
    assert halves_share_interval(1.0, [1.0, 1.0, 1.0, 1.0], 500) == share_interval(1.0, 500)
    assert halves_share_interval(1.0, [1.0], 500) is None


def test_the_spread_of_pairs_of_halves_is_that_of_a_mean():
    values = np.random.default_rng(0).exponential(size=400)
    halves = measure_halves(lambda rows: values[rows].mean(), [400], 500, np.random.default_rng(1))
    assert np.add(halves[::2], halves[1::2]) == pytest.approx(2 * values.mean())  # each row is in one half of a pair
    low, high = halves_interval(values.mean(), halves)
    assert high - low == pytest.approx(2 * 1.97 * values.std() / 20, rel=0.1)


@pytest.mark.parametrize(("power", "factor"), [(1.0, 1.0), (0.5, np.sqrt(2)), (0.0, 2.0)])
def test_a_variance_that_falls_slowly_is_extrapolated_as_it_falls(power, factor):
    rng, sizes = np.random.default_rng(0), (200, 100)  # halves and quarters of 400 rows
    halves, quarters = (size ** (-power / 2) * rng.standard_normal(40_000) for size in sizes)
    found, plain = Spread.of_shrinking(halves, quarters), Spread.of_halves(halves)
    assert found.variance / plain.variance == pytest.approx(factor, rel=0.04)
    assert found.variance == pytest.approx(400.0**-power, rel=0.06)
    assert Spread.of_shrinking(halves[:1], quarters) is None


def test_quarters_are_disjoint_halves_of_halves():
    halves = draw_halves([40, 12], 4, np.random.default_rng(0))
    quarters = halve_again(halves)
    assert len(quarters) == 8
    for number, half in enumerate(halves):
        for place, rows in enumerate(half):
            both = np.concatenate([quarters[2 * number][place], quarters[2 * number + 1][place]])
            assert sorted(both) == sorted(rows)


def test_chance_of_histograms_is_that_of_independent_rows():
    """Few rows in 20 x 10 cells have more information by chance than half the degrees of freedom per row."""
    rng = np.random.default_rng(0)
    binned, factor = rng.integers(0, 20, (400, 1)), rng.integers(0, 10, (400, 1))
    mean, deviation = JointHistograms(binned, 20, to_labels(factor, 400, None)).measure_chance(200, rng)
    found = [
        JointHistograms(rng.integers(0, 20, (400, 1)), 20, to_labels(factor, 400, None)).information()[0]
        for _ in range(200)
    ]
    assert mean == pytest.approx(np.mean(found), rel=0.02)
    assert deviation == pytest.approx(np.std(found), rel=0.2)
    assert mean > 19 * 9 / 2 / 400


@pytest.mark.parametrize("score", ["maximum", "neighbours"])
def test_pairs_of_halves_know_the_spread_of_a_maximum_and_of_neighbours(score):
    """Halves without their partners overstate the variance of both, by half and more."""
    rng = np.random.default_rng(0)

    def measure(table):
        if score == "maximum":
            return table.mean(0).max()
        gaps = np.diff(np.sort(table[:, 0]))
        return np.log(gaps).mean()

    tables = rng.standard_normal((600, 200, 2))
    truth = np.std([measure(table) for table in tables])
    variances = []
    for table in tables[:60]:
        halves = measure_halves(lambda rows, table=table: measure(table[rows]), [200], 20, rng)
        variances.append(Spread.of_halves(halves).variance)
    assert np.sqrt(np.mean(variances)) == pytest.approx(truth, rel=0.1)


def test_refits_add_what_the_fit_does_and_no_chance_of_the_test_rows():
    """Fits to half of the rows move an accuracy by .02, so that fits to all of them move it by .02 / sqrt 2."""
    rng = np.random.default_rng(0)
    rows, moves = (rng.random(500) < 0.7).astype(float), 0.02 * rng.standard_normal(400)
    refits = (rng.random((400, 500)) < 0.7 + moves[:, None]).astype(float)
    spread = Spread.of_refits(rows, refits, 0.5)
    assert spread.variance == pytest.approx(0.21 / 500 + 0.0002, rel=0.15)
    assert Spread.of_refits(rows, np.repeat(rows[None], 2, 0), 0.5).variance == pytest.approx(rows.var() / 500)
    assert Spread.of_refits(rows, refits[:1], 0.5) is None


def test_errors_of_corrected_information_are_those_of_other_rows():
    rng, found, drawn = np.random.default_rng(0), [], []
    for number in range(100):
        factors = rng.integers(0, 4, (2_000, 2))
        codes = np.stack([factors[:, 0] + 0.5 * rng.standard_normal(2_000), rng.standard_normal(2_000)], 1)
        histograms = JointHistograms(discretise_by_rank(codes, 20), 20, to_labels(factors, 2_000))
        found.append(histograms.corrected_information(np.arange(1_000))[0])
        if number < 5:
            drawn.append(histograms.draw_half_errors(200, rng)[0].std(0))
    ratio = np.mean(drawn, axis=0) / np.std(found, axis=0)
    assert ratio == pytest.approx(np.ones((2, 2)), abs=0.25)  # one latent is informed of one factor, the rest is chance


def test_the_interval_of_a_median_holds_it_in_95_of_100_cases():
    draws = np.random.default_rng(0).exponential(size=(2_000, 9))
    hits = [low <= np.log(2) <= high for low, high in map(median_interval, draws)]
    assert np.mean(hits) == pytest.approx(0.961, abs=0.015)
    assert median_interval(np.arange(5)) is None


def test_corrected_information_is_right_on_average():
    """One latent is the factor behind a symmetric channel of 4 values and error .3, the other knows nothing."""
    rng, found = np.random.default_rng(0), []
    for _ in range(60):
        factor = rng.integers(0, 4, 1_000)
        wrong = rng.random(1_000) < 0.3
        channel = np.where(wrong, (factor + rng.integers(1, 4, 1_000)) % 4, factor)
        codes = np.stack([channel, rng.integers(0, 20, 1_000)], 1).astype(float)
        histograms = JointHistograms(discretise_by_rank(codes, 20), 20, to_labels(factor, 1_000))
        found.append([histograms.corrected_information()[0][:, 0], histograms.information()[0][:, 0]])
    (channel, nothing), (_, plain) = np.mean(found, axis=0)
    truth = np.log(4) + 0.7 * np.log(0.7) + 0.3 * np.log(0.1)
    assert channel == pytest.approx(truth, abs=0.005)
    assert nothing == pytest.approx(0, abs=0.0015)
    assert plain == pytest.approx(57 / 2_000, rel=0.1)  # (20 - 1) (4 - 1) / 2n, which the correction removes


def draw_clumps(rows, noise, rng, values=8):
    factors = rng.integers(0, values, (rows, 2))
    return factors + noise * rng.standard_normal((rows, 2)), factors


@pytest.mark.parametrize("values", [3, 8])  # boundaries of clumps beside and on the edges of 20 equally full bins
def test_clumps_with_clear_gaps_are_told_apart_and_their_interval_covers(values):
    rng, covered = np.random.default_rng(0), 0
    for _ in range(20):
        score = mig_corrected(*draw_clumps(5_000, 0.02, rng, values))
        covered += score.interval[0] <= 1 <= score.interval[1]
        assert score.value == pytest.approx(1, abs=0.01)
    assert covered >= 17


@pytest.mark.parametrize("rows", [2_000, 10_000])
def test_clumps_that_touch_have_no_interval_and_smooth_codes_have_one(rows):
    rng = np.random.default_rng(0)
    assert not has_touching_clumps(draw_clumps(rows, 0.02, rng)[0], 20)
    codes, factors = draw_clumps(rows, 0.15, rng)
    assert has_touching_clumps(codes, 20)
    score = mig_corrected(codes, factors)
    assert score.interval is None
    assert "clumps" in score.covers
    for smooth in (rng.standard_normal, lambda size: rng.standard_t(3, size), rng.random):
        assert not any(has_touching_clumps(smooth((rows, 5)), 20) for _ in range(5))


def test_corrected_scores_of_equal_latents_and_of_noise_are_0():
    rng = np.random.default_rng(0)
    factors = rng.integers(0, 4, (4_000, 2))
    twice = np.concatenate([factors, factors], axis=1) + 0.5 * rng.standard_normal((4_000, 4))
    score = mig_corrected(twice, factors, resamples=20)
    assert score.covers == "value over all rows"
    assert score.interval[0] < 0 < score.interval[1]
    assert mig(twice, factors, samples=None, resamples=0).value > score.value  # a maximum of noisy numbers
    noise = rng.standard_normal((4_000, 4))
    assert modularity_corrected(noise, factors, resamples=0).value == 0
    assert infomec_corrected(noise, factors, resamples=0)[0].value == 0
    few = mig_corrected(twice[:300], factors[:300])
    assert few.interval is None
    assert few.covers.startswith("none: 300 rows")


def test_scores_stand_between_chance_and_ceiling():
    means, stds = aligned_encoder(GRID, 0.02)
    noise = np.random.default_rng(0).standard_normal(means.shape)
    names = ["mig/histogram-mean", "modularity/histogram-mean", "sap/linear-svm", "irs/quantile"]
    best = {score.name: score for score in evaluate(fixed_evaluation(means, stds, GRID), names)}
    worst = {score.name: score for score in evaluate(fixed_evaluation(noise, stds, GRID), names)}
    for name in best:
        assert best[name].value == pytest.approx(best[name].ceiling, abs=0.03), name
        if worst[name].chance is not None:
            few_latents = 0.2 if "modularity" in name else 0.06  # three modularities by chance, another three
            assert worst[name].value == pytest.approx(worst[name].chance, abs=few_latents), name
    assert worst["modularity/histogram-mean"].chance > 0.4  # which a reader should know


@pytest.mark.parametrize("family", sorted({name.partition("/")[0] for name in metric}))
def test_every_metric_says_what_it_asks_in_two_sentences(family):
    text = explain(f"{family}/any")
    assert text == QUESTIONS[family]
    assert text.count("? ") == 1
    assert text.endswith(".")
    assert text.count(". ") == 0


def test_two_settings_differ_as_welch_says():
    rng = np.random.default_rng(0)
    first, second = rng.normal(0.2, 0.05, 6).tolist(), rng.normal(0.3, 0.1, 9).tolist()
    found = compare_seeds("mig/exact", first, second)
    expected = ttest_ind(second, first, equal_var=False).confidence_interval(0.95)
    assert found.difference == pytest.approx(np.mean(second) - np.mean(first))
    assert found.interval == pytest.approx((expected.low, expected.high))
    assert compare_seeds("mig/exact", first[:1], second).interval is None
    with pytest.raises(UsageError, match=naming("mig/exact")):
        compare_seeds("mig/exact", [], second)


def test_two_models_on_the_same_rows_have_a_paired_interval():
    means, stds = aligned_encoder(GRID, 0.02)
    rng = np.random.default_rng(0)
    blurred = means + 0.3 * rng.standard_normal(means.shape)
    one, same, other = (fixed_evaluation(codes, stds, GRID) for codes in (means, means, blurred))
    names, quick = ["mig/histogram-mean", "mig/exact"], {"resamples": 8}
    equal = {found.score: found for found in compare_evaluations(one, same, names, **quick)}
    assert {found.difference for found in equal.values()} == {0.0}
    assert equal["mig/histogram-mean"].interval == (0.0, 0.0)
    worse = {found.score: found for found in compare_evaluations(one, other, names, **quick)}
    found = worse["mig/histogram-mean"]
    assert found.interval[0] < found.difference < found.interval[1] < 0
    assert found.difference == pytest.approx(found.second - found.first)
    assert worse["mig/exact"].over == "exact"


def draw_pair(seed):
    """Two models on the same rows, the second one noisier."""
    rng = np.random.default_rng(seed)
    codes = GRID / 2 + 0.4 * rng.standard_normal(GRID.shape)
    both = codes, codes + 0.3 * rng.standard_normal(GRID.shape)
    return [fixed_evaluation(each, np.ones_like(each), GRID) for each in both]


def test_models_on_the_same_rows_share_the_halves_of_corrected_scores():
    """The order of rows matters, but within the interval, and models that are compared gain by it."""
    rng, together, apart = np.random.default_rng(0), [], []
    for _ in range(20):
        factors = rng.integers(0, 8, (2_000, 2))
        codes = np.concatenate([factors + 0.8 * rng.standard_normal(factors.shape), rng.standard_normal((2_000, 2))], 1)
        similar, other = codes + 0.002 * rng.standard_normal(codes.shape), rng.permutation(len(codes))
        first, second = (mig_corrected(each, factors, resamples=20) for each in (codes, similar))
        moved = mig_corrected(similar[other], factors[other], resamples=0)
        assert second.interval[0] < moved.value < second.interval[1]
        together.append(second.value - first.value)
        apart.append(moved.value - first.value)
    assert np.std(together) < 0.5 * np.std(apart)


def test_equal_corrected_scores_differ_by_nothing():
    one = draw_pair(0)[0]
    (found,) = compare_evaluations(one, one, ["mig/corrected"])
    assert (found.difference, found.interval, found.over) == (0.0, (0.0, 0.0), "value over all rows")


@pytest.mark.slow
def test_the_difference_of_corrected_scores_has_the_spread_of_other_rows():
    names, differences, reaches = ["mig/corrected", "infomec/corrected"], [], []
    for seed in range(30):
        found = compare_evaluations(*draw_pair(seed), names)
        assert {one.over for one in found} == {"value over all rows"}
        differences.append([one.difference for one in found])
        reaches.append([(one.interval[1] - one.interval[0]) / 2 for one in found])
    assert len(found) == 3
    assert np.mean(reaches, axis=0) == pytest.approx(1.98 * np.std(differences, axis=0), rel=0.35)


@pytest.mark.slow
def test_intervals_keep_their_promises(monkeypatch):
    """The quick version of benchmarks/coverage.py: no coverage excludes .92 to .98, by its binomial interval."""
    folder = Path(__file__).parents[2] / "benchmarks"
    monkeypatch.syspath_prepend(folder)
    lies_outside = runpy.run_path(str(folder / "coverage_page.py"))["lies_outside"]
    cells = runpy.run_path(str(folder / "coverage.py"))["measure_all"](None, quick=True)["cells"]
    found = {(key, name): one for key, cell in cells.items() for name, one in cell["scores"].items()}
    measured = {place: one for place, one in found.items() if "coverage" in one}
    assert len(measured) > 10
    assert [place for place, one in measured.items() if lies_outside(one)] == []
