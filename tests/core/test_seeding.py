"""Draws from an own generator are those of torch's global one, and leave that alone."""

from contextlib import contextmanager

import torch
from torch import nn

from unbraid.seeding import seeded


@contextmanager
def globally_seeded(seed):
    """The same by the global generator, which other threads share."""
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(seed)
        yield


def draw_everything():
    modules = [
        nn.Linear(7, 5),
        nn.Conv2d(3, 8, 3),
        nn.ConvTranspose2d(3, 4, 4),
        nn.Embedding(9, 3),
        nn.GRU(4, 4),
        nn.MultiheadAttention(8, 2),
        nn.utils.parametrizations.spectral_norm(nn.Linear(4, 5)),
    ]
    drawn = [tensor.detach().clone() for module in modules for tensor in module.state_dict().values()]
    half, empty = torch.full((9,), 0.5), torch.empty
    drawn += [torch.randn(5), torch.rand(3, 3), torch.randperm(17), torch.randint(9, (20,)), torch.randint(2, 9, (20,))]
    drawn += [torch.randn_like(half), torch.rand_like(half), torch.bernoulli(half), torch.multinomial(half, 4)]
    drawn += [
        torch.normal(0.0, 1.0, (3,)),
        torch.normal(half, 1.0),
        torch.poisson(half),
        torch.binomial(9 * half, half),
    ]
    drawn += [empty(4).exponential_(), empty(4).log_normal_(), empty(4).bernoulli_(0.3), empty(4).random_()]
    drawn += [nn.functional.dropout(half, 0.5), torch.rrelu(-half, training=True), torch._sample_dirichlet(half)]
    drawn += [nn.init.orthogonal_(empty(6, 4)), nn.init.trunc_normal_(empty(6, 4)), nn.init.sparse_(empty(6, 4), 0.3)]
    return drawn


def test_the_draws_are_those_of_the_global_generator():
    with globally_seeded(3):
        expected = draw_everything()
    before = torch.get_rng_state()
    with seeded(3):
        found = draw_everything()
    assert torch.equal(torch.get_rng_state(), before)
    assert len(found) == len(expected)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def test_an_own_generator_stays_its_own():
    with seeded(3):
        drawn = torch.rand(4, generator=torch.Generator().manual_seed(8))
    assert torch.equal(drawn, torch.rand(4, generator=torch.Generator().manual_seed(8)))


def test_blocks_nest():
    with seeded(1):
        first = torch.rand(2)
        with seeded(2):
            inner = torch.rand(2)
        second = torch.rand(2)
    with seeded(1):
        assert torch.equal(torch.rand(4), torch.cat([first, second]))
    with seeded(2):
        assert torch.equal(torch.rand(2), inner)
