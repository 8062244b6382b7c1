"""Coupling flows: inverses, determinants and densities against autograd and numerical integrals."""

import pytest
import torch
from torch.func import functional_call, jacrev, stack_module_state, vmap

from unbraid.errors import UsageError
from unbraid.networks.coupling_flow import LAST_LAYER_FACTOR, CouplingFlow, _first_part, flow


def stretched(shape=(1, 2, 3), seed=0, **given) -> CouplingFlow:
    """A flow that is far from the identity."""
    torch.manual_seed(seed)
    made = CouplingFlow(4, shape, **{"hidden": (16, 16), "couplings": 5, **given}).double()
    with torch.no_grad():
        for coupling in made.couplings:
            for parameter in coupling.rest[-1].parameters():
                parameter.mul_((4 if made.layers == "affine" else 1) / LAST_LAYER_FACTOR)
    return made


def draws(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


KINDS = [{}, {"parts": "half"}, {"layers": "spline"}]


@pytest.mark.parametrize("given", KINDS)
def test_inverse_leads_back_and_the_determinant_is_that_of_the_jacobian(given):
    made, x, h = stretched(**given), draws(7, 6), draws(7, 4, seed=2)
    base, log_det = made(x, h)
    assert bool(((base - x).abs() > 0.2).any())
    torch.testing.assert_close(made.inverse(base, h), x, rtol=1e-9, atol=1e-9)
    jacobian = vmap(jacrev(lambda one, given: made(one, given)[0]))(x, h)
    torch.testing.assert_close(log_det, torch.linalg.slogdet(jacobian).logabsdet)


@pytest.mark.parametrize("given", KINDS)
def test_a_density_of_two_values_integrates_to_one(given):
    made, h = stretched((2,), **given), draws(4)
    reach = 6 if given.get("layers") == "spline" else 15  # splines end at 5
    places = torch.linspace(-reach, reach, 401, dtype=torch.float64)
    grid = torch.cartesian_prod(places, places)
    with torch.no_grad():
        mass = made.log_density(grid, h).exp().sum() * (reach / 200) ** 2
    assert float(mass) == pytest.approx(1, abs=3e-3)


@pytest.mark.parametrize("given", KINDS)
def test_every_row_under_every_condition_and_members_in_one_call(given):
    first, second = stretched(**given), stretched(seed=5, **given)
    x, h = draws(2, 5, 6), draws(2, 3, 4, seed=2)
    parameters, buffers = stack_module_state([first, second])
    call = vmap(lambda p, b, x, h: functional_call(first, (p, b), (x, h)))
    base, log_det = call(parameters, buffers, x.unsqueeze(2), h)
    assert base.shape == (2, 5, 3, 6)
    for m, own in enumerate((first, second)):
        for c in range(3):
            expected = own(x[m], h[m, c])
            torch.testing.assert_close((base[m, :, c], log_det[m, :, c]), expected)


def test_parts_of_images_and_vectors():
    assert _first_part((1, 2, 3), "checkerboard").tolist() == [True, False, True, False, True, False]
    assert _first_part((1, 2, 2), "checkerboard").tolist() == [True, False, False, True]
    assert _first_part((2, 2, 2), "checkerboard").tolist() == [True, False, False, True] * 2
    assert _first_part((3,), "checkerboard").tolist() == [True, False, True]
    assert _first_part((3,), "half").tolist() == [True, True, False]


def test_a_new_flow_is_close_to_the_identity_and_all_of_it_learns():
    torch.manual_seed(0)
    made = flow["coupling"].make(3, (1, 4, 4), hidden=(32,))
    x, h = torch.randn(20, 16), torch.randn(20, 3)
    base, log_det = made(x, h)
    assert bool(((base - x).abs() < 0.5).all())
    assert bool((log_det.abs() < 3).all())
    made.log_density(x, h).sum().backward()
    assert all(p.grad is not None and bool((p.grad != 0).any()) for p in made.parameters())


@pytest.mark.parametrize("given", [{"shape": (1,)}, {"couplings": 1}, {"hidden": ()}, {"bins": 1}])
def test_what_is_no_flow_is_refused(given):
    with pytest.raises(UsageError, match="coupling"):
        flow["coupling"].make(**{"shape": (4,), "condition": 2, **given})
