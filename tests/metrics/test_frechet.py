"""Frechet distance: against closed forms, against scipy's matrix square root, on models that reconstruct exactly."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from scipy.linalg import sqrtm
from torch import nn

from tests.support.evaluations import fixed_evaluation
from tests.support.messages import naming
from unbraid.errors import DataError, UsageError
from unbraid.metrics import evaluate, metric
from unbraid.metrics.generative import kernel_distance, precision_recall as manifold
from unbraid.metrics.generative.features import classifier as classifiers
from unbraid.metrics.generative.frechet import frechet


def exact_gaussian(rng, rows, mean, factor):
    """Rows whose sample mean is `mean` and whose sample covariance is factor^T factor, to rounding."""
    x = rng.standard_normal((rows, len(factor)))
    x -= x.mean(0)
    whitened = x @ np.linalg.inv(np.linalg.cholesky(np.cov(x.T)).T)
    return whitened @ factor + mean


def slow_frechet(a, b):
    """The formula, with scipy's square root of a general matrix."""
    first, second = np.cov(a.T), np.cov(b.T)
    root = sqrtm(first @ second)
    mean = sum((p - q) ** 2 for p, q in zip(a.mean(0), b.mean(0), strict=True))
    return mean + np.trace(first) + np.trace(second) - 2 * np.trace(root).real


@pytest.mark.parametrize("d", [2, 7, 20])
def test_known_covariances_give_the_closed_form(d):
    rng = np.random.default_rng(d)
    factors = rng.standard_normal((2, d, d))
    means = rng.standard_normal((2, d))
    a, b = (exact_gaussian(rng, 60 + 30 * i, means[i], factors[i]) for i in (0, 1))
    first, second = (f.T @ f for f in factors)
    truth = ((means[0] - means[1]) ** 2).sum() + np.trace(first + second - 2 * sqrtm(first @ second).real)
    assert frechet(a, b).value == pytest.approx(truth, rel=1e-9)


def test_gaussians_on_common_axes_differ_by_their_deviations():
    rng = np.random.default_rng(0)
    deviations = np.array([[1.0, 2.0, 0.5], [1.5, 0.1, 4.0]])
    a, b = (exact_gaussian(rng, 50, np.zeros(3), np.diag(s)) for s in deviations)
    score = frechet(a, b)
    assert score.value == pytest.approx(((deviations[0] - deviations[1]) ** 2).sum(), rel=1e-10)
    assert score.details["mean_term"] == pytest.approx(0, abs=1e-20)


@pytest.mark.parametrize(("rows", "d"), [(200, 5), (40, 100)])
def test_a_set_has_no_distance_from_itself_and_a_shift_costs_its_square(rows, d):
    x = np.random.default_rng(0).standard_normal((rows, d)) * 30
    shift = np.linspace(-1, 2, d)
    assert frechet(x, x).value == pytest.approx(0, abs=1e-8)
    assert frechet(x, x[::-1]).value == pytest.approx(0, abs=1e-8)
    assert frechet(x, x + shift).value == pytest.approx((shift**2).sum(), rel=1e-8)


def test_it_agrees_with_scipy_on_any_features():
    rng = np.random.default_rng(3)
    a = rng.standard_normal((300, 12)) @ rng.standard_normal((12, 12))
    b = rng.exponential(size=(170, 12))
    assert frechet(a, b).value == pytest.approx(slow_frechet(a, b), rel=1e-8)
    assert not frechet(a, b).details["rank_deficient"]


def test_fewer_rows_than_features_are_as_good_and_are_told():
    rng = np.random.default_rng(4)
    a, b = rng.standard_normal((9, 14)), 2 * rng.standard_normal((11, 14)) + 1
    score = frechet(a, b)
    assert score.details["rank_deficient"]
    # scipy's square root of a singular matrix is itself only good to a few digits
    assert score.value == pytest.approx(slow_frechet(a, b), rel=1e-5)
    basis = np.linalg.qr(np.vstack([a, b]).T)[0]
    assert frechet(a @ basis, b @ basis).value == pytest.approx(score.value, rel=1e-10)


@given(st.integers(0, 10_000), st.integers(2, 30), st.integers(2, 30), st.integers(1, 12), st.floats(0.1, 10))
@settings(max_examples=25)
def test_it_is_symmetric_rotates_and_scales(seed, n, m, d, scale):
    rng = np.random.default_rng(seed)
    a, b = rng.standard_normal((n, d)), rng.standard_normal((m, d)) + 1
    value = frechet(a, b).value
    rotation = np.linalg.qr(rng.standard_normal((d, d)))[0]
    assert value >= 0
    assert frechet(b, a).value == pytest.approx(value, rel=1e-8, abs=1e-9)
    assert frechet(a @ rotation + 5, b @ rotation + 5).value == pytest.approx(value, rel=1e-7, abs=1e-9)
    assert frechet(a * scale, b * scale).value == pytest.approx(scale**2 * value, rel=1e-7, abs=1e-9)


def test_it_grows_with_the_noise():
    rng = np.random.default_rng(0)
    x, noise = rng.standard_normal((400, 8)), rng.standard_normal((400, 8))
    values = [frechet(x, x + s * noise).value for s in (0, 0.1, 0.3, 1, 3)]
    assert values == sorted(values)
    assert values[0] == pytest.approx(0, abs=1e-10)


