"""chen2018's Monte Carlo MIG against the exact one, and against a slow version of its text."""

import math

import numpy as np
import pytest

from tests.support.evaluations import aligned_encoder, fixed_evaluation, full_grid, slow_entropy, slow_gap
from tests.support.messages import naming
from unbraid.errors import DataError, UsageError
from unbraid.metrics import evaluate, mig, mig_exact
from unbraid.metrics.arrays import to_labels
from unbraid.metrics.information.mig import compute_ceiling
from unbraid.metrics.information.mig_monte_carlo import mig_monte_carlo


def mixed(rows=120, seed=2):
    rng = np.random.default_rng(seed)
    factors = np.stack([rng.integers(0, 3, rows), rng.integers(0, 4, rows)], axis=1)
    means = factors @ rng.standard_normal((2, 3)) + 0.3 * rng.standard_normal((rows, 3))
    return means, np.exp(rng.uniform(-2, 0, means.shape)), factors


def slow_monte_carlo(means, stds, factors, samples, rng):
    """Appendix A, one density at a time."""

    def entropy(rows, j):
        total = 0.0
        for s in range(samples):
            n = rows[s % len(rows)]
            z = rng.normal(means[n, j], stds[n, j])
            densities = np.exp(-0.5 * ((z - means[rows, j]) / stds[rows, j]) ** 2) / stds[rows, j]
            total -= math.log(densities.mean() / math.sqrt(2 * math.pi))
        return total / samples

    everything = np.arange(len(means))
    information = []
    for j in range(means.shape[1]):
        whole, row = entropy(everything, j), []
        for column in factors.T:
            values = sorted(set(column))
            parts = [(np.mean(column == a), entropy(everything[column == a], j)) for a in values]
            row.append(whole - sum(p * h for p, h in parts))
        information.append(row)
    return slow_gap(information, [slow_entropy(column.tolist()) for column in factors.T])


def test_it_agrees_with_the_slow_version_and_converges_to_the_exact_one():
    means, stds, factors = mixed()
    score = mig_monte_carlo(means, stds, factors, samples=6_000)
    exact = mig_exact(means, stds, factors).value
    slow = slow_monte_carlo(means, stds, factors, 2_000, np.random.default_rng(0))
    assert score.value == pytest.approx(exact, abs=0.01)
    assert score.value == pytest.approx(slow, abs=0.03)
    assert score.interval[0] < exact < score.interval[1]
    assert score.name == "mig/chen2018"


def test_it_lies_a_little_below_the_exact_one_on_a_perfect_code():
    """tests/oracles.md, row 2: a Monte Carlo estimate may lie .01 below, its runner-up being a maximum over noise."""
    grid = full_grid((3, 6, 10, 8))
    means, stds = aligned_encoder(grid, 0.1)
    exact, found = mig_exact(means, stds, grid).value, mig_monte_carlo(means, stds, grid, samples=1_000).value
    assert exact - 0.03 < found < exact + 0.005


def test_shape_is_left_out():
    means, stds, factors = mixed()
    evaluation = fixed_evaluation(means, stds, factors, names=["shape", "size"])
    (score,) = evaluate(evaluation, ["mig/chen2018"], samples=500)
    assert list(score.details["gaps"]) == ["size"]
    assert score.details["left_out"] == ["shape"]
    (both,) = evaluate(evaluation, ["mig/chen2018"], samples=500, factors=("shape", "size"))
    assert list(both.details["gaps"]) == ["shape", "size"]


def test_the_published_protocols_are_measured_only_when_named():
    means, stds, factors = mixed()
    evaluation = fixed_evaluation(means, stds, factors)
    ours = {"corrected", "exact", "histogram-mean", "histogram-sampled"}
    assert {s.protocol for s in evaluate(evaluation, ["mig"])} == ours
    assert "mig/chen2018" in {s.name for s in evaluate(evaluation, ["chen2018"])}


def test_disentanglement_lib_draws_rows_with_repetition():
    means, _, factors = mixed(50)
    found = [mig(means, factors, compat="disentanglement_lib", seed=seed, resamples=0).value for seed in range(8)]
    assert len(set(found)) == 8
    assert np.mean(found) == pytest.approx(mig(means, factors, samples=None, resamples=0).value, abs=0.01)
    assert mig(means, factors, compat="disentanglement_lib").name == "mig/disentanglement_lib"


def test_the_ceiling_of_a_histogram():
    """tests/oracles.md, row 2: 20 bins cannot hold 32 or 40 values."""
    grid = full_grid((3, 6, 40, 32, 32))
    assert compute_ceiling(to_labels(grid, len(grid)), 20) == pytest.approx(0.902, abs=0.0005)
    some = np.random.default_rng(0).choice(len(grid), 10_000, replace=False)
    score = mig(aligned_encoder(grid, 0.1)[0][some], grid[some], resamples=0)
    assert score.details["ceiling"] == pytest.approx(0.902, abs=0.002)
    assert score.value == pytest.approx(0.896, abs=0.003)  # the runner-up of 10,000 rows knows a little by chance


def test_continuous_factors_are_cut_into_bins_when_asked():
    rng = np.random.default_rng(0)
    factor = rng.exponential(size=(4_000, 1))
    codes = np.concatenate([np.log(factor), rng.standard_normal((4_000, 1))], axis=1)
    with pytest.raises(UsageError, match="factor_bins=20"):
        mig(codes, factor)
    score = mig(codes, factor, factor_bins=20, resamples=0)
    assert score.details["entropy"]["v0"] == pytest.approx(math.log(20), abs=1e-3)
    assert score.value > 0.5
    with pytest.raises(UsageError, match=naming("factor_bins", 2)):
        mig(codes, factor, factor_bins=1)


def test_bad_input_is_refused():
    means, stds, factors = mixed()
    with pytest.raises(DataError, match=naming("stds", 0)):
        mig_monte_carlo(means, 0 * stds, factors)
    with pytest.raises(UsageError, match="stds"):
        mig_monte_carlo(means, stds[:, :2], factors)
    with pytest.raises(UsageError, match=naming("samples", 2)):
        mig_monte_carlo(means, stds, factors, samples=1)
    with pytest.raises(UsageError, match=naming("latent", 1)):
        mig_monte_carlo(means[:, :1], stds[:, :1], factors)
    with pytest.raises(UsageError, match="mig_monte_carlo"):
        mig(means, factors, compat="chen2018")
