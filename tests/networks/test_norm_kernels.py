"""Fused normalisation against its formula in float64: values, gradients, statistics, and members in a stack."""

import importlib

import pytest
import torch
from torch import Tensor
from torch.func import vmap

from unbraid.networks.norm_blocks import Groups

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
EPSILON = 1e-5
SHAPES = {
    "held by a program": (2, 3, 5, 4, 4),
    "held, with rows and channels to spare": (2, 2, 40, 5, 7),
    "in chunks": (1, 2, 6, 41, 50),
    "in chunks of two tiles of channels": (1, 1, 70, 17, 17),
}
"""Maps [member, batch, channel, row, column]."""


@pytest.fixture(scope="module")
def ops():
    """The operators; without a GPU, Triton's interpreter runs their kernels, which is decided at import."""
    pytest.importorskip("triton")
    return importlib.import_module("unbraid.networks.norm_ops")


def draw(shape, per_image, dtype=torch.float32):
    """Maps, scale and shift, as leaves."""
    of_group = shape[:3] if per_image else (shape[0], shape[2])
    given = (
        torch.randn(shape, device=DEVICE).to(dtype),
        *(torch.randn(of_group, device=DEVICE) for _ in range(2)),
    )
    return [tensor.requires_grad_() for tensor in given]


def reference(x: Tensor, scale: Tensor, shift: Tensor, relu: bool) -> tuple[Tensor, Tensor]:
    """The formula in float64: the result, and mean and variance."""
    per_image = x.ndim - scale.ndim == 2
    dims = (-2, -1) if per_image else (-4, -2, -1)
    x, scale, shift = x.double(), scale.double(), shift.double()
    factor, term = (t[..., None, None] if per_image else t[..., None, :, None, None] for t in (scale, shift))
    mean, variance = x.mean(dims, keepdim=True), x.var(dims, correction=0, keepdim=True)
    out = factor * (x - mean) / (variance + EPSILON).sqrt() + term
    return out.relu() if relu else out, torch.stack([mean.view(scale.shape), variance.view(scale.shape)], -2)


def distance(made: Tensor, expected: Tensor) -> float:
    made, expected = made.detach().double(), expected.detach().double()
    return float((made - expected).norm() / expected.norm())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("per_image", [True, False])
@pytest.mark.parametrize("name", SHAPES)
def test_values_and_gradients_are_those_of_the_formula(ops, name, per_image, relu, dtype):
    given = draw(SHAPES[name], per_image, dtype)
    out, moments = ops.normalise(*given, EPSILON, relu, dtype)
    expected, expected_moments = reference(*given, relu)
    assert out.dtype == dtype and not moments.requires_grad
    assert out.movedim(-3, -1).is_contiguous()
    slopes = torch.randn(out.shape, device=DEVICE).to(dtype)
    made = torch.autograd.grad(out, given, slopes)
    wanted = torch.autograd.grad(expected, given, slopes.double())
    # the interpreter cuts a bfloat16 off where a GPU rounds it
    results, sums = ((out, made[0]), (expected, wanted[0])), ((moments, *made[1:]), (expected_moments, *wanted[1:]))
    assert max(map(distance, *results)) < (1e-6 if dtype == torch.float32 else 6e-3)
    assert max(map(distance, *sums)) < 2e-6


def test_groups_are_held_or_cut_into_chunks():
    assert [Groups((shape[0], shape[1], *shape[3:], shape[2]), True).whole for shape in SHAPES.values()] == [
        True,
        True,
        False,
        False,
    ]
    for rows in (300, 1000, 4096, 70_000):
        groups = Groups((1, rows, 1, 1, 64), per_image=False)
        assert not groups.whole and (groups.chunks - 1) * groups.chunk < rows <= groups.chunks * groups.chunk
        assert groups.chunks <= 128


@pytest.mark.parametrize("per_image", [True, False])
@pytest.mark.parametrize("shape", [(3, 2, 5, 4, 4), (3, 1, 6, 37, 40)], ids=str)
def test_members_of_a_stack_are_single_ones_bit_for_bit(ops, shape, per_image):
    given = draw(shape, per_image)

    def run(x, scale, shift):
        return ops.normalise(x, scale, shift, EPSILON, True, torch.float32)

    out, moments = vmap(run)(*given)
    slopes = torch.randn_like(out)
    made = [out, moments, *torch.autograd.grad(out, given, slopes)]
    for member in range(shape[0]):
        own = [tensor[member].detach().requires_grad_() for tensor in given]
        alone, statistics = run(*own)
        expected = [alone, statistics, *torch.autograd.grad(alone, own, slopes[member])]
        assert all(torch.equal(mine[member], wanted) for mine, wanted in zip(made, expected, strict=True))


