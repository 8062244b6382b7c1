"""The tiles of a CPU where they differ from the kernels of a GPU; `test_fused_estimator.py` tests what both do."""

import pytest
import torch
from torch.autograd import forward_ad

from tests.support.posteriors import drawn
from unbraid.density import batch_aggregate, estimators, exact_aggregate, weighting
from unbraid.latents import Normal, Space


def test_a_cpu_takes_tiles_for_float32_and_enough_pairs():
    space = Space({"z": Normal(size=10)})
    takes = {(rows, dtype): estimators.can_fuse(space, [torch.zeros(rows, width, dtype=dtype) for width in (20, 10)])
             for rows in (64, 512) for dtype in (torch.float32, torch.float64)}  # fmt: skip
    assert [key for key, taken in takes.items() if taken] == [(512, torch.float32)]


@pytest.mark.parametrize("estimator", ["mws", "mss", "stratified"])
def test_gradients_of_tiles_agree_with_finite_differences(monkeypatch, estimator):
    from unbraid.density import tiled_estimator as tiled

    monkeypatch.setattr(tiled, "PAIRS_PER_THREAD", 8)
    parameters, z = (tensor.double().requires_grad_() for tensor in drawn((2,), 4, 3))
    weights = weighting(estimator, 4, 9)
    compute = lambda z, parameters: tiled.log_densities(z, parameters, [[0, 1, 2], [0, 2]], weights)  # noqa: E731
    assert torch.autograd.gradcheck(compute, (z, parameters))
    assert torch.autograd.gradgradcheck(compute, (z, parameters))
    shared = lambda values: tiled.log_densities(values, values @ torch.ones(3, 6).double(), [[0, 1]], weights)  # noqa: E731
    assert torch.autograd.gradgradcheck(shared, z)


@pytest.mark.parametrize("transform", ["jvp", "forward mode", "grad", "vmap", "by log p"])
def test_what_tiles_cannot_derive_is_derived_in_chunks(monkeypatch, transform):
    space = Space({"z": Normal(size=3)})
    parameters, z = drawn((), 6, 3)
    log_p = torch.linspace(-1, 1, 6).log_softmax(0)

    def compute(parameters):
        return exact_aggregate(
            space, {"z": parameters}, {"z": z.to(parameters.dtype)}, log_p.to(parameters)
        ).joint.sum()

    def derive(parameters):
        if transform == "jvp":
            return torch.func.jvp(compute, (parameters,), (torch.ones_like(parameters),))[1]
        if transform == "grad":
            return torch.func.grad(compute)(parameters)
        if transform == "vmap":
            return torch.func.vmap(compute)(torch.stack([parameters, -parameters]))
        if transform == "forward mode":
            with forward_ad.dual_level():
                dual = forward_ad.make_dual(parameters, torch.ones_like(parameters))
                return forward_ad.unpack_dual(compute(dual)).tangent
        learned = log_p.to(parameters).requires_grad_()
        density = exact_aggregate(space, {"z": parameters}, {"z": z.to(parameters)}, learned).joint.sum()
        return torch.autograd.grad(density, learned)[0]

    expected = derive(parameters.double())
    monkeypatch.setattr(estimators, "MIN_TILED_PAIRS", 0)
    torch.testing.assert_close(derive(parameters).double(), expected, rtol=1e-5, atol=1e-5)


def test_members_of_a_group_take_the_form_of_single_runs(monkeypatch):
    space = Space({"z": Normal(size=10)})
    parameters, z = drawn((8,), 64, 10)
    together = batch_aggregate(space, {"z": parameters}, {"z": z}, "mss", 1000).joint
    alone = [batch_aggregate(space, {"z": parameters[m]}, {"z": z[m]}, "mss", 1000).joint for m in range(8)]
    assert torch.equal(together, torch.stack(alone))


def test_samples_that_share_posteriors_need_no_copies_of_these(monkeypatch):
    from unbraid.density import tiled_estimator as tiled

    shapes = []
    tile = tiled.tile_densities
    monkeypatch.setattr(tiled, "tile_densities", lambda *inputs: shapes.append(inputs[1].shape) or tile(*inputs))
    monkeypatch.setattr(estimators, "MIN_TILED_PAIRS", 0)
    space = Space({"z": Normal(size=3)})
    parameters, z = drawn((), 9, 3)
    several = torch.stack([z[:4], z[3:7], z[5:9]])
    made = exact_aggregate(space, {"z": parameters}, {"z": several}).joint
    assert shapes == [(1, 9, 6)]
    expected = [exact_aggregate(space, {"z": parameters}, {"z": each}).joint for each in several]
    torch.testing.assert_close(made, torch.stack(expected))


def test_autocast_leaves_gradients_of_tiles_alone(monkeypatch):
    monkeypatch.setattr(estimators, "MIN_TILED_PAIRS", 0)
    space = Space({"z": Normal(size=10)})
    parameters, z = drawn((), 300, 10)
    z.requires_grad_()
    made = lambda: batch_aggregate(space, {"z": parameters}, {"z": z}, "mss", 1000).joint.sum()  # noqa: E731
    expected = torch.autograd.grad(made(), z)[0]
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(torch.autograd.grad(made(), z)[0], expected)


@pytest.mark.compiles
def test_the_operators_of_tiles_are_well_behaved():
    from unbraid.density import tiled_estimator as tiled

    parameters, z = (tensor.requires_grad_() for tensor in drawn((2,), 4, 2))
    settings = None, [3], list(weighting("mss", 4, 9))
    torch.library.opcheck(tiled.tile_densities.call, (z, parameters, *settings))
    with torch.no_grad():
        out = tiled.tile_densities(z, parameters, *settings)
        torch.library.opcheck(tiled.tile_densities_backward.call, (out, out, z, parameters, *settings))
