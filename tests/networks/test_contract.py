"""Every registered encoder and decoder keeps the contract."""

import pytest
import torch
from torch.func import functional_call, stack_module_state, vmap

from unbraid.errors import UsageError
from unbraid.networks import decoder, encoder

SHAPES = [(1, 64, 64), (3, 64, 64), (1, 28, 28), (1, 32, 32), (3, 32, 32), (7,)]
OUTPUTS = {"z.mean": 4, "z.log_variance": 4}


def build(side, name, shape):
    entry = (encoder if side == "encoder" else decoder)[name]
    arguments = (shape, OUTPUTS) if side == "encoder" else (8, shape)
    return entry.make(*arguments, **entry.resolve({}))


def buildable(side, name):
    made = {}
    for shape in SHAPES:
        try:
            made[shape] = build(side, name, shape)
        except UsageError as error:
            assert name in str(error)
            assert str(shape) in str(error)
    return made


ALL = [("encoder", name) for name in encoder] + [("decoder", name) for name in decoder]


@pytest.mark.parametrize(("side", "name"), ALL)
def test_takes_some_observations_and_refuses_others_by_name(side, name):
    made = buildable(side, name)
    assert made, "a network must take at least one common shape"
    for shape, module in made.items():
        given, wanted = (shape, (8,)) if side == "encoder" else ((8,), shape)
        assert module(torch.rand(3, *given)).shape == (3, *wanted)


@pytest.mark.parametrize(("side", "name"), ALL)
def test_every_parameter_gets_a_gradient(side, name):
    shape, module = next(iter(buildable(side, name).items()))
    out = module(torch.randn(4, *(shape if side == "encoder" else (8,))))
    out.square().mean().backward()
    assert all(
        p.grad is not None and p.grad.abs().sum() > 0 for n, p in module.named_parameters() if not n.endswith("bias")
    )
    assert all(p.grad is not None for p in module.parameters())


@pytest.mark.parametrize(("side", "name"), ALL)
def test_members_stacked_equal_members_alone(side, name):
    shape = next(iter(buildable(side, name)))
    modules = [build(side, name, shape).double() for _ in range(2)]
    x = torch.randn(2, 4, *(shape if side == "encoder" else (8,)), dtype=torch.float64)
    parameters, buffers = stack_module_state(modules)
    buffers = {k: v.clone() for k, v in buffers.items()}
    together = vmap(lambda p, b, x: functional_call(modules[0], (p, b), (x,)))(parameters, buffers, x)
    for m, module in enumerate(modules):
        torch.testing.assert_close(together[m], module(x[m]), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("side", "name"), ALL)
def test_says_what_it_is(side, name):
    entry = (encoder if side == "encoder" else decoder)[name]
    assert entry.summary.endswith(".")


def test_broadcast_equals_the_tiled_form():
    """The tiled tensor of watters2019, written out."""
    module = build("decoder", "broadcast-pixel", (1, 5, 4))[0]
    code = torch.randn(2, 8)
    y, x = torch.meshgrid(torch.linspace(-1, 1, 5), torch.linspace(-1, 1, 4), indexing="ij")
    tiled = torch.cat([code[:, None, None].expand(2, 5, 4, 8), torch.stack([x, y], -1).expand(2, 5, 4, 2)], dim=-1)
    weight = torch.cat([module.code.weight, module.position.weight], dim=1)
    torch.testing.assert_close(module(code), (tiled @ weight.T + module.code.bias).permute(0, 3, 1, 2))


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("mlp-chen", 4096 * 1200 + 1200 + 1200 * 1200 + 1200 + 1200 * 20 + 20),
        ("conv-burgess", 544 + 3 * 16416 + 512 * 256 + 256 + 256 * 256 + 256 + 256 * 20 + 20),
        ("conv-locatello", 544 + 16416 + 8256 + 16448 + 1024 * 256 + 256 + 256 * 20 + 20),
        ("conv-daunhawer", 544 + 16416 + 32832 + 65600 + 64 * 256 * 16 + 256 + 256 * 20 + 20),
    ],
)
def test_encoders_have_the_papers_sizes(name, count):
    module = encoder[name].make((1, 64, 64), {"z": 20}, **encoder[name].resolve({}))
    assert sum(p.numel() for p in module.parameters()) == count
