"""Convolutions as matrix products against torch's own, for stacked members, in values and in every gradient."""

import copy
import importlib

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, stack_module_state, vmap

from unbraid.networks.conv_as_matmul import (
    PassedReLU,
    ProductConv2d,
    ProductConvTranspose2d,
    use_matrix_products,
)

CASES = {
    "first layer": (nn.Conv2d(1, 6, 4, stride=2, padding=1), 8),
    "halving": (nn.Conv2d(6, 5, 4, stride=2, padding=1), 8),
    "halving, odd": (nn.Conv2d(8, 2, 4, stride=2, padding=1), 9),
    "halving, k2": (nn.Conv2d(6, 6, 2, stride=2), 8),
    "3x3": (nn.Conv2d(6, 7, 3, padding=1), 7),
    "3x3 to the image": (nn.Conv2d(6, 1, 3, padding=1, bias=False), 7),
    "1x1": (nn.Conv2d(6, 3, 1), 5),
    "1x1, stride": (nn.Conv2d(6, 3, 1, stride=2), 5),
    "whole image": (nn.Conv2d(6, 9, 4), 4),
    "kernel below stride": (nn.Conv2d(8, 2, 2, stride=3), 9),
    "phases that do not fill": (nn.Conv2d(8, 1, 5, stride=2, padding=2), 9),
    "not square": (nn.Conv2d(6, 9, (3, 2), stride=(2, 3), padding=(2, 0)), 9),
    "from one pixel": (nn.ConvTranspose2d(9, 6, 4), 1),
    "doubling": (nn.ConvTranspose2d(6, 5, 4, stride=2, padding=1), 5),
    "last layer": (nn.ConvTranspose2d(6, 1, 4, stride=2, padding=1), 5),
    "transposed 1x1": (nn.ConvTranspose2d(6, 4, 1), 1),
    "transposed 3x3": (nn.ConvTranspose2d(6, 8, 3, padding=1, bias=False), 6),
    "transposed, output padding": (nn.ConvTranspose2d(6, 8, 3, stride=2, padding=1, output_padding=1), 5),
    "transposed, output padding beyond": (nn.ConvTranspose2d(6, 1, 3, stride=2, output_padding=1), 5),
    "transposed, kernel below stride": (nn.ConvTranspose2d(6, 6, 2, stride=3), 5),
    "transposed, not square": (nn.ConvTranspose2d(6, 2, (3, 2), stride=(2, 3), padding=(2, 0)), 5),
}
BY_KERNELS = {
    "first layer": (nn.Conv2d(1, 20, 4, stride=2, padding=1), 8),
    "three channels": (nn.Conv2d(3, 4, 4, stride=2, padding=1, bias=False), 5),
    "halving": (nn.Conv2d(16, 70, 4, stride=2, padding=1), 4),
    "3x3": (nn.Conv2d(5, 7, 3, padding=1), 7),
    "doubling": (nn.ConvTranspose2d(16, 8, 4, stride=2, padding=1), 4),
    "last layer": (nn.ConvTranspose2d(8, 1, 4, stride=2, padding=1), 5),
    "phases that do not fill": (nn.ConvTranspose2d(4, 12, 3, stride=2, padding=1, output_padding=1, bias=False), 5),
    "kernel below stride": (nn.ConvTranspose2d(4, 20, 2, stride=3), 4),
}
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(scope="module")
def kernels():
    """The operators; without a GPU, Triton's interpreter runs their kernels, which is decided at import."""
    pytest.importorskip("triton")
    return importlib.import_module("unbraid.networks.conv_ops")


@pytest.fixture(autouse=True)
def strict():
    """What is compared with is exact: cuDNN uses TF32 unless told otherwise."""
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        yield


def stacked(layer: nn.Module, members: int = 3) -> list[nn.Module]:
    layers = [copy.deepcopy(layer) for _ in range(members)]
    for one in layers:
        for parameter in one.parameters():
            nn.init.normal_(parameter, std=0.3)
    return layers