def test_vmap_inside_vmap_and_shared_maps(ops):
    x, scale, shift = draw((2, 3, 5, 4, 4), per_image=False)

    def run(x, scale, shift):
        return ops.normalise(x, scale, shift, EPSILON, False, torch.float32)[0]

    expected = vmap(run)(x, scale, shift)
    twice = vmap(vmap(run))(x[None], scale[None], shift[None])
    assert torch.equal(twice[0], expected)
    shared = vmap(run, in_dims=(None, 0, 0))(x[0], scale, shift)
    assert torch.equal(shared[1], run(x[0], scale[1], shift[1]))


@pytest.mark.parametrize("shape", [(1, 2, 6, 5, 5), (1, 2, 6, 41, 50)], ids=str)
def test_constant_maps_have_no_variance(ops, shape):
    x, scale, shift = draw(shape, per_image=True)
    x = (0 * x + 3.1).detach().requires_grad_()
    out, moments = ops.normalise(x, scale, shift, EPSILON, False, torch.float32)
    assert not moments[..., 1, :].any()
    assert torch.equal(out, shift[..., None, None].expand_as(out))
    slopes = torch.randn_like(out)
    made = torch.autograd.grad(out, x, slopes)[0]
    wanted = torch.autograd.grad(reference(x, scale, shift, False)[0], x, slopes.double())[0]
    assert distance(made, wanted) < 1e-5


@pytest.mark.parametrize("shape", [(1, 2, 6, 9, 9), (1, 2, 6, 41, 50)], ids=str)
@pytest.mark.parametrize("per_image", [True, False])
def test_a_small_variance_beside_a_large_mean_keeps_its_digits(ops, shape, per_image):
    """The mean of the squares minus the square of the mean would be off by several hundred times this variance."""
    x, scale, shift = draw(shape, per_image)
    x = (1000 + 0.01 * x).detach()
    out, moments = ops.normalise(x, scale, shift, EPSILON, False, torch.float32)
    expected, (mean, variance) = reference(x, scale, shift, False)[0], reference(x, scale, shift, False)[1].unbind(-2)
    torch.testing.assert_close(moments[..., 0, :].double(), mean, rtol=1e-7, atol=0)
    torch.testing.assert_close(moments[..., 1, :].double(), variance, rtol=1e-3, atol=0)
    assert distance(out, expected) < 1e-2  # a mean in float32 has an error of 3e-5, and a deviation is 1e-2


@pytest.mark.parametrize("per_image", [True, False])
@pytest.mark.parametrize("relu", [False, True])
def test_second_derivatives(ops, per_image, relu):
    """Penalties on gradients differentiate twice."""
    given = draw((2, 3, 4, 3, 3), per_image)

    def penalty(out: Tensor) -> list[Tensor]:
        slopes = torch.autograd.grad(out.pow(3).sum(), given, create_graph=True)  # a normal map has one sum of squares
        return list(torch.autograd.grad(sum(slope.square().sum() for slope in slopes), given))

    made = penalty(ops.normalise(*given, EPSILON, relu, torch.float32)[0])
    assert max(map(distance, made, penalty(reference(*given, relu)[0]))) < 1e-5


@pytest.mark.parametrize("per_image", [True, False])
def test_operators_are_registered_as_torch_wants(ops, per_image):
    x, scale, shift = (tensor[0].detach().requires_grad_() for tensor in draw((1, 3, 4, 3, 3), per_image))
    tests = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(ops.normalise.call, (x, scale, shift, EPSILON, True, torch.float32), test_utils=tests)
    _, moments = ops.normalise(x, scale, shift, EPSILON, True, torch.float32)
    given = (torch.randn_like(x), x, moments, scale, shift, EPSILON, True)
    torch.library.opcheck(ops.normalise_backward.call, given, test_utils=tests)
