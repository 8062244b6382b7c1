"""The kernels for layers that halve or double images, against those that they replace and torch's convolutions."""

import copy
import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.func import functional_call, stack_module_state, vmap

from unbraid.networks.conv_as_matmul import use_matrix_products

LAYERS = {
    "first layer": (nn.Conv2d(1, 8, 4, stride=2, padding=1), (16, 16)),
    "first layer, not square": (nn.Conv2d(1, 16, 4, stride=2, padding=1, bias=False), (6, 24)),
    "last layer": (nn.ConvTranspose2d(8, 1, 4, stride=2, padding=1), (8, 8)),
    "last layer, not square": (nn.ConvTranspose2d(16, 1, 4, stride=2, padding=1, bias=False), (3, 12)),
    "halving": (nn.Conv2d(16, 32, 4, stride=2, padding=1), (6, 8)),
    "halving, no bias": (nn.Conv2d(16, 16, 4, stride=2, padding=1, bias=False), (4, 20)),
    "halving of one line": (nn.Conv2d(32, 16, 4, stride=2, padding=1), (2, 8)),
    "doubling": (nn.ConvTranspose2d(16, 16, 4, stride=2, padding=1), (3, 5)),
    "doubling to many": (nn.ConvTranspose2d(16, 32, 4, stride=2, padding=1, bias=False), (6, 4)),
    "doubling of many": (nn.ConvTranspose2d(64, 16, 4, stride=2, padding=1), (4, 4)),
    "doubling of one line": (nn.ConvTranspose2d(32, 16, 4, stride=2, padding=1), (1, 3)),
    "last layer, colours": (nn.ConvTranspose2d(8, 3, 4, stride=2, padding=1), (5, 4)),
    "last layer, wide": (nn.ConvTranspose2d(32, 1, 4, stride=2, padding=1), (2, 4)),
}
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HALF = torch.bfloat16 if DEVICE == "cuda" else torch.float16  # Triton's interpreter cannot multiply bfloat16
RULES = ("READS_WINDOWS", "WALKS_LINES", "HALVES_LINES", "DOUBLES_LINES")
ERROR = 2e-2 if DEVICE == "cuda" else 5e-3


@pytest.fixture(scope="module")
def tiles():
    """The rules; without a GPU, Triton's interpreter runs the kernels, which is decided at import."""
    pytest.importorskip("triton")
    importlib.import_module("unbraid.networks.conv_ops")
    return importlib.import_module("unbraid.networks.conv_tiles")


def members_of(layer: nn.Module, members: int = 2) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    torch.manual_seed(0)
    layers = [copy.deepcopy(layer).to(DEVICE) for _ in range(members)]
    for parameter in (p for one in layers for p in one.parameters()):
        nn.init.normal_(parameter, std=0.3)
    return layers[0], stack_module_state(layers)[0]


def results(module: nn.Module, parameters: dict[str, torch.Tensor], x: torch.Tensor) -> list[torch.Tensor]:
    """Output of all members, and the gradients of a fixed linear function of it."""
    out = vmap(lambda p, x: functional_call(module, p, (x,)))(parameters, x)
    slopes = torch.linspace(-1, 1, out.numel(), device=out.device).view(out.shape).sin().to(out.dtype)
    return [out, *torch.autograd.grad((out * slopes).sum(), [x, *parameters.values()])]


def distance(made: torch.Tensor, expected: torch.Tensor) -> float:
    made, expected = made.detach().double(), expected.detach().double()
    return float((made - expected).norm() / expected.norm())


def in_half(parameters: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: p.detach().to(HALF).requires_grad_() for name, p in parameters.items()}


@pytest.fixture
def always(tiles, monkeypatch):
    """Let the rules choose the kernels for small images, too, and count the launches of each."""
    monkeypatch.setattr(tiles, "MIN_ROWS_TO_WALK", 0)
    monkeypatch.setattr(tiles, "MIN_SIDE_TO_HALVE", 0)
    launched = []
    for name in ("doubling_kernel", "halving_kernels", "last_layer_kernel", "picture_kernels"):
        module = importlib.import_module(f"unbraid.networks.{name}")
        monkeypatch.setattr(module, "launch", partial(_note_launch, launched, module.launch))
    return launched


def _note_launch(launched: list[str], launch: Callable[..., None], kernel: Any, *arguments: Any, **constants: Any):
    launched.append(kernel.__name__)
    launch(kernel, *arguments, **constants)