def results(module: nn.Module, parameters: dict, x: torch.Tensor, autocast: bool = False) -> list[torch.Tensor]:
    """Output of all members, and the gradients of a fixed linear function of it."""
    with torch.autocast(x.device.type, torch.bfloat16, enabled=autocast):
        out = vmap(lambda p, x: functional_call(module, p, (x,)))(parameters, x)
    slopes = torch.linspace(-1, 1, out.numel(), dtype=out.dtype, device=out.device).view(out.shape)
    return [out, *torch.autograd.grad((out * slopes).sum(), [x, *parameters.values()])]


def distance(made: torch.Tensor, expected: torch.Tensor) -> float:
    made, expected = made.detach().double(), expected.detach().double()
    return float((made - expected).norm() / expected.norm())


@pytest.mark.parametrize("kernels", ["matmul", "cpu"])
@pytest.mark.parametrize("name", CASES)
def test_products_equal_convolutions(name, kernels):
    layer, side = CASES[name]
    layers = stacked(layer.double())
    parameters, _ = stack_module_state(layers)
    x = torch.randn(3, 2, layer.in_channels, side, side, dtype=torch.float64, requires_grad=True)
    expected = results(layers[0], parameters, x)
    ours = use_matrix_products(copy.deepcopy(layers[0]), kernels)
    assert type(ours) is not type(layer)
    for made, wanted in zip(results(ours, parameters, x), expected, strict=True):
        torch.testing.assert_close(made, wanted, rtol=1e-10, atol=1e-10)
    alone = ours(x[0])
    torch.testing.assert_close(alone, layers[0](x[0]), rtol=1e-10, atol=1e-10)
    assert kernels == "cpu" or alone.permute(0, 2, 3, 1).is_contiguous()


@pytest.mark.parametrize(("name", "dtype"), [*((n, torch.float32) for n in BY_KERNELS), ("last layer", torch.float16)])
def test_kernels_equal_convolutions(kernels, name, dtype):
    """Float16 stands for all of 16 bits: the interpreter cannot multiply bfloat16."""
    assert kernels.kernels.INTERPRETED or DEVICE == "cuda"
    layer, side = BY_KERNELS[name]
    layers = stacked(layer.to(DEVICE), members=2)
    parameters, _ = stack_module_state(layers)
    x = torch.randn(2, 2, layer.in_channels, side, side, device=DEVICE, requires_grad=True)
    expected = results(layers[0], parameters, x)
    ours = use_matrix_products(copy.deepcopy(layers[0]), "triton").to(dtype)
    parameters = {n: p.detach().to(dtype).requires_grad_() for n, p in parameters.items()}
    made = results(ours, parameters, x.detach().to(dtype).requires_grad_())
    assert max(map(distance, made, expected)) < (1e-5 if dtype == torch.float32 else 5e-3)
    assert ours(x[0].to(dtype)).permute(0, 2, 3, 1).is_contiguous()


