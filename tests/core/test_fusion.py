"""Products and mixtures of experts against closed forms and an independent implementation (tests/oracles.md, row 6)."""

import itertools

import numpy as np
import pytest
import torch
from scipy.stats import norm

from unbraid.latents.fusion import mixture, mixture_of_products, product, subsets

M, D = 4, 3


@pytest.fixture
def experts():
    return torch.randn(M, D, dtype=torch.float64), torch.randn(M, D, dtype=torch.float64)


def by_hand(mean, log_variance, chosen, prior_expert):
    """One expert after the other, in numpy: N(m, v) times N(n, t) is N((m t + n v) / (v + t), v t / (v + t))."""
    made = (np.zeros(D), np.ones(D)) if prior_expert or not chosen else None
    for m in chosen:
        own = mean[m].numpy(), np.exp(log_variance[m].numpy())
        if made is not None:
            total = made[1] + own[1]
            own = (made[0] * own[1] + own[0] * made[1]) / total, made[1] * own[1] / total
        made = own
    return made


def row(chosen):
    return torch.tensor([m in chosen for m in range(M)])


@pytest.mark.parametrize("prior_expert", [True, False])
def test_product_of_every_subset_is_the_closed_form(experts, prior_expert):
    chosen = [each for count in range(M + 1) for each in itertools.combinations(range(M), count)]
    masks = torch.stack([row(each) for each in chosen])
    assert len(masks) == 2**M
    made = product(*experts, masks, prior_expert)
    for number, each in enumerate(chosen):
        mean, variance = by_hand(*experts, each, prior_expert)
        np.testing.assert_allclose(made.mean[number], mean, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(made.log_variance[number].exp(), variance, rtol=1e-12)


def test_one_expert_without_the_prior_is_itself_and_none_is_the_prior(experts):
    alone = product(*experts, row([2]), prior_expert=False)
    assert torch.equal(alone.mean, experts[0][2])
    assert torch.equal(alone.log_variance, experts[1][2])
    for prior_expert in (True, False):
        nothing = product(*experts, row([]), prior_expert)
        assert torch.equal(nothing.mean, torch.zeros(D, dtype=torch.float64))
        assert torch.equal(nothing.log_variance, torch.zeros(D, dtype=torch.float64))


def test_a_product_stays_finite_where_variances_cannot_be_inverted():
    mean, log_variance = torch.tensor([[1.0], [2.0]]), torch.tensor([[-120.0], [-120.0]]).requires_grad_()
    made = product(mean, log_variance, torch.tensor([True, True]))
    assert made.mean.item() == pytest.approx(1.5)
    made.log_variance.sum().backward()
    assert torch.isfinite(log_variance.grad).all()


def densities(mean, log_variance, chosen, value):
    components = [by_hand(mean, log_variance, each, True) for each in chosen]
    return np.log(np.mean([norm(m, np.sqrt(v)).pdf(value).prod(-1) for m, v in components], axis=0))


@pytest.mark.parametrize("there", [(0, 1, 2, 3), (0, 2), (3,), ()])
def test_mixtures_have_the_density_of_their_components_by_a_loop(experts, there):
    value = torch.randn(5, D, dtype=torch.float64)
    moe = mixture(*experts, row(there)).log_density(value)
    alone = [norm(experts[0][m].numpy(), (0.5 * experts[1][m]).exp().numpy()) for m in there] or [norm(0, np.ones(D))]
    np.testing.assert_allclose(moe, np.log(np.mean([n.pdf(value).prod(-1) for n in alone], 0)), rtol=1e-10)
    every = [each for count in range(1, len(there) + 1) for each in itertools.combinations(there, count)] or [()]
    mopoe = mixture_of_products(*experts, row(there)).log_density(value)
    np.testing.assert_allclose(mopoe, densities(*experts, every, value), rtol=1e-10)


def test_mixtures_draw_and_average_what_is_there(experts):
    made = mixture(*experts, row([1, 3]))
    grid = (torch.arange(1000) + 0.5) / 1000
    picked = made._replace(
        mean=made.mean.expand(1000, -1, -1),
        log_variance=made.log_variance.expand(1000, -1, -1),
        log_weight=made.log_weight.expand(1000, -1),
    ).choose(grid)
    for m, half in ((1, picked.mean[:500]), (3, picked.mean[500:])):
        assert torch.equal(half, experts[0][m].expand(500, -1))
    draws = picked.mean + (0.5 * picked.log_variance).exp() * torch.zeros(1000, D)
    moments = made.moments()
    torch.testing.assert_close(moments.mean, draws.mean(0))
    within = experts[1][[1, 3]].exp().mean(0)
    torch.testing.assert_close(moments.log_variance.exp(), within + draws.var(0, correction=0))


@pytest.mark.parametrize("fuse", ["product", "product without prior", "mixture", "mixture of products"])
@pytest.mark.parametrize("there", [(1, 2), ()])
def test_what_is_masked_has_no_influence_in_value_or_gradient(experts, fuse, there):
    def value(mean, log_variance):
        mask, at = row(there), torch.full((D,), 0.3, dtype=torch.float64)
        if fuse.startswith("product"):
            made = product(mean, log_variance, mask, fuse == "product")
            return made.mean.sum() + made.log_variance.square().sum()
        made = (mixture if fuse == "mixture" else mixture_of_products)(mean, log_variance, mask)
        picked = made.choose(torch.tensor(0.7))
        return made.log_density(at) + made.moments().mean.sum() + picked.mean.sum() + picked.log_variance.sum()

    garbage = [torch.where(row(there)[:, None], e, torch.full_like(e, 1e30)).requires_grad_() for e in experts]
    clean = [e.clone().requires_grad_() for e in experts]
    made, expected = value(*garbage), value(*clean)
    assert torch.equal(made, expected)
    for tensors, total in ((garbage, made), (clean, expected)):
        for grad in torch.autograd.grad(total, tensors, allow_unused=True, materialize_grads=True):
            assert torch.isfinite(grad).all()
            assert bool((grad[~row(there)] == 0).all())
            assert bool((grad[row(there)] != 0).any()) == bool(there)


def test_subsets_are_all_but_the_empty_one():
    assert subsets(3).tolist() == [[bool(n >> m & 1) for m in range(3)] for n in range(1, 8)]
