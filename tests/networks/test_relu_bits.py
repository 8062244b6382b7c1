"""The bits that a layer with a ReLU stores, and the gradients that read them instead of all activations."""

import copy
import importlib
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import nn
from torch.func import functional_call, stack_module_state, vmap

from unbraid.networks.conv_as_matmul import use_matrix_products

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HALF = torch.bfloat16 if DEVICE == "cuda" else torch.float16  # Triton's interpreter cannot multiply bfloat16


def halving(*channels: int) -> nn.Sequential:
    return _chain(nn.Conv2d, *channels)


def doubling(*channels: int) -> nn.Sequential:
    return _chain(nn.ConvTranspose2d, *channels)


def _chain(layer: Any, *channels: int) -> nn.Sequential:
    parts = [part for pair in pairwise(channels) for part in (layer(*pair, 4, 2, 1), nn.ReLU())]
    return nn.Sequential(*parts[:-1])


NETS = {
    "encoder": (halving(1, 32, 32, 64, 6), (16, 16), {"_product": 2, "_halve": 1}, {"_product": 2, "_double": 1}),
    "not square": (halving(2, 32, 16, 3), (8, 24), {"_product": 1}, {"_double": 1}),
    "decoder": (doubling(8, 64, 32, 32, 1), (1, 3), {"_product": 2}, {"_product": 1, "_halve": 1}),
    "doubling, both": (doubling(32, 32, 64, 5), (3, 2), {"_double": 1, "_product": 1}, {"_product": 2}),
    "96 channels": (doubling(6, 96, 8), (2, 2), {"_product": 1}, {"_product": 1}),
    "one layer without": (halving(2, 32, 40, 5), (8, 8), {"_product": 1}, {"_product": 1}),
    "none": (halving(2, 8, 20, 5), (8, 8), {}, {}),
}


@pytest.fixture
def tiles(monkeypatch):
    """The rules, which choose the kernels that walk for small images, too."""
    pytest.importorskip("triton")
    importlib.import_module("unbraid.networks.conv_ops")
    tiles = importlib.import_module("unbraid.networks.conv_tiles")
    monkeypatch.setattr(tiles, "MIN_ROWS_TO_WALK", 0)
    monkeypatch.setattr(tiles, "MIN_SIDE_TO_HALVE", 0)
    return tiles


@pytest.fixture
def launched(monkeypatch):
    """How often each kernel stored bits, and how often it read them."""
    stored: dict[str, int] = {}
    read: dict[str, int] = {}
    for name in ("conv_kernels", "doubling_kernel", "halving_kernels"):
        module = importlib.import_module(f"unbraid.networks.{name}")

        def note(kernel, grid, *arguments, real=module.launch, **constants):
            if kernel.__name__ in ("_product", "_double", "_halve"):
                for counts, place in ((read, 3), (stored, 5)):
                    if arguments[place].dtype == torch.int32:
                        counts[kernel.__name__] = counts.get(kernel.__name__, 0) + 1
            real(kernel, grid, *arguments, **constants)

        monkeypatch.setattr(module, "launch", note)
    return stored, read


def members_of(net: nn.Module, dtype: torch.dtype) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    torch.manual_seed(0)
    nets = [copy.deepcopy(net).to(DEVICE) for _ in range(2)]
    for parameter in (p for one in nets for p in one.parameters()):
        nn.init.normal_(parameter, std=0.2)
    parameters = stack_module_state([one.to(dtype) for one in nets])[0]
    return use_matrix_products(nets[0], "triton"), parameters


def results(net: nn.Module, parameters: dict[str, torch.Tensor], x: torch.Tensor) -> list[torch.Tensor]:
    out = vmap(lambda p, x: functional_call(net, p, (x,)))(parameters, x)
    slopes = torch.linspace(-1, 1, out.numel(), device=out.device).view(out.shape).sin().to(out.dtype)
    return [out, *torch.autograd.grad((out * slopes).sum(), [x, *parameters.values()])]


@pytest.mark.parametrize("name", NETS)
def test_change_no_gradient(tiles, launched, monkeypatch, name):
    """A mask is the same, whether it is read from bits or from activations, down to the last bit of a gradient."""
    net, size, stored, read = NETS[name]
    ours, parameters = members_of(net, HALF)
    x = torch.randn(2, 3, net[0].in_channels, *size, device=DEVICE).to(HALF).requires_grad_()
    made = results(ours, parameters, x)
    assert launched == (stored, read)
    monkeypatch.setattr(tiles, "STORES_RELU_BITS", False)
    before = results(ours, parameters, x)
    assert launched == (stored, read)
    assert all(torch.equal(*pair) for pair in zip(made, before, strict=True))
    assert all(bool(gradient.isfinite().all()) and gradient.norm() > 0 for gradient in made)