def test_rows_are_split_and_added_in_one_order(kernels):
    large, small = torch.randn(1, 24, 2, 16, 16), torch.randn(1, 24, 3, 8, 8)
    made, total = kernels.weight_gradient(large, small, 4, 2, 1, kernels.SUMS_OF_SMALL, torch.float32)
    expected = torch.nn.grad.conv2d_weight(large[0], (3, 2, 4, 4), small[0], 2, 1)
    torch.testing.assert_close(made[0], expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(total[0], small[0].sum((0, 2, 3)), rtol=1e-4, atol=1e-4)
    again = kernels.weight_gradient(large, small, 4, 2, 1, kernels.SUMS_OF_SMALL, torch.float32)
    assert torch.equal(made, again[0])
    _, entries = kernels.weight_gradient(large, small, 4, 2, 1, kernels.SUMS_OF_LARGE, torch.float32)
    columns = torch.nn.functional.unfold(large[0], 4, padding=1, stride=2).sum((0, 2)).view(2, 4, 4)
    torch.testing.assert_close(entries[0].view(4, 4, 2), columns.permute(1, 2, 0), rtol=1e-4, atol=1e-4)


CHAINS = {
    "encoder": (nn.Sequential(nn.Conv2d(1, 5, 4, 2, 1), nn.ReLU(), nn.Conv2d(5, 6, 4, 2, 1), nn.ReLU()), (1, 8, 8)),
    "decoder": (
        nn.Sequential(nn.ConvTranspose2d(5, 18, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(18, 1, 4, 2, 1)),
        (5, 4, 4),
    ),
    "dense end": (nn.Sequential(nn.Conv2d(2, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 7, 4)), (2, 4, 4)),
    "both ways": (
        nn.Sequential(nn.Conv2d(2, 6, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(6, 20, 4, 2, 1), nn.ReLU(), nn.Flatten()),
        (2, 4, 4),
    ),
}


SLOW_CHAINS = ("decoder", "both ways")  # Triton's interpreter takes seconds for each


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in SLOW_CHAINS else name for name in CHAINS]
)
def test_layers_compute_and_differentiate_the_relus_between_them(kernels, name):
    net, shape = CHAINS[name]
    layers = stacked(net.to(DEVICE), members=2)
    parameters, _ = stack_module_state(layers)
    x = torch.randn(2, 3, *shape, device=DEVICE, requires_grad=True)
    expected = results(layers[0], parameters, x)
    ours = use_matrix_products(copy.deepcopy(layers[0]), "triton")
    assert any(type(layer) is PassedReLU for layer in ours)
    assert [name for name, _ in ours.named_modules()] == [name for name, _ in net.named_modules()]
    assert max(map(distance, results(ours, parameters, x), expected)) < 1e-5
    again = use_matrix_products(ours, "triton")  # a second time changes nothing
    assert max(map(distance, results(again, parameters, x), expected)) < 1e-5
    torch.testing.assert_close(ours(x[0]), layers[0](x[0]), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", CHAINS)
def test_relus_on_a_cpu_have_no_memory_of_their_own_and_change_no_bit(name):
    net, shape = CHAINS[name]
    layers = stacked(net, members=2)
    parameters, _ = stack_module_state(layers)
    x = torch.randn(2, 3, *shape, requires_grad=True)
    ours, apart = copy.deepcopy(layers[0]), copy.deepcopy(layers[0])
    for layer in apart:  # one by one, so that no layer knows of the ReLU after it
        use_matrix_products(layer, "cpu")
    use_matrix_products(ours, "cpu")
    assert [type(layer) for layer in ours] == [PassedReLU if type(each) is nn.ReLU else type(each) for each in apart]
    made, expected = results(ours, parameters, x), results(apart, parameters, x)
    assert all(torch.equal(mine, wanted) for mine, wanted in zip(made, expected, strict=True))
    assert torch.equal(ours(x[0]), apart(x[0]))


def test_a_layer_in_two_places_keeps_its_relu(kernels):
    shared = nn.Conv2d(4, 4, 3, padding=1)
    net = nn.Sequential(shared, nn.ReLU(), shared)
    x, expected = torch.randn(2, 4, 6, 6), None
    expected = net(x)
    made = use_matrix_products(net, "triton")(x)
    assert [type(layer) for layer in net] == [ProductConv2d, nn.ReLU, ProductConv2d]
    torch.testing.assert_close(made, expected, rtol=1e-4, atol=1e-4)


class Tapped(nn.Module):
    """A user's encoder that also uses what its layers make, before and after the ReLUs."""

    def __init__(self):
        super().__init__()
        convs = nn.Conv2d(1, 4, 4, 2, 1), nn.Conv2d(4, 32, 4, 2, 1)
        self.trunk = nn.Sequential(nn.Sequential(convs[0], nn.ReLU()), nn.Sequential(convs[1], nn.ReLU()))

    def forward(self, x):
        before = self.trunk[0][0](x)
        after = self.trunk[0][1](before)
        parts = before, after.square(), self.trunk[1](after)
        return torch.stack([part.mean((1, 2, 3)) for part in parts], -1)


@pytest.mark.parametrize("kind", ["triton", "cpu"])
@pytest.mark.parametrize("wrap", [lambda net: net, nn.Sequential, lambda net: nn.ModuleDict({"one": net})["one"]])
def test_a_users_module_may_use_what_its_layers_make(kernels, kind, wrap):
    plain = Tapped()
    ours = use_matrix_products(wrap(copy.deepcopy(plain)), kind)
    assert any(isinstance(layer, ProductConv2d) for layer in ours.modules())
    x = torch.randn(2, 1, 8, 8)
    made, expected = (net(x) for net in (ours, plain))
    torch.testing.assert_close(made, expected, rtol=1e-4, atol=1e-5)
    for net, out in ((ours, made), (plain, expected)):
        out.sum().backward()
        net.found = [parameter.grad for parameter in net.parameters()]
    assert max(map(distance, ours.found, plain.found)) < 1e-5


def test_a_hook_sees_what_a_layer_makes(kernels):
    net, seen = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU()), []
    net[0].register_forward_hook(lambda layer, inputs, output: seen.append(float(output.detach().min())))
    use_matrix_products(net, "cpu")(torch.randn(2, 1, 8, 8))
    assert seen[0] < 0


def test_a_part_of_a_network_leaves_it_fit_to_be_copied(kernels):
    net = use_matrix_products(nn.Sequential(nn.Conv2d(1, 32, 4, 2, 1), nn.ReLU(), nn.Conv2d(32, 4, 3)), "triton")
    net[:2](torch.randn(2, 1, 8, 8, requires_grad=True))
    assert net[2].given is not None
    assert copy.deepcopy(net)[2].given is None


def test_an_empty_batch_has_no_gradient(kernels):
    net = use_matrix_products(nn.Sequential(nn.Conv2d(3, 5, 4, 2, 1), nn.ReLU(), nn.Conv2d(5, 4, 3)), "triton")
    net(torch.zeros(0, 3, 8, 8)).sum().backward()
    assert all(not parameter.grad.any() for parameter in net.parameters())


@pytest.mark.parametrize("kind", ["matmul", "triton", "cpu"])
def test_second_derivatives(kernels, kind):
    """Penalties on gradients differentiate twice."""
    layer = nn.Sequential(nn.Conv2d(2, 3, 4, stride=2, padding=1), nn.ReLU(), nn.ConvTranspose2d(3, 1, 4, 2, 1))
    x = torch.randn(1, 2, 4, 4, requires_grad=True)

    def penalty(module: nn.Module) -> list[torch.Tensor]:
        slope = torch.autograd.grad(module(x).square().sum(), x, create_graph=True)[0]
        return list(torch.autograd.grad(slope.square().sum(), [x, *module.parameters()]))

    expected = penalty(layer)
    for made, wanted in zip(penalty(use_matrix_products(layer, kind)), expected, strict=True):
        torch.testing.assert_close(made, wanted, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("kind", ["matmul", "triton"])
def test_autocast_computes_in_its_type(kernels, kind):
    net = nn.Sequential(nn.Conv2d(1, 8, 4, stride=2, padding=1), nn.ReLU(), nn.ConvTranspose2d(8, 6, 4, 2, 1))
    layers = stacked(net)
    parameters, _ = stack_module_state(layers)
    x = torch.randn(3, 4, 1, 8, 8, requires_grad=True)
    expected = results(layers[0], parameters, x)
    made = results(use_matrix_products(layers[0], kind), parameters, x, autocast=True)
    assert made[0].dtype == torch.bfloat16
    assert made[1].dtype == torch.float32
    assert max(map(distance, made, expected)) < 2e-2


class Own(nn.Conv2d):
    """A user's convolution with a forward of its own."""

    def forward(self, input):
        return super().forward(input) * 2


def test_parameters_and_what_is_not_plain_stay():
    shared = nn.Conv2d(4, 4, 3, padding=1)
    net = nn.Sequential(nn.Conv2d(2, 4, 3), shared, shared, nn.ConvTranspose2d(4, 4, 2))
    other = [nn.Conv2d(4, 4, 3, groups=2), nn.Conv2d(4, 4, 3, dilation=2), Own(4, 4, 3)]
    other += [nn.Conv2d(4, 4, 3, padding="same"), nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect")]
    net.extend(other)
    before, types = dict(net.named_parameters()), [type(layer) for layer in other]
    keys, expected = list(net.state_dict()), net(torch.ones(1, 2, 16, 16))
    assert use_matrix_products(net, "matmul") is net
    assert list(net.state_dict()) == keys
    assert all(parameter is before[name] for name, parameter in net.named_parameters())
    assert [type(layer) for layer in other] == types
    assert [type(net[i]) for i in range(4)] == [ProductConv2d, ProductConv2d, ProductConv2d, ProductConvTranspose2d]
    torch.testing.assert_close(net(torch.ones(1, 2, 16, 16)), expected)


def test_torchs_other_calls_still_work():
    convolution, transposed = nn.Conv2d(2, 3, 3), nn.ConvTranspose2d(2, 3, 3, stride=2)
    x = torch.randn(2, 5, 5)
    single, sized = convolution(x), transposed(x[None], output_size=[12, 12])
    use_matrix_products(nn.ModuleList([convolution, transposed]))
    torch.testing.assert_close(convolution(x), single)
    torch.testing.assert_close(transposed(x[None], output_size=[12, 12]), sized)


def test_operators_are_registered_as_torch_wants(kernels):
    x = torch.randn(1, 3, 4, 4).to(memory_format=torch.channels_last).requires_grad_()
    weight = torch.randn(4, 3, 4, 4).to(memory_format=torch.channels_last).requires_grad_()
    transposed, bias = torch.randn(3, 4, 4, 4, requires_grad=True), torch.randn(4, requires_grad=True)
    how = (False, False, False, False, torch.float32, torch.float32)
    tests = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(
        kernels.convolve.call, (x, weight, bias, None, None, None, False, 2, 1, 2, 2, *how), test_utils=tests
    )
    torch.library.opcheck(
        kernels.convolve.call, (x, transposed, None, None, None, None, True, 2, 1, 8, 8, *how), test_utils=tests
    )
    torch.library.opcheck(
        kernels.kernel_gradient.call, (x, torch.randn(1, 4, 2, 2), 4, 2, 1, 1, torch.float32), test_utils=tests
    )


@pytest.mark.compiles
@pytest.mark.parametrize(("kind", "backend"), [("matmul", "aot_eager"), ("triton", "inductor")])
def test_compiles_as_one_graph(kernels, kind, backend):
    """Inductor asserts the strides that an operator promised."""
    net = nn.Sequential(nn.Conv2d(1, 4, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(4, 1, 4, 2, 1))
    layers = stacked(net, members=2)
    parameters, _ = stack_module_state(layers)
    x = torch.randn(2, 3, 1, 8, 8)

    def loss(module: nn.Module, parameters: dict) -> torch.Tensor:
        logits = vmap(lambda p, x: functional_call(module, p, (x,)))(parameters, x)
        return F.binary_cross_entropy_with_logits(logits, x.sigmoid(), reduction="sum")

    expected = torch.autograd.grad(loss(layers[0], parameters), list(parameters.values()))
    ours = use_matrix_products(copy.deepcopy(layers[0]), kind)
    compiled = torch.compile(lambda p: loss(ours, p), fullgraph=True, dynamic=False, backend=backend)
    made = torch.autograd.grad(compiled(parameters), list(parameters.values()))
    assert max(map(distance, made, expected)) < 1e-4


@pytest.mark.gpu
@pytest.mark.parametrize("name", BY_KERNELS)
def test_tensor_cores(name):
    layer, side = BY_KERNELS[name]
    layers = stacked(layer.cuda())
    parameters, _ = stack_module_state(layers)
    x = torch.randn(3, 8, layer.in_channels, side, side, device="cuda", requires_grad=True)
    expected = results(layers[0], parameters, x)
    ours = use_matrix_products(copy.deepcopy(layers[0]))
    assert max(map(distance, results(ours, parameters, x), expected)) < 1e-5
    assert max(map(distance, results(ours, parameters, x, autocast=True), expected)) < 2e-2
    try:
        torch.backends.cuda.matmul.allow_tf32 = True
        assert max(map(distance, results(ours, parameters, x), expected)) < 3e-3
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False