def kernels_of(layer: nn.Module) -> set[str]:
    """The kernels that compute a layer and its gradients, but for a first layer's own output."""
    channels = {layer.in_channels, layer.out_channels}
    if 1 in channels:
        return {"_last_layer", "_windows"}
    return set() if channels & {3, 64} else {"_double", "_halve", "_halve_gradient"}


@pytest.mark.parametrize("name", LAYERS)
def test_equal_the_kernels_that_they_replace(tiles, always, monkeypatch, name):
    layer, size = LAYERS[name]
    module, parameters = members_of(layer)
    x = torch.randn(2, 3, layer.in_channels, *size, device=DEVICE, requires_grad=True)
    expected = results(module, parameters, x)
    ours = use_matrix_products(copy.deepcopy(module), "triton").to(HALF)
    x, parameters = x.detach().to(HALF).requires_grad_(), in_half(parameters)
    made = results(ours, parameters, x)
    assert made[0].dtype == (HALF if layer.out_channels > 4 else torch.float32)
    assert set(always) == kernels_of(layer)
    for rule in RULES:
        monkeypatch.setattr(tiles, rule, False)
    before = results(ours, parameters, x)
    assert max(map(distance, made, before)) < 2e-3
    assert max(map(distance, made, expected)) < ERROR


IN_TF32 = {
    "first layer": {"_last_layer", "_windows"},
    "last layer": {"_last_layer", "_windows"},
    "last layer, not square": {"_last_layer", "_windows"},
    "halving": {"_halve_gradient"},
    "halving of one line": {"_halve_gradient"},
    "doubling": {"_halve_gradient"},
    "doubling of many": set(),
}


@pytest.mark.parametrize("name", IN_TF32)
def test_float32_that_may_be_computed_in_tf32(tiles, always, monkeypatch, name):
    """The interpreter does not round to TF32, and multiplies numbers as two float16 each instead of two bfloat16."""
    kernels = importlib.import_module("unbraid.networks.conv_kernels")
    if DEVICE == "cpu":
        monkeypatch.setattr(kernels, "PART", kernels.tl.float16)
    layer, size = LAYERS[name]
    module, parameters = members_of(layer)
    x = torch.randn(2, 3, layer.in_channels, *size, device=DEVICE, requires_grad=True)
    expected = results(module, parameters, x)
    ours = use_matrix_products(copy.deepcopy(module), "triton")
    results(ours, parameters, x)
    assert not always
    monkeypatch.setattr(kernels, "_precision", lambda: "tf32")
    made = results(ours, parameters, x)
    assert max(map(distance, made, expected)) < (3e-3 if DEVICE == "cuda" else 1e-5)
    assert set(always) == IN_TF32[name]


def test_rules_choose_what_was_faster(tiles):
    half, tf32, full = (tiles.Layer(4, 2, 1, size) for size in (2, 4, 0))
    assert tiles.reads_windows((64, 64, 1), 32, tf32)
    assert tiles.walks_lines((32, 32, 32), (64, 64, 1), tf32, 4)
    assert not tiles.walks_lines((32, 32, 64), (64, 64, 1), tf32, 4)
    assert not tiles.walks_lines((32, 32, 64), (64, 64, 1), half, 4)
    assert not tiles.walks_lines((32, 32, 32), (64, 64, 3), half, 2)
    assert not tiles.doubles_lines(64 * 64, (16, 16, 32), (32, 32, 32), tf32)
    assert tiles.reads_windows((64, 64, 1), 32, half)
    assert not tiles.reads_windows((64, 64, 1), 32, full)
    assert not tiles.reads_windows((64, 64, 1), 32, half._replace(padding=0))
    assert not tiles.reads_windows((64, 64, 3), 32, half)
    assert not tiles.reads_windows((63, 64, 1), 32, half)
    assert tiles.walks_lines((32, 32, 32), (64, 64, 1), half, 2)
    assert not tiles.walks_lines((32, 32, 32), (65, 65, 1), half, 2)
    assert not tiles.walks_lines((32, 32, 32), (64, 64, 1), half._replace(kernel=3), 2)
    assert tiles.halves_lines(64 * 64, (32, 32, 32), 32, half)
    assert not tiles.halves_lines(64 * 64, (16, 16, 32), 32, half)
    assert not tiles.halves_lines(64 * 64, (32, 32, 32), 64, half)
    assert not tiles.halves_lines(64, (32, 32, 32), 32, half)
    assert tiles.doubles_lines(64 * 64, (16, 16, 32), (32, 32, 32), half)
    assert not tiles.doubles_lines(64 * 64, (8, 8, 64), (16, 16, 32), half)
    assert not tiles.doubles_lines(64 * 64, (16, 16, 32), (32, 32, 32), full)
    assert not tiles.doubles_lines(64, (16, 16, 32), (32, 32, 32), half)