def test_the_interval_has_the_right_width():
    """In one dimension d^2 = (m_a - m_b)^2 + (s_a - s_b)^2, whose spread over new data is easily simulated."""
    rng = np.random.default_rng(0)

    def pair():
        return rng.normal(0, 1, (300, 1)), rng.normal(2, 1.5, (300, 1))

    spread = np.std([frechet(*pair()).value for _ in range(300)])
    widths = [np.diff(frechet(*pair(), resamples=60, seed=s).interval)[0] for s in range(8)]
    assert np.mean(widths) / (2 * 1.96) == pytest.approx(spread, rel=0.2)
    x = rng.standard_normal((100, 4))
    assert frechet(x, x + 1, paired=True, resamples=5).interval == pytest.approx((4, 4)), "pairs stay together"
    assert frechet(x, x + 1, resamples=6).interval[1] > 4.1


def test_heavy_tails_have_no_interval():
    rng = np.random.default_rng(0)
    for number in range(8):
        normal, heavy = rng.standard_normal((2, 400, 6)), rng.standard_t(3, (2, 400, 6))
        assert frechet(*normal, resamples=4, seed=number).interval is not None
        score = frechet(*heavy, resamples=4, seed=number)
        assert score.interval is None
        assert score.covers.startswith("none: a few rows")


def test_tensors_and_bad_input():
    x = np.random.default_rng(0).standard_normal((10, 3)).astype(np.float32)
    assert frechet(torch.tensor(x), x + 1, network="mine").name == "frechet/mine"
    with pytest.raises(UsageError, match=naming("features_a", "[rows, features]", "[10]")):
        frechet(x[:, 0], x)
    with pytest.raises(UsageError, match=naming("features_a", 3, "features_b", 2)):
        frechet(x, x[:, :2])
    with pytest.raises(DataError, match=naming("features_b", 2, 1)):
        frechet(x, x[:1])
    with pytest.raises(DataError, match=naming("features_b", "NaN")):
        frechet(x, x * np.nan)
    with pytest.raises(UsageError, match=naming(10, 9)):
        frechet(x, x[1:], paired=True)
    assert frechet(np.ones((5, 2)), np.ones((4, 2))).value == 0, "constant features are points"


def exact_model(rows=240, pixels=3, noise=0.0):
    """A model that reconstructs vectors exactly but for `noise`, with a factor that can be seen in them."""
    x = torch.arange(rows).float()[:, None].repeat(1, pixels) / rows
    means = x + noise * torch.randn(rows, pixels, generator=torch.Generator().manual_seed(0))
    table = (torch.arange(rows) * 4 // rows)[:, None]
    return fixed_evaluation(means, torch.full_like(means, 0.01), table, decoder=nn.Identity(), pixels=pixels)


FAMILY = ("frechet/classifier", "kid/classifier", "precision-recall/classifier")


def test_exact_reconstructions_have_no_distance_and_share_one_classifier(monkeypatch):
    trained = []
    train = classifiers._train
    monkeypatch.setattr(classifiers, "_train", lambda *given: trained.append(train(*given)))
    scores = {score.name: score for score in evaluate(exact_model(), FAMILY, steps=40)}
    assert len(trained) == 1
    assert scores["frechet/classifier/reconstructions"].value == pytest.approx(0, abs=1e-9)
    assert scores["kid/classifier/reconstructions"].value == pytest.approx(0, abs=1e-9)
    assert scores["precision-recall/classifier/reconstructions-precision"].value == 1
    assert scores["precision-recall/classifier/reconstructions-recall"].value == 1
    assert scores["frechet/classifier/samples"].value > 0.1, "the prior is not uniform on a line"
    assert scores["kid/classifier/samples"].value > 0.01
    assert scores["precision-recall/classifier/samples-precision"].value < 0.5
    details = scores["frechet/classifier/samples"].details
    assert details["network"]["accuracy"]["v0"] > 0.8
    assert {score.samples for score in scores.values()} == {240}


def test_worse_reconstructions_are_farther_away():
    values = [
        next(s.value for s in evaluate(exact_model(noise=noise), FAMILY[:1], steps=40) if s.part == "reconstructions")
        for noise in (0.0, 0.1, 0.5)
    ]
    assert values == sorted(values)
    assert values[1] > 1e-6


def test_networks_for_pictures_say_what_they_need(monkeypatch):
    monkeypatch.delenv("UNBRAID_INCEPTION", raising=False)
    for name in ("frechet", "kid", "precision-recall"):
        with pytest.raises(UsageError, match=naming("inception", 1, 3, "(3,)")):
            evaluate(exact_model(), [f"{name}/inception"])
        with pytest.raises(UsageError, match=naming("efficientnet-lite0", 1, 3)):
            evaluate(exact_model(), [f"{name}/efficientnet-lite0"])
        with pytest.raises(UsageError, match=naming("samples", 2, 1)):
            evaluate(exact_model(), [f"{name}/classifier"], samples=1)
        assert "weights" in metric[f"{name}/inception"].facts.needs
    assert math.isinf(metric["frechet/classifier"].facts.bounds[1])


@pytest.mark.gpu
def test_features_on_a_gpu_give_the_same_distances():
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((300, 20)), rng.standard_normal((200, 20)) + 0.3
    for distance in (frechet, kernel_distance.kid):
        assert distance(torch.tensor(x).cuda(), y).value == pytest.approx(distance(x, y).value, rel=1e-9)
    there, here = (manifold.precision_recall(first, y) for first in (torch.tensor(x).cuda(), x))
    assert [score.value for score in there] == [score.value for score in here]
