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
from unbraid.metrics.information.histogram import JointHistograms, discretise_by_rank
from unbraid.metrics.intervals import (
    mean_share_interval,
    measure_halves,
    median_interval,
    resampled_share_interval,
    resampling_interval,
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
    drawn = 0.9 + 0.02 * np.random.default_rng(0).standard_normal(400)
    low, high = resampled_share_interval(0.9, drawn, 500)
    assert high - low == pytest.approx(4 * 0.02, rel=0.1)
    assert resampled_share_interval(1.0, [1.0, 1.0, 1.0], 500) == share_interval(1.0, 500)
    assert resampled_share_interval(1.0, [1.0], 500) is None


def test_the_spread_over_halves_is_that_of_a_mean():
    values = np.random.default_rng(0).exponential(size=400)
    drawn = measure_halves(lambda rows: values[rows].mean(), [400], 500, np.random.default_rng(1))
    assert np.std(drawn) == pytest.approx(values.std() / 20, rel=0.1)
    low, high = resampling_interval(values.mean(), drawn)
    assert high - low == pytest.approx(2 * 1.965 * np.std(drawn), rel=0.01)


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


@pytest.mark.slow
def test_intervals_keep_their_promises():
    """The quick version of benchmarks/coverage.py: within its range, up to three standard errors of 100 repetitions."""
    script = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "coverage.py"))
    record = script["measure_all"](None, True, None)
    found = [one for cell in record["cells"].values() for one in cell["scores"].values() if "coverage" in one]
    low, high = script["RANGE"]
    assert len(found) > 10
    for one in found:
        assert low - 1.5 * one["error"] - 0.02 <= one["coverage"] <= high + 0.03
