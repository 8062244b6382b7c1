"""DIP-VAE's penalties against covariances by numpy."""

import numpy as np
import pytest
import torch

from tests.methods.helpers import bound, made_context, made_output, normal_space
from tests.support.messages import naming
from unbraid.errors import UsageError
from unbraid.latents import Concrete, Normal, Space
from unbraid.methods import dip_vae
from unbraid.objectives import bind

WEIGHTS = {"lambda_od": torch.tensor([10.0, 3.0]), "lambda_d": 7.0}


def penalties(matrix):
    diagonal = np.diag(matrix)
    return (matrix**2).sum() - (diagonal**2).sum(), ((diagonal - 1) ** 2).sum()


def covariance_of(posterior, second):
    """Cov[mu], and for II the covariance of the batch's mixture of normals, by the mixture's own definition."""
    mean, variance = posterior.chunk(2, -1)
    mean, variance = mean.numpy(), variance.exp().numpy()
    if not second:
        return np.cov(mean.T, bias=True)
    moment = np.mean([np.outer(m, m) + np.diag(v) for m, v in zip(mean, variance, strict=True)], 0)
    return moment - np.outer(mean.mean(0), mean.mean(0))


@pytest.mark.parametrize("name", ["dip-vae-i", "dip-vae-ii"])
def test_terms_equal_numpy_covariances(name):
    space = normal_space(3)
    out, batch = made_output(space)
    terms = bind(name, WEIGHTS).terms(out, batch, made_context(space))
    expected = [penalties(covariance_of(each, name.endswith("ii"))) for each in out.posterior["z"]]
    off, diagonal = (torch.tensor(column) for column in zip(*expected, strict=True))
    likelihood, kl = bound(out, batch)
    torch.testing.assert_close(terms["off_diagonal"].value, off)
    torch.testing.assert_close(terms["diagonal"].value, diagonal)
    total = likelihood + kl + WEIGHTS["lambda_od"] * off + WEIGHTS["lambda_d"] * diagonal
    torch.testing.assert_close(terms.loss, total)


def test_the_variance_is_averaged_before_it_enters_the_diagonal():
    """Means 0 and variances .5 and 1.5: their mean is 1, so there is nothing to penalise; each row alone would be."""
    space = normal_space(2)
    log_variance = torch.tensor([[0.5, 1.5], [1.5, 0.5]], dtype=torch.float64).log()
    posterior = {"z": torch.cat([torch.zeros(2, 2, dtype=torch.float64), log_variance], -1)[None]}
    out, batch = made_output(space, members=1, rows=2, posterior=posterior)
    context = made_context(space, members=1, rows=2)
    second, first = (bind(name, {}).terms(out, batch, context) for name in ("dip-vae-ii", "dip-vae-i"))
    torch.testing.assert_close(second["diagonal"].value, torch.zeros(1, dtype=torch.float64))
    torch.testing.assert_close(second["off_diagonal"].value, torch.zeros(1, dtype=torch.float64))
    torch.testing.assert_close(first["diagonal"].value, torch.full((1,), 2.0, dtype=torch.float64))


def test_variances_do_not_reach_the_off_diagonal():
    """Adding the mean variance to every entry, as broadcasting [d] to [d, d] does, would change it."""
    space = normal_space(3)
    out, batch = made_output(space)
    first, second = (bind(n, {}).terms(out, batch, made_context(space)) for n in ("dip-vae-i", "dip-vae-ii"))
    torch.testing.assert_close(first["off_diagonal"].value, second["off_diagonal"].value)
    assert not torch.allclose(first["diagonal"].value, second["diagonal"].value)


def test_codes_of_the_prior_are_not_penalised():
    """Samples of N(0, 1) with hardly any noise left: both penalties vanish as the batch grows."""
    codes = torch.randn(1, 40_000, 3, dtype=torch.float64)
    off, diagonal = penalties(dip_vae.covariance(codes)[0].numpy())
    assert off < 1e-3
    assert diagonal < 1e-3


def test_several_normal_blocks_are_one_covariance():
    whole, split = normal_space(3), Space({"a": Normal(size=1), "b": Normal(size=2)})
    out, batch = made_output(whole)
    mean, log_variance = out.posterior["z"].chunk(2, -1)
    parts = {"a": (mean[..., :1], log_variance[..., :1]), "b": (mean[..., 1:], log_variance[..., 1:])}
    posterior = {name: torch.cat(pair, -1) for name, pair in parts.items()}
    apart, _ = made_output(split, posterior=posterior)
    expected = bind("dip-vae-ii", {}).terms(out, batch, made_context(whole))
    made = bind("dip-vae-ii", {}).terms(apart, batch, made_context(split))
    torch.testing.assert_close(made.loss, expected.loss)


def test_discrete_latents_are_refused():
    space = Space({"z": Normal(size=2), "c": Concrete(classes=3)})
    out, batch = made_output(space)
    with pytest.raises(UsageError, match=naming("c")):
        bind("dip-vae-i", {}).terms(out, batch, made_context(space))


def test_one_row_has_no_covariance():
    space = normal_space(2)
    out, batch = made_output(space, posterior={"z": torch.zeros(1, 1, 4)})
    with pytest.raises(UsageError, match=naming("rows", 2)):
        bind("dip-vae-i", {}).terms(out, batch, made_context(space))
