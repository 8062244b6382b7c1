"""Discrepancies against a double loop, equal distributions and a closed form."""

import math

import pytest
import torch

from tests.methods.helpers import bound, made_context, made_output, normal_space
from tests.support.messages import naming
from unbraid.errors import UsageError
from unbraid.latents import Concrete, Normal, Space
from unbraid.methods.info_vae import squared_mmd
from unbraid.objectives import bind

KERNELS = ["imq", "gaussian"]


def slow(first, second, kernel, bandwidth):
    """E k(z, z') + E k(y, y') - 2 E k(z, y), one pair at a time."""

    def k(a, b):
        ratio = sum((float(p) - float(q)) ** 2 for p, q in zip(a, b, strict=True)) / (2 * len(a) * bandwidth)
        return math.exp(-ratio) if kernel == "gaussian" else 1 / (1 + ratio)

    def mean(numbers):
        numbers = list(numbers)
        return sum(numbers) / len(numbers)

    inside = [mean(k(a, b) for i, a in enumerate(s) for j, b in enumerate(s) if i != j) for s in (first, second)]
    return sum(inside) - 2 * mean(k(a, b) for a in first for b in second)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("bandwidth", [1.0, 0.3])
def test_members_equal_a_double_loop(kernel, bandwidth):
    first, second = torch.randn(2, 3, 7, 4, dtype=torch.float64)
    made = squared_mmd(first, 0.5 * second + 1, kernel, bandwidth)
    assert made.shape == (3,)
    for m in range(3):
        assert float(made[m]) == pytest.approx(slow(first[m], 0.5 * second[m] + 1, kernel, bandwidth), abs=1e-12)


@pytest.mark.parametrize("kernel", KERNELS)
def test_equal_distributions_have_none_on_average(kernel):
    """Unbiased: the mean over many small batches is 0, where keeping pairs of a row with itself would give 2 / B."""
    first, second = torch.randn(2, 4000, 8, 3, dtype=torch.float64)
    values = squared_mmd(first, second, kernel)
    error = float(values.std()) / math.sqrt(len(values))
    assert error < 0.002
    assert float(values.mean()) == pytest.approx(0.0, abs=4 * error)
    assert bool((values < 0).any())


def test_gaussian_kernel_on_normals_equals_the_closed_form():
    """E exp(-(x - y)^2 / (2 b)) = sqrt(b / (b + v)) exp(-m^2 / (2 (b + v))) for x - y ~ N(m, v), in one dimension."""
    shift, scale = 1.5, 0.5

    def expected(mean, variance):
        return math.sqrt(1 / (1 + variance)) * math.exp(-(mean**2) / (2 * (1 + variance)))

    truth = expected(0, 2 * scale**2) + expected(0, 2) - 2 * expected(shift, 1 + scale**2)
    first, second = torch.randn(2, 400, 64, 1, dtype=torch.float64)
    values = squared_mmd(scale * first + shift, second, "gaussian")
    error = float(values.std()) / math.sqrt(len(values))
    assert float(values.mean()) == pytest.approx(truth, abs=4 * error)
    assert error < 0.01 * truth


@pytest.mark.parametrize("kernel", KERNELS)
def test_gradients_agree_with_finite_differences(kernel):
    first, second = torch.randn(2, 5, 2, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda z: squared_mmd(z, second, kernel), (first.requires_grad_(),))


def test_terms_and_weights():
    space, settings = normal_space(3), {"alpha": torch.tensor([0.25, 0.5]), "lambda_mmd": 20.0, "kernel": "gaussian"}
    objective = bind("info-vae", settings)
    out, batch = made_output(space)
    context = made_context(space, objective)
    terms = objective.players()[0].loss(out, batch, context)
    (drawn,) = context.noise.values()
    apart = torch.tensor([slow(z, y, "gaussian", 1.0) for z, y in zip(out.sample["z"], drawn, strict=True)])
    likelihood, kl = bound(out, batch)
    alpha = settings["alpha"].double()
    torch.testing.assert_close(terms["mmd"].value, apart.double())
    torch.testing.assert_close(terms.loss, likelihood + (1 - alpha) * kl + (alpha + 19) * apart)


def test_discrete_blocks_are_compared_by_their_codes():
    space, objective = Space({"z": Normal(size=2), "c": Concrete(classes=3)}), bind("info-vae", {})
    out, batch = made_output(space)
    terms = objective.players()[0].loss(out, batch, made_context(space, objective))
    assert terms.loss.shape == (2,)
    assert bool(terms.loss.isfinite().all())


def test_bad_input_is_refused():
    with pytest.raises(UsageError, match=naming("bandwidth", 0)):
        bind("info-vae", {"bandwidth": 0.0})
    with pytest.raises(UsageError, match=r"\b2\b"):
        bind("info-vae", {}).needs(1, normal_space(2))
