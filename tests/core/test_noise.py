"""Random numbers by address: the same everywhere, and as random as they claim."""

import numpy as np
import pytest
import torch
from scipy import stats

from unbraid import noise


def test_normal_and_uniform_have_their_distributions():
    seeds = noise.seed_tensor(0, 1)
    normal = noise.normal(seeds, 7, "z", (50_000,)).numpy()
    uniform = noise.uniform(seeds, 7, "u", (50_000,)).numpy()
    for member in range(2):
        assert stats.kstest(normal[member], "norm").pvalue > 1e-3
        assert stats.kstest(uniform[member], "uniform").pvalue > 1e-3
    assert uniform.min() > 0
    assert uniform.max() < 1


def test_streams_of_seed_step_and_name_are_uncorrelated():
    draws = [
        noise.normal(noise.seed_tensor(seed), step, name, (20_000,))[0].numpy()
        for seed in (0, 1, 2)
        for step in (0, 1, 1000)
        for name in ("z", "c")
    ]
    correlation = np.corrcoef(draws) - np.eye(len(draws))
    assert np.abs(correlation).max() < 4.5 / np.sqrt(20_000)
    lagged = [np.corrcoef(d[:-lag], d[lag:])[0, 1] for d in draws for lag in (1, 2, 10)]
    assert np.abs(lagged).max() < 4.5 / np.sqrt(20_000)


def test_every_bit_is_fair():
    bits = noise.bits(noise.seed_tensor(3), 5, "bits", (20_000,))[0].numpy()
    ones = [((bits >> k) & 1).mean() for k in range(64)]
    assert np.abs(np.array(ones) - 0.5).max() < 5 * 0.5 / np.sqrt(20_000)


def test_a_member_sees_what_it_would_see_alone():
    together = noise.normal(noise.seed_tensor(4, 9), 3, "z", (5, 2))
    assert torch.equal(together[1:], noise.normal(noise.seed_tensor(9), 3, "z", (5, 2)))


def test_step_may_be_a_tensor():
    seeds = noise.seed_tensor(0)
    assert torch.equal(noise.normal(seeds, 3, "z", (4,)), noise.normal(seeds, torch.tensor(3), "z", (4,)))


def test_numbers_are_pinned():
    """Old runs resume only as long as these never change."""
    first = noise.bits(noise.seed_tensor(0), 0, "z", (2,))[0].tolist()
    assert first == PINNED


def test_permutations_hold_every_index_and_are_uniform():
    order = noise.permutation(noise.seed_tensor(*range(3000)), 2, 5)
    assert torch.equal(order.sort(dim=-1).values, torch.arange(5).expand(3000, 5))
    counts = torch.stack([torch.bincount(order[:, place], minlength=5) for place in range(5)])
    assert stats.chisquare(counts.flatten().numpy()).pvalue > 1e-3
    assert not torch.equal(order, noise.permutation(noise.seed_tensor(*range(3000)), 3, 5))


def test_draw_makes_every_need():
    needs = {"z": noise.Need("normal", (4, 2)), "u": noise.Need("uniform", (3,))}
    drawn = noise.draw(needs, noise.seed_tensor(0, 1), 0)
    assert {name: tuple(t.shape) for name, t in drawn.items()} == {"z": (2, 4, 2), "u": (2, 3)}


PINNED = [3185953182160506287, -8520878564731383711]


def test_kernels_draw_the_same_numbers():
    """The interpreter of Triton, or a GPU, against torch's operations."""
    kernel = pytest.importorskip("unbraid.noise_kernel")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    seeds, steps = noise.seed_tensor(3, 4, 5), torch.tensor([7, 8, 2**40])
    name = noise.hash_name("pixels")
    for given, step in ((seeds, steps), (seeds[:1].expand(3), steps), (seeds, steps[1])):
        found = kernel.hash_bits(given.to(device), step.to(device), name, 700).cpu()
        assert torch.equal(found, noise.bits(given, step, "pixels", (700,)))
    uniform = kernel.hash_noise(seeds.to(device), steps[0].to(device), name, name, 700, kernel.UNIFORM).cpu()
    assert torch.equal(uniform, noise.uniform(seeds, 7, "pixels", (700,)))
