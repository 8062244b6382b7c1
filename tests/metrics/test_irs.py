"""Interventional robustness: closed forms, slow versions, the two protocols' differences, bad input."""

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from tests.support.evaluations import SPRITES, aligned_encoder, fixed_evaluation, full_grid
from tests.support.messages import names, naming
from unbraid.errors import DataError, UsageError
from unbraid.metrics import evaluate
from unbraid.metrics.intervention.irs import irs


def mixed_data(rows=300, seed=0):
    """An unbalanced, incomplete table with a factor of 30 values, and codes that know some of it."""
    rng = np.random.default_rng(seed)
    factors = np.stack([rng.choice(4, rows, p=[0.1, 0.2, 0.3, 0.4]), rng.integers(0, 30, rows)], axis=1)
    codes = rng.standard_normal((rows, 4))
    codes[:, 0] += 2 * factors[:, 0]
    codes[:, 1] += 0.3 * factors[:, 1]
    codes[:, 2] += 0.1 * factors[:, 1] + factors[:, 0]
    return codes, factors


def slow_quantile(values, q):
    values = sorted(values)
    place = q * (len(values) - 1)
    low = math.floor(place)
    high = min(low + 1, len(values) - 1)
    return values[low] + (place - low) * (values[high] - values[low])


def slow_score(codes, factors, quantile, equal_weights=False):
    """suter2019 in loops: 1 - expected (nearly) greatest deviation over the greatest of all; best factor; mean."""
    rows, total, weights = len(codes), 0.0, 0.0
    for j in range(len(codes[0])):
        z = [code[j] for code in codes]
        middle = sum(z) / rows
        reach = max(abs(value - middle) for value in z)
        best = -math.inf
        for k in range(len(factors[0])):
            different = sorted({row[k] for row in factors})
            expected = 0.0
            for value in different:
                group = [z[n] for n in range(rows) if factors[n][k] == value]
                centre = sum(group) / len(group)
                share = 1 / len(different) if equal_weights else len(group) / rows
                expected += share * slow_quantile([abs(one - centre) for one in group], quantile)
            best = max(best, 1 - expected / reach)
        total, weights = total + reach * best, weights + reach
    return total / weights


def twenty_bins(factors):
    """Every factor in 20 bins between its least and its greatest value, as numpy's histogram has them."""
    columns = [np.digitize(column, np.histogram(column, 20)[1][:-1]) for column in factors.T]
    return np.stack(columns, axis=1)


@pytest.mark.parametrize("quantile", [0.5, 0.99, 1.0])
def test_agrees_with_a_slow_version(quantile):
    codes, factors = mixed_data()
    score = irs(codes, factors, quantile=quantile)
    assert score.value == pytest.approx(slow_score(codes.tolist(), factors.tolist(), quantile), abs=1e-12)


def test_the_published_protocol_agrees_with_a_slow_version():
    codes, factors = mixed_data()
    score = irs(codes, factors, compat="disentanglement_lib")
    slow = slow_score(codes.tolist(), twenty_bins(factors).tolist(), 0.99, equal_weights=True)
    assert score.value == pytest.approx(slow, abs=1e-12)
    assert score.protocol == "disentanglement_lib"
    assert score.value != pytest.approx(irs(codes, factors).value, abs=1e-3)


def test_a_sum_of_two_factors_is_half_robust():
    """z = v0 + v1 over {0, 1}^2 reaches 1 from its mean, and 1/2 from it if one factor stands still."""
    factors = full_grid((2, 2))
    codes = factors.sum(1, keepdims=True)
    assert irs(codes, factors, quantile=1.0).value == pytest.approx(0.5)
    assert irs(codes, factors, quantile=1.0).details["robustness"]["z0"] == {"v0": 0.5, "v1": 0.5}


