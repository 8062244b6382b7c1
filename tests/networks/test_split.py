"""Encoders of split2020 against slow per-factor networks, hand counts, and which factor each parameter belongs to."""

import copy

import pytest
import torch
from torch import nn
from torch.func import functional_call, stack_module_state, vmap

from tests import contracts
from tests.support.messages import naming
from tests.support.networks import count
from unbraid.errors import UsageError
from unbraid.networks import encoder
from unbraid.networks.conv_as_matmul import ProductConv2d, use_matrix_products
from unbraid.networks.split import MAP_SIDE, grid_shape

SHAPE = (1, 64, 64)
NORMAL = {"z.mean": 10, "z.log_variance": 10}
MIXED = {"z.mean": 3, "z.log_variance": 3, "c.logits": 2}
OWNERS = [0, 1, 2, 0, 1, 2, 3, 4]
"""Which of MIXED's five coordinates each of its eight columns belongs to."""

TRUNK = (16 * 1 * 32 + 32) + (16 * 32 * 32 + 32) + (4 * 32 * 64 + 64)
PRIVATE = (4 * 64 * 64 + 64) + (64 * 16 * 256 + 256) + (256 * 2 + 2)


def make(name: str, outputs: dict[str, int], shape: tuple[int, ...] = SHAPE, **settings) -> nn.Module:
    return encoder[name].make(shape, outputs, **encoder[name].resolve(settings))


def small(name: str = "split", outputs: dict[str, int] = MIXED) -> nn.Module:
    return make(name, outputs, **({} if name == "shared" else {"width": 6, "hidden": 5})).double()


def images(*batch: int) -> torch.Tensor:
    return torch.rand(*batch, *SHAPE, dtype=torch.float64)


