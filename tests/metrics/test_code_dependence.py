"""Total correlations and the information of single latents against closed forms."""

import math

import numpy as np
import pytest
import torch
from scipy.integrate import quad

from tests.support.evaluations import fixed_evaluation
from tests.support.messages import naming
from unbraid.errors import DataError, UsageError
from unbraid.metrics import evaluate
from unbraid.metrics.unsupervised.code_dependence import latent_information, total_correlation


def correlated(rows, rho, dimensions=10, seed=0):
    noise = np.random.default_rng(seed).standard_normal((rows, dimensions))
    codes = noise.copy()
    codes[:, 1::2] = rho * noise[:, ::2] + math.sqrt(1 - rho**2) * noise[:, 1::2]
    return codes


@pytest.mark.parametrize(("rho", "expected"), [(0.3, 0.24), (0.6, 1.12), (0.9, 4.15)])
def test_the_gaussian_total_correlation_of_gaussians(rho, expected):
    """tests/oracles.md, row 5."""
    score = total_correlation(correlated(200_000, rho))
    assert score.value == pytest.approx(expected, abs=0.01)
    assert score.interval[0] < -2.5 * math.log(1 - rho**2) < score.interval[1]


def test_the_gaussian_total_correlation_is_that_of_its_text():
    codes = correlated(300, 0.7, 4) * [1, 5, 0.1, 2] + 3
    centred = codes - codes.mean(0)
    covariance = [[float(np.mean(centred[:, i] * centred[:, j])) for j in range(4)] for i in range(4)]
    expected = 0.5 * (sum(math.log(covariance[i][i]) for i in range(4)) - math.log(np.linalg.det(covariance)))
    assert total_correlation(codes).value == pytest.approx(expected, rel=1e-9)
    assert total_correlation(torch.tensor(codes)).value == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(("dimensions", "rho"), [(2, 0.0), (10, 0.0), (10, 0.1)])
def test_the_interval_of_the_gaussian_total_correlation_covers_its_mean(dimensions, rho):
    """Also where latents are independent, so that all of the value is chance."""
    scores = [total_correlation(correlated(300, rho, dimensions, seed)) for seed in range(300)]
    mean = np.mean([score.value for score in scores])
    assert 0.92 < np.mean([score.interval[0] <= mean <= score.interval[1] for score in scores]) < 0.98


def test_a_constant_latent_is_left_out_and_said_so():
    codes = correlated(500, 0.7, 4)
    with_constant = np.concatenate([codes, np.full((500, 1), 2.0)], axis=1)
    score = total_correlation(with_constant)
    assert score.value == pytest.approx(total_correlation(codes).value)
    assert score.details["constant"] == [4]


def test_the_ratio_protocol_trains_a_network_once_and_gives_no_interval():
    score = total_correlation(correlated(6_000, 0.6), protocol="ratio", width=64, depth=2, steps=300, lr=3e-3)
    assert score.name == "tc/ratio"
    assert score.interval is None
    assert "trained once" in score.covers
    assert score.value == pytest.approx(1.12, abs=0.25)


def test_the_ratio_protocol_is_never_negative():
    score = total_correlation(correlated(6_000, 0.0), protocol="ratio", width=64, depth=2, steps=300, lr=3e-3)
    assert 0 <= score.value < 0.05


def test_bad_codes_are_refused():
    with pytest.raises(DataError, match="linear"):
        total_correlation(np.repeat(np.arange(10.0)[:, None], 2, axis=1))
    with pytest.raises(DataError, match="constant"):
        total_correlation(np.zeros((10, 2)))
    with pytest.raises(UsageError, match=naming("latents", 2)):
        total_correlation(np.zeros((10, 1)))
    with pytest.raises(UsageError, match="protocol"):
        total_correlation(np.zeros((10, 2)), protocol="exact")
    with pytest.raises(DataError, match="NaN"):
        total_correlation(np.full((10, 2), np.nan))


def test_the_information_of_a_latent_by_adaptive_quadrature():
    rng = np.random.default_rng(0)
    means, stds = rng.standard_normal((12, 3)), np.exp(rng.uniform(-2, 0.5, (12, 3)))

    def density(x, j):
        parts = [math.exp(-0.5 * ((x - m) / s) ** 2) / (s * math.sqrt(2 * math.pi)) for m, s in zip(*j, strict=True)]
        return sum(parts) / len(parts)

    for j, score in enumerate(latent_information(means, stds)):
        column = (means[:, j], stds[:, j])
        low, high = (means[:, j] - 9 * stds[:, j]).min(), (means[:, j] + 9 * stds[:, j]).max()
        entropy = quad(
            lambda x, column=column: -density(x, column) * math.log(density(x, column) or 1),
            low,
            high,
            limit=500,
            points=sorted(means[:, j]),
        )[0]
        own = np.mean([0.5 * math.log(2 * math.pi * math.e * s * s) for s in stds[:, j]])
        assert score.value == pytest.approx(entropy - own, abs=1e-5)
        assert score.part == f"z{j}"


def test_a_latent_cannot_know_more_than_the_logarithm_of_the_number_of_rows():
    means = np.stack([np.arange(40.0) * 100, np.zeros(40)], axis=1)
    sure, blind = latent_information(means, np.ones((40, 2)))
    assert sure.value == pytest.approx(math.log(40), abs=1e-6)
    assert sure.value <= sure.details["ceiling"] == math.log(40)
    assert blind.value == pytest.approx(0, abs=1e-6)


def test_an_evaluation_has_all_four_total_correlations_side_by_side():
    codes = correlated(800, 0.6, 4)
    evaluation = fixed_evaluation(codes, np.full(codes.shape, 0.1), np.arange(800)[:, None] % 2)
    scores = evaluate(evaluation, ["tc"], width=32, depth=2, steps=200, lr=5e-3)
    assert {s.name for s in scores} == {
        "tc/exact",
        "tc/stratified",
        "tc/ratio",
        "tc/gaussian/sampled",
        "tc/gaussian/mean",
    }
    found = {s.name: s.value for s in scores}
    assert found["tc/gaussian/mean"] == pytest.approx(-math.log(1 - 0.36), abs=0.1)
