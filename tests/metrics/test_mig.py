"""MIG under its protocols: known values, histograms against slow versions, invariances, intervals, bad input."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from sklearn.metrics import mutual_info_score

from tests.support.evaluations import (
    SPRITES,
    aligned_encoder,
    fixed_evaluation,
    full_grid,
    mixed_data,
    slow_entropy,
    slow_gap,
)
from tests.support.messages import naming
from unbraid.errors import DataError, UsageError
from unbraid.metrics import Score, evaluate, mig, mig_exact, restricted
from unbraid.metrics.arrays import to_labels
from unbraid.metrics.information.histogram import JointHistograms, discretise
from unbraid.metrics.information.stacked_histograms import measure_draws

NAMES = tuple(SPRITES)
GRID = full_grid(SPRITES.values())
WITHOUT_SHAPE = NAMES[1:]


@pytest.mark.parametrize("at_once", [1, 2**25])
def test_stacked_draws_equal_one_after_the_other(at_once, monkeypatch):
    monkeypatch.setattr("unbraid.metrics.information.stacked_histograms.MAX_CELLS_AT_ONCE", at_once)
    codes, factors = mixed_data()
    codes[:, 3] = 1.0  # a constant latent falls into one bin
    rng, labels = np.random.default_rng(1), to_labels(factors, len(codes))
    draws = [rng.permutation(len(codes))[:200] for _ in range(5)]
    ranges, found = measure_draws(codes, labels, 7, draws, "cpu")
    for rows, width, (information, entropies) in zip(draws, ranges, found, strict=True):
        some = labels.select(rows)
        expected = JointHistograms(discretise(codes[rows], 7), 7, some).information()
        np.testing.assert_allclose(information, expected[0], atol=1e-12)
        np.testing.assert_allclose(entropies, expected[1], atol=1e-12)
        np.testing.assert_array_equal(width, np.ptp(codes[rows], axis=0))
    assert measure_draws(codes, labels, 7, [], "cpu") == ([], [])


@pytest.mark.parametrize(
    ("std", "five", "four", "sampled"),
    [
        pytest.param(0.02, 0.994, 0.992, 0.872, marks=pytest.mark.slow),
        (0.1, 0.768, 0.710, 0.739),
        pytest.param(0.3, 0.518, 0.414, 0.502, marks=pytest.mark.slow),
    ],
)
def test_ceilings_of_a_perfectly_aligned_encoder(std, five, four, sampled):
    """tests/oracles.md, row 2."""
    means, stds = aligned_encoder(GRID, std)
    exact = mig_exact(means, stds, GRID, names=NAMES)
    assert exact.value == pytest.approx(five, abs=6e-4)
    assert restricted(exact, WITHOUT_SHAPE).value == pytest.approx(four, abs=6e-4)
    assert exact.interval == (exact.value, exact.value)
    assert exact.samples == len(GRID)
    assert list(exact.details["winner"].values()) == ["z0", "z1", "z2", "z3", "z4"]
    assert mig(means, GRID, names=NAMES, resamples=0).value == pytest.approx(0.896, abs=0.005)
    drawn = means + stds * np.random.default_rng(1).standard_normal(means.shape)
    assert mig(drawn, GRID, protocol="histogram-sampled", resamples=0).value == pytest.approx(sampled, abs=0.005)


def test_every_information_agrees_with_scikit_learn():
    """tests/oracles.md, row 8: 10,000 means, 20 equal-width bins."""
    rng = np.random.default_rng(3)
    means = aligned_encoder(GRID, 0.1)[0]
    rows = rng.choice(len(GRID), 10_000, replace=False)
    codes = means[rows] @ np.linalg.qr(rng.standard_normal((10, 10)))[0]
    score = mig(codes, GRID[rows], names=NAMES, resamples=0)
    for k, name in enumerate(NAMES):
        for j in range(10):
            edges = np.histogram(codes[:, j], 20)[1]
            expected = mutual_info_score(GRID[rows][:, k], np.digitize(codes[:, j], edges[:-1]))
            assert score.details["information"][name][j] == pytest.approx(expected, abs=1e-12)
        assert score.details["entropy"][name] == pytest.approx(slow_entropy(GRID[rows][:, k].tolist()), abs=1e-12)


def test_histogram_agrees_with_a_slow_version():
    codes, factors = mixed_data()
    binned = np.stack([np.digitize(c, np.histogram(c, 7)[1][:-1]) for c in codes.T], axis=1)
    information = [[mutual_info_score(f, b) for f in factors.T] for b in binned.T]
    score = mig(codes, factors, bins=7, samples=None)
    assert score.value == pytest.approx(slow_gap(information, [slow_entropy(f.tolist()) for f in factors.T]), abs=1e-12)
    assert score.details["winner"] == {"v0": "z1", "v1": "z2"}


@pytest.mark.parametrize("protocol", ["exact", "histogram"])
def test_information_is_not_read_across_its_diagonal(protocol):
    """As many latents as factors, and each factor known to the next latent: a reshape for a transpose shows here."""
    factors = full_grid((4, 4, 4))
    codes = factors[:, [2, 0, 1]] * [1.0, 2.0, 3.0]
    score = mig_exact(codes, np.full(codes.shape, 0.01), factors) if protocol == "exact" else mig(codes, factors)
    assert score.details["winner"] == {"v0": "z1", "v1": "z2", "v2": "z0"}
    found = np.array(list(score.details["information"].values())) / np.log(4)
    np.testing.assert_allclose(found, np.eye(3)[[1, 2, 0]], atol=1e-6)
    assert score.value == pytest.approx(1, abs=1e-6)


order = st.permutations(range(4))
signs = st.lists(st.sampled_from([-1.0, 1.0]), min_size=4, max_size=4)
scales = st.lists(st.floats(0.1, 10), min_size=4, max_size=4)


@settings(max_examples=15)
@given(order=order, signs=signs, scales=scales)
def test_the_gap_knows_no_order_sign_or_unit_of_latents(order, signs, scales):
    codes, factors = mixed_data(120)
    stds = 0.3 + np.abs(mixed_data(120, seed=1)[0])
    scales = np.array(scales)
    moved, widened = (codes * signs * scales)[:, order], (stds * scales)[:, order]
    assert mig_exact(moved, widened, factors).value == pytest.approx(mig_exact(codes, stds, factors).value, abs=1e-6)
    halves = 2.0 ** np.round(np.log2(scales))  # exact in floating point, so that no code crosses an edge
    plain = mig((codes * halves)[:, order], factors, resamples=0).value
    assert plain == pytest.approx(mig(codes, factors, resamples=0).value, abs=1e-12)


@settings(max_examples=15)
@given(st.permutations(["a", "b", "c"]))
def test_the_names_of_factor_values_do_not_matter(words):
    codes, factors = mixed_data(100)
    renamed = np.stack([np.array(words)[factors[:, 0]], factors[:, 1].astype(str)], axis=1)
    assert mig(codes, renamed, resamples=0).value == pytest.approx(mig(codes, factors, resamples=0).value, abs=1e-12)


def test_interval_covers_the_value_and_shrinks_with_rows():
    small, large = (mig(*mixed_data(rows), samples=None, bins=10) for rows in (500, 5_000))
    for score in (small, large):
        assert score.covers == f"spread at {score.samples:,} rows"
        assert score.interval is not None
        assert score.interval[0] < score.value < score.interval[1]
    assert np.diff(large.interval) < np.diff(small.interval) / 2
    assert mig(*mixed_data(), resamples=0).interval is None


def test_an_interval_that_would_mislead_is_not_printed():
    codes, factors = mixed_data(5_000)
    few = mig(codes[:300], factors[:300])
    assert few.interval is None
    assert few.covers.startswith("none: 300 rows are too few")
    codes[:, 0] += np.random.default_rng(0).standard_t(2, 5_000) ** 3
    heavy = mig(codes, factors, samples=None)
    assert heavy.interval is None
    assert "far from all others" in heavy.covers
    assert mig(codes, factors, samples=None, resamples=0).value == heavy.value


def test_interval_has_about_the_right_width():
    """Against the spread of the score over fresh data."""
    fresh = [mig(*mixed_data(2_000, seed=s), samples=None, resamples=0).value for s in range(60)]
    interval = mig(*mixed_data(2_000, seed=99), samples=None).interval
    assert float(np.diff(interval)[0]) == pytest.approx(2 * 1.96 * np.std(fresh), rel=0.4)


@pytest.mark.parametrize("kind", [np.float32, np.int64, bool, torch.float32, torch.bfloat16, torch.int32, torch.bool])
def test_codes_may_have_any_real_type(kind):
    codes, factors = mixed_data(50)
    codes = np.round(codes)
    made = torch.tensor(codes).to(kind) if isinstance(kind, torch.dtype) else codes.astype(kind)
    same = np.asarray(made.float() if isinstance(made, torch.Tensor) else made, dtype=np.float64)
    assert mig(made, torch.tensor(factors)).value == mig(same, factors).value


def test_defined_corner_cases():
    codes, factors = mixed_data(50)
    assert mig(np.zeros_like(codes), factors).value == 0
    flat = mig(codes, factors[:, 0])
    assert flat.value == mig(codes, factors[:, :1]).value
    constant = np.concatenate([codes, np.ones((50, 1))], axis=1)
    assert mig(constant, factors).details["information"]["v0"][-1] == pytest.approx(0, abs=1e-12)
    nearly = np.concatenate([codes, 1 + 1e-16 * codes[:, :1]], axis=1)
    assert np.isfinite(mig(nearly, factors).value)
    assert mig(codes, factors, seed=1).interval == mig(codes, factors, seed=1).interval


@given(
    column=st.lists(
        st.one_of(
            st.floats(-1e300, 1e300),
            st.floats(-1, 1),
            st.integers(-8, 8).map(float),
            st.integers(0, 40).map(lambda n: n / 40),
        ),
        min_size=2,
        max_size=60,
    ),
    shift=st.sampled_from([0.0, 1.0, 1e6, 1e15]),
    bins=st.integers(2, 40),
)
def test_bins_are_those_of_the_edges_themselves(column, shift, bins):
    values = np.array(column)[:, None] + shift
    edges = np.linspace(values.min(), values.max(), bins + 1)
    assert np.array_equal(discretise(values, bins)[:, 0], np.digitize(values[:, 0], edges[:-1]) - 1)


CODES, FACTORS = mixed_data(60)


@pytest.mark.parametrize(
    ("codes", "factors", "error", "facts"),
    [
        (CODES[:, 0], FACTORS, UsageError, ["[rows, latents]"]),
        (CODES[:, :1], FACTORS, UsageError, ["latent", 1]),
        (CODES[:30], FACTORS, UsageError, [30]),
        (np.full_like(CODES, np.nan), FACTORS, DataError, ["NaN"]),
        (np.full_like(CODES, np.inf), FACTORS, DataError, ["infinite"]),
        (CODES.astype(complex), FACTORS, UsageError, ["complex128"]),
        (CODES.astype(str), FACTORS, UsageError, ["<U32"]),
        ([[1.0, 2.0], [1.0]], [0, 1], UsageError, ["rows"]),
        (CODES, FACTORS[:, :0], UsageError, ["[rows, factors]"]),
        (CODES, np.zeros_like(FACTORS), DataError, ["v0"]),
        (CODES, np.where(FACTORS > 1, np.nan, 1.0), DataError, ["v0", "NaN"]),
        (CODES, np.array([[1, "a"], [None, 2]] * 30, dtype=object), DataError, ["v0"]),
        (CODES[:1], FACTORS[:1], DataError, ["rows", 2]),
        (np.random.rand(200, 3), np.random.rand(200), UsageError, ["discrete"]),
    ],
)
def test_bad_arrays_are_answered_in_one_line(codes, factors, error, facts):
    with pytest.raises(error, match=naming(*facts)) as caught:
        mig(codes, factors)
    assert "\n" not in str(caught.value)


def test_bad_settings_are_answered():
    with pytest.raises(UsageError, match="bins"):
        mig(CODES, FACTORS, bins=1)
    with pytest.raises(UsageError, match="samples"):
        mig(CODES, FACTORS, samples=1)
    with pytest.raises(UsageError, match=naming(2, 3)):
        mig(CODES, FACTORS, names=("a", "b", "c"))
    with pytest.raises(UsageError, match=naming("latents", 4, 1)):
        mig(CODES, FACTORS, latents=("a",))
    with pytest.raises(UsageError, match="stds"):
        mig_exact(CODES, np.ones((2, 2)), FACTORS)
    with pytest.raises(DataError, match=naming("stds", 0)):
        mig_exact(CODES, np.zeros_like(CODES), FACTORS)
    with pytest.raises(DataError, match="posterior"):
        mig_exact(CODES, np.full_like(CODES, 1e-12), FACTORS)


def test_registered_protocols_score_an_evaluation():
    codes, factors = mixed_data(300)
    evaluation = fixed_evaluation(codes, np.full_like(codes, 0.2), factors, names=("size", "place"))
    scores = {score.name: score for score in evaluate(evaluation, ["mig"])}
    assert list(scores) == ["mig/corrected", "mig/exact", "mig/histogram-mean", "mig/histogram-sampled"]
    float32 = codes.astype(np.float32)
    assert scores["mig/histogram-mean"].value == pytest.approx(mig(float32, factors).value, abs=1e-12)
    stds = torch.as_tensor(np.full_like(codes, 0.2)).float().log().mul(2).mul(0.5).exp()
    assert scores["mig/exact"].value == pytest.approx(mig_exact(float32, stds, factors).value, abs=1e-9)
    assert scores["mig/histogram-sampled"].value < scores["mig/histogram-mean"].value + 0.1
    for score in scores.values():
        assert Score.from_record(json.loads(json.dumps(score.as_record()))) == score
        assert score.seconds > 0


def test_factors_can_be_left_out():
    codes, factors = mixed_data(300)
    evaluation = fixed_evaluation(codes, np.full_like(codes, 0.2), factors, names=("size", "place"))
    for all_of_it, part in zip(
        evaluate(evaluation, ["mig"]), evaluate(evaluation, ["mig"], factors=("place",)), strict=True
    ):
        assert part.details["left_out"] == ["size"]
        assert part.value == pytest.approx(all_of_it.details["gaps"]["place"], abs=1e-9)
        assert restricted(all_of_it, ["place"]).value == pytest.approx(part.value, abs=1e-9)
        assert restricted(all_of_it, ["place"]).details["left_out"] == ["size"]
    with pytest.raises(UsageError, match=naming("sise", "size")):
        evaluate(evaluation, ["mig/exact"], factors=("sise",))
    with pytest.raises(UsageError, match="bins"):
        evaluate(evaluation, ["mig/exact"], bins=3)


def test_an_evaluation_of_some_rows_scores_those_rows():
    codes, factors = mixed_data(300)
    held_out = torch.arange(0, 300, 2)
    evaluation = fixed_evaluation(codes, np.full_like(codes, 0.2), factors, rows=held_out)
    assert evaluation.held_out
    (score,) = evaluate(evaluation, ["mig/histogram-mean"])
    assert score.samples == 150
    assert score.value == pytest.approx(mig(codes.astype(np.float32)[::2], factors[::2]).value, abs=1e-12)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_histograms_of_resamples_on_cuda_equal_those_on_the_cpu():
    codes, factors = mixed_data(500)
    labels = to_labels(factors, 500)
    draws = [None, np.arange(500)[::-1].copy(), np.random.default_rng(0).integers(500, size=500)]
    here, there = (
        JointHistograms(discretise(codes, 20), 20, labels, device).informations(draws) for device in ("cpu", "cuda")
    )
    for (one, entropy), (other, other_entropy) in zip(here, there, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-12)
        np.testing.assert_allclose(entropy, other_entropy, atol=1e-12)


def test_continuous_factors_are_refused_before_rows_are_drawn_with_repetition():
    rng = np.random.default_rng(0)
    codes, factors = rng.standard_normal((200, 3)), rng.standard_normal((200, 2))
    for how in ({}, {"compat": "disentanglement_lib"}):
        with pytest.raises(UsageError, match=naming("discrete", "factors")):
            mig(codes, factors, **how)
