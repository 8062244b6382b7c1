"""Mixtures of Gaussians against closed forms and scikit-learn."""

import itertools

import numpy as np
import pytest
import torch
from sklearn.mixture import GaussianMixture

from tests.support.messages import naming
from unbraid.density import gaussian_mixture as module
from unbraid.density.gaussian_mixture import Mixture, fit_mixture, kmeans
from unbraid.errors import UsageError


def clouds(rows: int = 600, seed: int = 0) -> torch.Tensor:
    """Three clouds that overlap a little, in four dimensions."""
    drawn = torch.Generator().manual_seed(seed)
    centres = 1.5 * torch.randn(3, 4, generator=drawn, dtype=torch.float64)
    which = torch.randint(3, (rows,), generator=drawn)
    scale = torch.tensor([0.5, 1.0, 0.8], dtype=torch.float64)[which, None]
    return centres[which] + scale * torch.randn(rows, 4, generator=drawn, dtype=torch.float64)


def test_one_component_is_the_maximum_likelihood_gaussian():
    x = clouds()
    x[:, 3] = 0.25  # a pixel that is always the same
    fit = fit_mixture(x, 1, floor=1e-3)
    torch.testing.assert_close(fit.mixture.means[0], x.mean(0))
    variance = x.var(0, correction=0).clamp_min(1e-3)
    torch.testing.assert_close(fit.mixture.variances[0], variance)
    expected = torch.distributions.Normal(x.mean(0), variance.sqrt()).log_prob(x).sum(-1)
    torch.testing.assert_close(fit.mixture.log_density(x), expected)
    assert fit.log_likelihood[-1] == pytest.approx(float(expected.mean()))


def test_densities_and_the_fixed_point_are_those_of_scikit_learn():
    x = clouds()
    found = fit_mixture(x, 3, floor=1e-9, steps=500, tolerance=1e-13).mixture
    start = {"weights_init": found.log_weights.exp().numpy(), "means_init": found.means.numpy()}
    start["precisions_init"] = found.variances.reciprocal().numpy()
    peer = GaussianMixture(3, covariance_type="diag", reg_covar=0, tol=1e-12, max_iter=500, **start).fit(x.numpy())
    np.testing.assert_allclose(found.means, peer.means_, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(found.variances, peer.covariances_, rtol=1e-4)
    np.testing.assert_allclose(found.log_density(x), peer.score_samples(x.numpy()), rtol=1e-4)
    np.testing.assert_allclose(found.joint(x).softmax(-1), peer.predict_proba(x.numpy()), atol=1e-4)


def test_log_likelihood_never_falls_and_ends_where_scikit_learn_does(monkeypatch):
    x = clouds()
    x[:, 0] = x[:, 0].clamp(-0.1, 0.1)  # the floor is met
    whole = fit_mixture(x, 3, floor=5e-3, steps=60, tolerance=0.0)
    assert all(b >= a - 1e-12 for a, b in itertools.pairwise(whole.log_likelihood))
    assert bool((whole.mixture.variances >= 5e-3).all())
    y = clouds(seed=3)
    peer = GaussianMixture(3, covariance_type="diag", reg_covar=0, n_init=5, random_state=0, tol=1e-8, max_iter=500)
    best = peer.fit(y.numpy()).score(y.numpy())
    assert fit_mixture(y, 3, floor=1e-9, steps=500, tolerance=1e-9).log_likelihood[-1] == pytest.approx(best, abs=1e-3)
    monkeypatch.setattr(module, "NUMBERS_PER_PIECE", 4 * 70)  # rows in pieces give the same
    pieces = fit_mixture(x, 3, floor=5e-3, steps=60, tolerance=0.0)
    torch.testing.assert_close(pieces.mixture.means, whole.mixture.means)


def test_the_seed_alone_decides_and_clusters_are_found():
    x = clouds().float()
    first, again, other = (fit_mixture(x, 3, seed=seed).mixture for seed in (1, 1, 2))
    assert torch.equal(first.means, again.means)
    assert not torch.equal(first.means, other.means)
    far = torch.cat([torch.randn(50, 2) + 30 * k for k in range(4)])
    labels = kmeans(far, 4, seed=0).view(4, 50)
    assert bool((labels == labels[:, :1]).all())
    assert len(labels[:, 0].unique()) == 4


def test_moments_are_those_of_a_large_draw():
    mixture = Mixture(torch.tensor([0.3, 0.7]).log(), torch.tensor([[0.0, 1.0], [2.0, -1.0]]), torch.full((2, 2), 0.25))
    mean, variance = mixture.moments()
    torch.testing.assert_close(mean, torch.tensor([1.4, -0.4]))
    torch.testing.assert_close(variance, torch.tensor([0.25 + 0.21 * 4, 0.25 + 0.21 * 4]))


@pytest.mark.parametrize(
    ("rows", "given", "facts"),
    [(2, {}, [3, 2]), (9, {"floor": 0.0}, ["floor", 0]), (9, {"floor": float("nan")}, ["floor", "nan"])],
)
def test_what_cannot_be_fitted_is_refused(rows, given, facts):
    with pytest.raises(UsageError, match=naming(*facts)):
        fit_mixture(torch.zeros(rows, 3), 3, **given)
    with pytest.raises(UsageError, match="finite"):
        fit_mixture(torch.full((5, 3), torch.nan), 3)


def test_rows_that_are_all_the_same_are_no_trouble():
    mixture = fit_mixture(torch.zeros(9, 3), 3).mixture
    assert all(bool(part.isfinite().all()) for part in mixture)
    assert bool(mixture.log_density(torch.zeros(9, 3)).isfinite().all())