def test_latents_are_weighted_by_their_reach():
    factors = full_grid((2, 2))
    codes = np.stack([factors[:, 0] * 3.0, factors.sum(1)], axis=1)  # reaches 1.5 and 1
    score = irs(codes, factors, quantile=1.0)
    assert score.value == pytest.approx((1.5 * 1 + 1 * 0.5) / 2.5)
    assert score.details["weights"] == pytest.approx({"z0": 0.6, "z1": 0.4})
    assert score.details["parents"]["z0"] == "v0"


def test_ceilings_of_an_aligned_encoder():
    """Twenty bins cannot hold 32 or 40 values, so the published protocol moves a perfect latent a little."""
    grid = full_grid(SPRITES.values())
    rows = np.random.default_rng(0).choice(len(grid), 10_000, replace=False)
    means = aligned_encoder(grid, 0.02)[0][rows]
    own = irs(means, grid[rows], names=tuple(SPRITES))
    assert own.value == pytest.approx(1, abs=1e-9)
    assert list(own.details["parents"].values()) == list(SPRITES)
    assert own.details["constant"] == ["z5", "z6", "z7", "z8", "z9"]
    assert 0.9 < irs(means, grid[rows], compat="disentanglement_lib").value < 0.99


def test_outliers_in_every_value_count_below_zero():
    factors = np.repeat([0, 1], 100)
    codes = np.where(factors, 1.0, -1.0)
    codes[[0, 1, 2, 100, 101, 102]] *= -1
    assert -1 < irs(codes[:, None], factors).value < -0.9


def test_noise_does_not_score_zero():
    noise = np.random.default_rng(0).standard_normal((10_000, 6))
    factors = np.random.default_rng(1).integers(0, 10, (10_000, 3))
    assert irs(noise, factors).value == pytest.approx(0.35, abs=0.1)


@pytest.mark.parametrize("compat", [None, "disentanglement_lib"])
def test_with_all_latents_constant_the_score_is_zero(compat):
    score = irs(np.full((12, 2), 0.1), full_grid((3, 4)), compat=compat)
    assert score.value == 0
    assert names(score.details["why"], "constant")


@settings(max_examples=10)
@given(st.permutations(range(4)), st.lists(st.sampled_from([-1, 1]), min_size=4, max_size=4))
def test_order_sign_and_a_common_scale_do_not_matter(order, signs):
    codes, factors = mixed_data()
    assert irs(3 * (codes * signs)[:, order] + 5, factors).value == pytest.approx(irs(codes, factors).value, abs=1e-9)


@pytest.mark.parametrize("name", ["irs/quantile", "irs/disentanglement_lib"])
def test_of_an_evaluation(name):
    codes, factors = mixed_data()
    evaluation = fixed_evaluation(codes, np.ones_like(codes), factors, names=["hue", "angle"])
    (score,) = evaluate(evaluation, [name])
    assert score.name == name
    assert score.samples == 300
    assert score.interval is None
    assert set(score.details["parents"].values()) == {"hue", "angle"}
    (fewer,) = evaluate(evaluation, [name], samples=100, factors=("hue",), quantile=1.0)
    assert fewer.samples == 100
    assert set(fewer.details["parents"].values()) == {"hue"}


def test_torch_and_numpy_agree():
    codes, factors = mixed_data()
    assert irs(codes, factors) == irs(torch.from_numpy(codes), torch.from_numpy(factors))
    json.dumps(irs(codes, factors).as_record())


@pytest.mark.parametrize(
    ("change", "error", "facts"),
    [
        ({"codes": np.full((300, 2), np.nan)}, DataError, ["NaN"]),
        ({"factors": np.zeros(300, int)}, DataError, ["v0"]),
        ({"factors": np.random.default_rng(0).random((300, 1))}, UsageError, ["v0", "factor_bins"]),
        ({"quantile": 0.0}, UsageError, ["quantile", 0, 1]),
        ({"quantile": 1.5}, UsageError, ["quantile", 0, 1]),
        ({"factors": np.zeros((299, 1), int)}, UsageError, [299]),
    ],
)
def test_bad_input_is_refused(change, error, facts):
    codes, factors = mixed_data()
    with pytest.raises(error, match=naming(*facts)):
        irs(**{"codes": codes, "factors": factors, **change})