def test_programs_share_all_rows(tiles):
    assert tiles.WalkTile(64, 256).share(64 * 16, 64) == (4, 4)
    assert tiles.WalkTile(64, 256).share(64 * 5 + 1, 64) == (3, 2)
    assert tiles.WalkTile(64, 256).share(64 * 5 + 1, 1000) == (1, 6)
    assert tiles.WalkTile(64, 256).share(0, 64) == (1, 1)


@pytest.mark.parametrize("name", ["first layer", "last layer", "halving", "doubling"])
def test_an_empty_batch_has_empty_images_and_no_gradient(tiles, always, name):
    layer, size = LAYERS[name]
    module, parameters = members_of(layer)
    ours = use_matrix_products(module, "triton").to(HALF)
    x = torch.zeros(2, 0, layer.in_channels, *size, device=DEVICE, dtype=HALF, requires_grad=True)
    out, dx, *gradients = results(ours, in_half(parameters), x)
    assert out.shape[1] == dx.shape[1] == 0
    assert all((gradient == 0).all() for gradient in gradients)


def test_the_last_layer_computes_both_gradients_in_one_pass(tiles, monkeypatch):
    """The ReLU before it included; unless a gradient is differentiated again."""
    ops = importlib.import_module("unbraid.networks.conv_ops")
    net = nn.Sequential(nn.Conv2d(2, 16, 3, padding=1), nn.ReLU(), nn.ConvTranspose2d(16, 1, 4, 2, 1))
    ours = use_matrix_products(copy.deepcopy(net.to(DEVICE)), "triton").to(HALF)
    calls, both = [], ops.differentiate_windows
    monkeypatch.setattr(ops, "differentiate_windows", lambda *a: calls.append(a) or both(*a))
    x = torch.randn(3, 2, 4, 8, device=DEVICE)
    made = torch.autograd.grad(ours(x.to(HALF)).square().sum(), list(ours.parameters()))
    expected = torch.autograd.grad(net(x).square().sum(), list(net.parameters()))
    assert max(map(distance, made, expected)) < 2 * ERROR
    assert len(calls) == 1
    torch.autograd.grad(ours(x.to(HALF)).square().sum(), list(ours.parameters()), create_graph=True)
    assert len(calls) == 1