@pytest.mark.parametrize("name", ["encoder", "decoder"])
def test_in_full_precision(tiles, launched, monkeypatch, name):
    """One general kernel computes all layers then."""
    net, size, *_ = NETS[name]
    ours, parameters = members_of(net, torch.float32)
    x = torch.randn(2, 3, net[0].in_channels, *size, device=DEVICE, requires_grad=True)
    made = results(ours, parameters, x)
    assert launched == ({"_product": 3}, {"_product": 3}) if name == "encoder" else ({"_product": 2}, {"_product": 2})
    monkeypatch.setattr(tiles, "STORES_RELU_BITS", False)
    assert all(torch.equal(*pair) for pair in zip(made, results(ours, parameters, x), strict=True))


def test_without_kernels_torch_packs_them(tiles, monkeypatch):
    """As on a CPU in bfloat16; and every bit is that of its channel."""
    epilogue = importlib.import_module("unbraid.networks.epilogue")
    x = torch.randn(2, 3, 64, 4, 5)
    bits = epilogue.pack(x)
    assert bits.shape == (2, 3, 2, 4, 5) and bits.dtype == torch.int32
    assert torch.equal(epilogue.unpack(bits), x > 0)
    only = torch.zeros(1, 64, 1, 1)
    only[0, 35] = 1
    assert epilogue.pack(only).flatten().tolist() == [0, 8]
    net, size, *_ = NETS["encoder"]
    ours, parameters = members_of(net, torch.float32)
    x = torch.randn(2, 3, 1, *size, device=DEVICE, requires_grad=True)
    expected = results(ours, parameters, x)
    ops = importlib.import_module("unbraid.networks.conv_ops")
    monkeypatch.setattr(ops.kernels, "runs_kernels", lambda *_: False)
    for made, wanted in zip(results(ours, parameters, x), expected, strict=True):
        torch.testing.assert_close(made, wanted, rtol=1e-3, atol=1e-3)


def test_belong_to_one_tensor(tiles, launched):
    """A hook that returns another tensor ends their use, so that they cannot mask what they do not belong to."""
    net, size, *_ = NETS["not square"]
    ours = members_of(net, torch.float32)[0]
    seen = []
    hook = ours[1].register_forward_hook(lambda module, inputs, out: seen.append(ours[2].given) or out * 1)
    x = torch.randn(3, 2, *size, device=DEVICE)
    ours(x).sum().backward()
    assert launched == ({"_product": 1}, {})
    (out, bits) = seen[0]
    assert bits.shape == (3, 1, 4, 12)
    assert torch.equal(importlib.import_module("unbraid.networks.epilogue").unpack(bits), out > 0)
    assert ours[2].given is None
    with torch.no_grad():
        ours(x)
    assert seen[1] is None
    hook.remove()
    ours[:2](x)  # bits of an output that the next layer does not get
    ours[2:](ours[:2](x).detach().requires_grad_()).sum().backward()
    assert not launched[1] and ours[2].given is None
    ours(x).sum().backward()
    assert launched[1] == {"_product": 1}


def test_gradients_that_are_differentiated_again_read_activations(tiles, launched):
    net, size, *_ = NETS["not square"]
    ours = members_of(net, torch.float32)[0]
    plain = copy.deepcopy(net).to(DEVICE)
    plain.load_state_dict(ours.state_dict())
    x = torch.randn(3, 2, *size, device=DEVICE, requires_grad=True)

    def penalty(module: nn.Module) -> list[torch.Tensor]:
        slope = torch.autograd.grad(module(x).square().sum(), x, create_graph=True)[0]
        assert not launched[1]
        return list(torch.autograd.grad(slope.square().sum(), [x, *module.parameters()]))

    for mine, wanted in zip(penalty(plain), penalty(ours), strict=True):
        torch.testing.assert_close(mine, wanted, rtol=1e-3, atol=1e-3)


def test_operator_is_registered_as_torch_wants(tiles):
    ops = importlib.import_module("unbraid.networks.conv_ops")
    x = torch.randn(2, 3, 4, 4, device=DEVICE, requires_grad=True)
    weight = torch.randn(32, 3, 4, 4, device=DEVICE, requires_grad=True)
    how = (False, 2, 1, 2, 2, True, True, False, True, torch.float32, torch.float32)
    tests = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(ops.convolve.call, (x, weight, None, None, None, None, *how), test_utils=tests)


@pytest.mark.compiles
@pytest.mark.parametrize("name", ["encoder", "doubling, both"])
def test_compile_as_one_graph(tiles, launched, name):
    net, size, stored, read = NETS[name]
    ours, parameters = members_of(net, HALF)
    x = torch.randn(2, 3, net[0].in_channels, *size, device=DEVICE).to(HALF)

    def loss(parameters: dict[str, torch.Tensor]) -> torch.Tensor:
        return vmap(lambda p, x: functional_call(ours, p, (x,)))(parameters, x).float().square().sum()

    expected = torch.autograd.grad(loss(parameters), list(parameters.values()))
    for counts in launched:
        counts.clear()
    compiled = torch.compile(loss, fullgraph=True, dynamic=False)
    made = torch.autograd.grad(compiled(parameters), list(parameters.values()))
    assert launched == (stored, read)
    with torch.compiler.set_stance("fail_on_recompile"):
        compiled(parameters)
    for mine, wanted in zip(made, expected, strict=True):
        torch.testing.assert_close(mine, wanted, rtol=1e-2, atol=1e-2 * float(wanted.abs().max()))