def tail(module: nn.Module, factor: int, head: nn.Module, row: int) -> nn.Sequential:
    """One factor's own network, made of torch's layers and the split encoder's weights."""
    width, hidden, out = module.width, module.hidden.bias.shape[1], head.bias.shape[1]
    layers = nn.Sequential(
        nn.Conv2d(64, width, 2, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(width * 16, hidden),
        nn.ReLU(),
        nn.Linear(hidden, out),
    ).double()
    own = slice(factor * width, (factor + 1) * width)
    matrix = module.hidden.weight[factor].T.unflatten(1, (4, 4, width))  # rows, columns, channels
    weights = [module.convolution.weight[own], module.convolution.bias[own]]
    weights += [matrix.permute(0, 3, 1, 2).flatten(1), module.hidden.bias[factor]]
    weights += [head.weight[row].T, head.bias[row]]
    with torch.no_grad():
        for parameter, weight in zip(layers.parameters(), weights, strict=True):
            parameter.copy_(weight)
    return layers


def test_split_equals_a_loop_over_factors():
    module, x = small(), images(3)
    features = module.trunk(x)
    z = [tail(module, j, module.heads[0], j)(features) for j in range(3)]
    c = [tail(module, 3 + j, module.heads[1], j)(features) for j in range(2)]
    expected = [*(out[:, 0] for out in z), *(out[:, 1] for out in z), *(out[:, 0] for out in c)]
    torch.testing.assert_close(module(x), torch.stack(expected, dim=1), rtol=1e-10, atol=1e-10)


def test_split_has_the_size_of_its_parts():
    assert count(make("split", NORMAL)) == TRUNK + 10 * PRIVATE == 2_818_836
    assert count(make("split", {"z.mean": 1, "z.log_variance": 1})) == count(
        make("conv-locatello", {"z.mean": 1, "z.log_variance": 1})
    )


def private(module: nn.Module, factor: int) -> list[torch.Tensor]:
    """Views of all parameters that belong to one factor of MIXED."""
    own = slice(factor * module.width, (factor + 1) * module.width)
    head, row = (module.heads[0], factor) if factor < 3 else (module.heads[1], factor - 3)
    last = [module.hidden.weight[factor], module.hidden.bias[factor], head.weight[row], head.bias[row]]
    return [module.convolution.weight[own], module.convolution.bias[own], *last]


@pytest.mark.parametrize("factor", range(5))
def test_private_weights_change_their_factor_alone(factor):
    module, x = small(), images(4)
    before = module(x).detach()
    for part in range(6):
        changed = copy.deepcopy(module)
        with torch.no_grad():
            private(changed, factor)[part].add_(0.1)
        moved = (changed(x) != before).any(0).tolist()
        assert moved == [owner == factor for owner in OWNERS]


def test_all_but_the_trunk_is_private():
    module = small()
    owned = sum(part.numel() for factor in range(5) for part in private(module, factor))
    assert owned + count(module.trunk) == count(module)


def test_shared_has_no_private_parameter():
    """Every single number of the last layer reaches all factors of its parameter, and every earlier layer does."""
    module, x = small("shared"), images(2)
    assert count(module) == TRUNK + 2 * (4 * 64 + 1)
    last, features = module.map[-2], torch.rand(2, 64, 8, 8, dtype=torch.float64)
    module.map = nn.Sequential(*module.map[-2:])

    def made(weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return functional_call(module, {"map.0.weight": weight, "map.0.bias": bias}, (features,))

    for slope in torch.func.jacrev(made, (0, 1))(last.weight, last.bias):
        reached = (slope.abs().amax(0) > 0).unsqueeze(-1).flatten(2)  # [column, channel, number]
        assert reached[[0, 1, 2, 6, 7], 0].all()
        assert reached[3:6, 1].all()
    module = small("shared")
    trunk = list(module.map[:-2].parameters())
    for column in range(len(OWNERS)):
        assert all(grad.abs().sum() > 0 for grad in torch.autograd.grad(module(x)[:, column].sum(), trunk))


def test_shared_is_the_pooled_map():
    module, x = make("shared", NORMAL), torch.rand(3, *SHAPE)
    pooled = nn.functional.adaptive_avg_pool2d(module.map[:-1](x), (2, 5))
    torch.testing.assert_close(module(x), pooled.flatten(1))


def test_shared_positions_are_independent():
    """Enough positions, inside the map, none a linear combination of others, for every number that fits."""
    for factors in range(1, MAP_SIDE**2 + 1):
        rows, columns = grid_shape(factors)
        assert max(rows, columns) <= MAP_SIDE
        assert factors <= rows * columns < factors + rows
        assert torch.linalg.matrix_rank(make("shared", {"z.mean": factors}).pooling) == factors


def test_shared_positions_of_the_paper():
    grids = {10: (2, 5), 12: (3, 4), 16: (4, 4), 7: (1, 7), 11: (4, 3)}
    assert {n: grid_shape(n) for n in grids} == grids
    with pytest.raises(UsageError, match=naming("shared", "7x7", 50)):
        make("shared", {"z.mean": 50})


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("settings", [{}, {"width": 16, "hidden": 64}])
@pytest.mark.parametrize("factors", [1, 3, 10, 32])
def test_wide_has_as_many_parameters_as_split(factors, settings, channels):
    outputs = {"z.mean": factors, "z.log_variance": factors, "c.logits": 3}
    shape = (channels, 64, 64)
    with torch.device("meta"):
        wide, split = (count(make(name, outputs, shape, **settings)) for name in ("wide", "split"))
    assert wide == pytest.approx(split, rel=0.02)


def test_wide_is_locatello_at_split_of_one_factor():
    one = {"z.mean": 1, "z.log_variance": 1}
    assert repr(make("wide", one)) == repr(make("conv-locatello", one))
    assert [p.shape for p in make("wide", NORMAL).parameters()][:6] == [
        p.shape for p in make("conv-locatello", NORMAL).parameters()
    ][:6]


@pytest.mark.parametrize("name", ["split", "shared", "wide"])
def test_members_by_matrix_products(name):
    """As training runs them: stacked, and every convolution as a product; values and all gradients."""
    modules, x = [small(name) for _ in range(2)], images(2, 3)
    parameters, buffers = stack_module_state(modules)
    skeleton = use_matrix_products(copy.deepcopy(modules[0]), "matmul")
    assert not any(type(layer) is nn.Conv2d for layer in skeleton.modules())
    assert sum(isinstance(layer, ProductConv2d) for layer in skeleton.modules()) == 4
    together = vmap(lambda p, b, x: functional_call(skeleton, (p, b), (x,)))(parameters, buffers, x)
    slopes = torch.linspace(-1, 1, 3 * len(OWNERS), dtype=torch.float64).view(3, -1)
    grads = torch.autograd.grad((together * slopes).sum(), list(parameters.values()))
    for m, module in enumerate(modules):
        alone = module(x[m])
        torch.testing.assert_close(together[m], alone, rtol=1e-9, atol=1e-9)
        expected = torch.autograd.grad((alone * slopes).sum(), list(module.parameters()))
        for grad, wanted in zip(grads, expected, strict=True):
            torch.testing.assert_close(grad[m], wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["split", "shared"])
def test_autocast_reaches_the_end(name):
    modules, x = [small(name).float() for _ in range(2)], images(2, 3).float()
    parameters, buffers = stack_module_state(modules)
    with torch.autocast("cpu", torch.bfloat16):
        out = vmap(lambda p, b, x: functional_call(modules[0], (p, b), (x,)))(parameters, buffers, x)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out[0].float(), modules[0](x[0]), rtol=0.05, atol=0.02)


@pytest.mark.parametrize("name", ["split", "shared", "wide"])
def test_blocks_of_unequal_parameters_are_refused(name):
    with pytest.raises(UsageError, match=naming(name, "z", 4, 1)):
        make(name, {"z.mean": 4, "z.log_scale": 1})


@pytest.mark.parametrize("name", ["split", "shared", "wide"])
def test_contract(name):
    contracts.check_network("encoder", name)