@pytest.mark.parametrize("strip", [1, 2, 5])
def test_some_lines_of_an_image_are_doubled_by_each_program(tiles, always, monkeypatch, strip):
    """With a mask, after which the layer before needs none of its own; programs are as many as the strips."""
    module = importlib.import_module("unbraid.networks.doubling_kernel")
    monkeypatch.setattr(module, "doubling_tile", lambda: tiles.WalkTile(16, 2 * (-(-5 // strip))))
    torch.manual_seed(0)
    x, mask = torch.randn(1, 3, 16, 4, 4), torch.randn(1, 3, 32, 8, 8)
    weight = torch.randn(1, 16, 32, 4, 4)
    out = torch.full((1, 3, 8, 8, 32), torch.nan).to(DEVICE, HALF)
    kernels = importlib.import_module("unbraid.networks.epilogue")
    last = [kernels.channels_last(t.to(DEVICE, HALF)) for t in (x, mask)]
    epilogue = kernels.Epilogue(None, False, last[1].permute(0, 1, 4, 2, 3))
    module.launch_doubling(last[0], weight.to(DEVICE, HALF), out, HALF, epilogue)
    expected = torch.nn.functional.conv_transpose2d(x[0], weight[0], stride=2, padding=1) * (mask[0] > 0)
    assert distance(out[0].permute(0, 3, 1, 2).cpu(), expected) < ERROR


@pytest.mark.parametrize(("N", "side"), [(64, 8), (64, 12), (24, 8), (32, 6)])
def test_sums_of_rows_for_a_bias_come_from_products(tiles, monkeypatch, N, side):
    """In 16 bits, of many numbers and of few, whether or not a tile consists of whole images; some rows are left."""
    ops = importlib.import_module("unbraid.networks.conv_ops")
    monkeypatch.setattr(tiles, "HALVES_LINES", False)
    torch.manual_seed(0)
    large, small = torch.randn(2, 7, 16, side, side), torch.randn(2, 7, N, side // 2, side // 2)
    flat = ops.kernel_gradient(large.to(DEVICE, HALF), small.to(DEVICE, HALF), 4, 2, 1, ops.SUMS_OF_SMALL, HALF).cpu()
    gradients = [torch.nn.grad.conv2d_weight(a, (N, 16, 4, 4), b, 2, 1) for a, b in zip(large, small, strict=True)]
    expected = torch.stack(gradients).permute(0, 1, 3, 4, 2).flatten(1)
    assert distance(flat[:, : expected.shape[1]], expected) < ERROR
    assert distance(flat[:, expected.shape[1] :], small.sum((1, 3, 4))) < ERROR


def test_small_cards_keep_the_kernels_that_need_less_memory(tiles, monkeypatch):
    choice = importlib.import_module("unbraid.networks.conv_choice")
    monkeypatch.setattr(choice.kernels, "runs_kernels", lambda *_: True)
    grad, x = torch.zeros(2, 1, 8, 8), torch.zeros(2, 16, 4, 4)
    assert choice.computes_both_gradients(grad, x, 4, 2, 1, torch.float16)
    monkeypatch.setattr(choice, "_has_enough_shared_memory", lambda device: False)
    assert not choice.computes_both_gradients(grad, x, 4, 2, 1, torch.float16)


def test_numbers_that_are_larger_than_their_products_take_too_much_memory(tiles, always, monkeypatch):
    monkeypatch.setattr(tiles, "MIN_ROWS_TO_WALK", 1)
    choice = importlib.import_module("unbraid.networks.conv_choice")
    x, weight = torch.randn(1, 2, 4, 4, 16, device=DEVICE), torch.randn(1, 16, 16, 4, 4, device=DEVICE)
    nothing = choice.Epilogue(None, False, None)
    outs = [x.new_full((1, 2, 8, 8, 16), torch.nan).to(HALF) for _ in range(2)]
    for one, image in zip(outs, (x, x.to(HALF)), strict=True):
        choice.launch_convolution(True, image, weight, one, 2, 1, HALF, nothing)
        assert always == ([] if image is x else ["_double"])
    assert distance(*outs) < 1e-3


def test_operator_is_registered_as_torch_wants(tiles):
    ops = importlib.import_module("unbraid.networks.conv_ops")
    x, weight = torch.randn(2, 8, 4, 8, device=DEVICE).to(HALF), torch.randn(8, 1, 4, 4, device=DEVICE).to(HALF)
    grad = torch.randn(2, 1, 8, 16, device=DEVICE)
    inputs = (grad, x, weight, None, 2, 1, ops.SUMS_OF_LARGE, True, HALF)
    torch.library.opcheck(ops.transposed_gradients.call, inputs, test_utils=("test_schema", "test_faketensor"))


FULL_SIZE = {
    "first layer": (nn.Conv2d(1, 32, 4, 2, 1), 64),
    "second layer": (nn.Conv2d(32, 32, 4, 2, 1), 32),
    "third layer": (nn.Conv2d(32, 64, 4, 2, 1), 16),
    "last layer but two": (nn.ConvTranspose2d(64, 32, 4, 2, 1), 8),
    "last layer but one": (nn.ConvTranspose2d(32, 32, 4, 2, 1), 16),
    "last layer": (nn.ConvTranspose2d(32, 1, 4, 2, 1), 32),
    "last layer, wide": (nn.ConvTranspose2d(64, 1, 4, 2, 1), 32),
    "last layer, colours": (nn.ConvTranspose2d(32, 3, 4, 2, 1), 32),
}


@pytest.mark.gpu
@pytest.mark.parametrize("name", FULL_SIZE)
def test_on_tensor_cores_at_full_size(tiles, always, monkeypatch, name):
    """The shapes of a network for 64x64 pictures, where every tile is whole."""
    layer, side = FULL_SIZE[name]
    module, parameters = members_of(layer, members=3)
    x = torch.randn(3, 16, layer.in_channels, side, side, device="cuda", requires_grad=True)
    expected = results(module, parameters, x)
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", True)
    assert max(map(distance, results(use_matrix_products(copy.deepcopy(module)), parameters, x), expected)) < 3e-3
    ours, parameters = use_matrix_products(module).to(HALF), in_half(parameters)
    x = x.detach().to(HALF).requires_grad_()
    made = results(ours, parameters, x)
    for rule in RULES:
        monkeypatch.setattr(tiles, rule, False)
    assert max(map(distance, made, results(ours, parameters, x))) < 5e-3  # one rounding to bfloat16 is 2e-3
    assert max(map(distance, made, expected)) < ERROR
