"""Layers that normalise by fused kernels are those that normalise by torch's operations, up to rounding."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from tests.support.cuda_graphs import replay_with
from unbraid.networks.conv_as_matmul import PassedReLU
from unbraid.networks.fused_norm import FusableNorm, fuse_normalisations
from unbraid.networks.modulated_decoder import ModulatedDecoder
from unbraid.networks.refiners import AdaIN, AdaINRefiner
from unbraid.networks.stackable_batchnorm import make_stackable

pytest.importorskip("triton")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(autouse=True)
def strict():
    """Both sides convolve by the same numbers: cuDNN would use TF32, and add in any order, unless told otherwise."""
    with torch.backends.cudnn.flags(enabled=True, deterministic=True, allow_tf32=False):
        yield


def distance(made: Tensor, expected: Tensor) -> float:
    made, expected = made.detach().double(), expected.detach().double()
    return float((made - expected).norm() / expected.norm())


def both(layer: nn.Module) -> tuple[nn.Module, nn.Module]:
    """The layer by torch's operations, and a copy by kernels."""
    return layer.to(DEVICE), fuse_normalisations(copy.deepcopy(layer)).to(DEVICE)


def results(module: nn.Module, inputs: list[Tensor], autocast: bool = False) -> list[Tensor]:
    """The output, and the gradients of a fixed linear function of it."""
    with torch.autocast(DEVICE, torch.bfloat16, enabled=autocast):
        out = module(*inputs)
    slopes = torch.arange(out.numel(), device=DEVICE).sin().view(out.shape)  # a constant would have no gradient
    wanted = [each for each in (*inputs, *module.parameters()) if each.requires_grad]
    return [out, *torch.autograd.grad((out * slopes).sum(), wanted)]


def leaves(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> list[Tensor]:
    return [torch.randn(shape, device=DEVICE).to(dtype).requires_grad_() for shape in shapes]


@pytest.mark.parametrize("relu", [False, True])
def test_adain_is_the_plain_one(relu):
    plain, fused = both(AdaIN(3, 6, 5))
    inputs = leaves((4, 6, 5, 5), (4, 3))
    made, expected = (results(_WithReLU(layer, relu), inputs) for layer in (fused, plain))
    assert max(map(distance, made, expected)) < 1e-5


class _WithReLU(nn.Module):
    def __init__(self, layer: nn.Module, relu: bool) -> None:
        super().__init__()
        self.layer, self.relu = layer, relu

    def forward(self, a: Tensor, z: Tensor) -> Tensor:
        return self.layer(a, z, relu=self.relu)


def test_adain_returns_the_type_that_the_next_convolution_reads():
    plain, fused = both(AdaIN(3, 6, 5))
    (a,), (z,) = leaves((4, 6, 5, 5), dtype=torch.bfloat16), leaves((4, 3))
    with torch.autocast(DEVICE, torch.bfloat16):
        made, expected = fused(a, z), plain(a, z)
    assert (made.dtype, expected.dtype) == (torch.bfloat16, torch.float32)
    assert distance(made, expected) < 1e-2


def test_what_the_kernels_do_not_compute_stays_bit_for_bit():
    for layer, dtype in ((AdaIN(3, 4, 5, "spatial"), torch.float32), (AdaIN(3, 4, 5).double(), torch.float64)):
        plain, fused = both(layer)
        inputs = leaves((2, 4, 5, 5), (2, 3), dtype=dtype)
        made, expected = results(fused, inputs), results(plain, inputs)
        assert all(torch.equal(mine, wanted) for mine, wanted in zip(made, expected, strict=True))


@pytest.mark.parametrize(
    ("network", "shapes"),
    [
        (lambda: AdaINRefiner((1, 28, 28), 3, channels=4), [(3, 1, 28, 28), (3, 3)]),
        (lambda: ModulatedDecoder(6, (1, 28, 28), modulating=3, hidden=8), [(3, 6)]),
    ],
    ids=["adain", "conv-modulated"],
)
def test_networks_compute_what_they_did(network, shapes):
    plain, fused = both(network())
    assert list(fused.state_dict()) == list(plain.state_dict())
    inputs = leaves(*shapes)
    assert max(map(distance, results(fused, inputs), results(plain, inputs))) < 1e-4
    exact = results(plain, inputs)
    errors = [sum(map(distance, results(each, inputs, True), exact)) for each in (fused, plain)]
    assert errors[0] < 1.25 * errors[1]  # bfloat16 costs as much as it did
    switched_off = fuse_normalisations(fused, False)
    assert all(map(torch.equal, results(switched_off, inputs), exact))


def chain(**options) -> nn.Sequential:
    """Layers as in conv-chen."""
    first = [nn.Conv2d(1, 5, 4, 2, 1), nn.BatchNorm2d(5, momentum=0.3, **options), nn.ReLU()]
    return nn.Sequential(*first, nn.Conv2d(5, 6, 4), nn.BatchNorm2d(6, **options), nn.LeakyReLU())


def run_steps(module: nn.Module, state: tuple[dict, dict], x: Tensor, autocast: bool) -> list[Tensor]:
    """The outputs and the gradients of two steps of stacked members; a bias before BatchNorm has none but rounding."""
    found, wanted = [], [tensor for name, tensor in state[0].items() if name not in ("0.bias", "3.bias")]
    for batch in x:
        with torch.autocast(DEVICE, torch.bfloat16, enabled=autocast):
            out = vmap(lambda state, x: functional_call(module, state, (x,)))({**state[0], **state[1]}, batch)
        slopes = torch.linspace(-1, 1, out.numel(), device=DEVICE).view(out.shape)
        found += [out, *torch.autograd.grad((out * slopes).pow(3).sum(), wanted)]
    return found


@pytest.mark.filterwarnings("error:There is a performance drop")  # no operation may fall back to one member at a time
@pytest.mark.parametrize("autocast", [False, True])
def test_stacked_batchnorm_is_the_plain_one_and_remembers_the_same(autocast):
    members = [make_stackable(chain()).to(DEVICE) for _ in range(2)]
    for parameter in (p for member in members for p in member.parameters()):
        nn.init.normal_(parameter, std=0.5)
    fused = fuse_normalisations(copy.deepcopy(members[0]))
    assert [type(layer) for layer in fused if isinstance(layer, (nn.ReLU, nn.LeakyReLU))] == [PassedReLU, nn.LeakyReLU]
    assert list(fused.state_dict()) == list(members[0].state_dict())
    states = [stack_module_state(members) for _ in range(2)]
    x = torch.randn(2, 2, 3, 1, 8, 8, device=DEVICE)
    found = [run_steps(*each, x, autocast) for each in zip((fused, members[0]), states, strict=True)]
    assert max(map(distance, *found)) < (5e-2 if autocast else 1e-4)
    for name, running in states[1][1].items():
        torch.testing.assert_close(states[0][1][name], running, rtol=2e-2 if autocast else 1e-5, atol=1e-3 * autocast)


@pytest.mark.parametrize("options", [{"affine": False}, {"track_running_stats": False}], ids=str)
def test_options_of_batchnorm(options):
    plain, fused = (make_stackable(chain(**options)).to(DEVICE) for _ in range(2))
    fused.load_state_dict(plain.state_dict())
    fuse_normalisations(fused)
    x = torch.randn(3, 1, 8, 8, device=DEVICE)
    torch.testing.assert_close(fused(x), plain(x), rtol=1e-4, atol=1e-5)
    assert options != {"affine": False} or torch.equal(fused(x), plain(x))


def test_evaluation_and_what_is_switched_off_stay_bit_for_bit():
    plain = make_stackable(chain()).to(DEVICE)
    fused = fuse_normalisations(copy.deepcopy(plain))
    x = torch.randn(3, 1, 8, 8, device=DEVICE)
    assert torch.equal(fused.eval()(x), plain.eval()(x))
    fuse_normalisations(fused, False)
    assert torch.equal(fused.train()(x), plain.train()(x))
    assert torch.equal(fused[1].running_var, plain[1].running_var)


def test_nothing_is_fused_unasked():
    parts = [*make_stackable(chain()).modules(), *AdaINRefiner((1, 28, 28), 3, channels=2).modules()]
    norms = [part for part in parts if isinstance(part, FusableNorm)]
    assert len(norms) == 2 + 7 and not any(norm.fused for norm in norms)


class Stack(nn.Module):
    """Members of a layer as one module with parameters and buffers [member, …]."""

    def __init__(self, members: list[nn.Module]) -> None:
        super().__init__()
        self.layer = [members[0]]  # in a list, its own parameters are no submodule's
        self.state = stack_module_state(members)

    def parameters(self, recurse: bool = True):
        return iter(self.state[0].values())

    def forward(self, *inputs: Tensor) -> Tensor:
        state = {**self.state[0], **self.state[1]}
        return vmap(lambda state, *inputs: functional_call(self.layer[0], state, inputs))(state, *inputs)


@pytest.mark.gpu
@pytest.mark.parametrize(("channels", "side"), [(64, 64), (64, 32), (128, 16), (256, 8), (48, 7)])
@pytest.mark.parametrize("kind", ["adain", "batchnorm"])
def test_recorded_kernels_equal_torchs_operations_on_a_gpu(kind, channels, side):
    """The maps of ms-vae, and others; in bfloat16, recorded as a CUDA graph and replayed on other numbers."""
    make = (lambda: AdaIN(5, channels, side)) if kind == "adain" else (lambda: make_stackable(nn.BatchNorm2d(channels)))
    members = [make().cuda() for _ in range(3)]
    found = []
    shapes = [(3, 8, channels, side, side), *([(3, 8, 5)] if kind == "adain" else [])]
    inputs, fresh = leaves(*shapes, dtype=torch.bfloat16), leaves(*shapes, dtype=torch.bfloat16)
    for fused in (True, False):
        stack = Stack([fuse_normalisations(member, fused) for member in members])
        with torch.no_grad():
            for tensor, other in zip(inputs, fresh, strict=True):
                tensor.copy_(2 * other.flip(0))
        found.append(replay_with(lambda stack=stack: results(stack, inputs, True), inputs, fresh))
        found[-1] += list(stack.state[1].values())
    assert max(map(distance, *found)) < 1e-2


@pytest.mark.compiles
def test_compiles_as_one_graph():
    """Inductor asserts the strides that an operator promised."""
    members = [make_stackable(chain()).to(DEVICE) for _ in range(2)]
    fused = fuse_normalisations(copy.deepcopy(members[0]))
    x = torch.randn(2, 3, 1, 8, 8, device=DEVICE)

    def loss(module: nn.Module, state: tuple[dict, dict]) -> Tensor:
        return vmap(lambda state, x: functional_call(module, state, (x,)))({**state[0], **state[1]}, x).pow(3).sum()

    states = [stack_module_state(members) for _ in range(2)]
    expected = torch.autograd.grad(loss(members[0], states[1]), list(states[1][0].values()))
    compiled = torch.compile(lambda state: loss(fused, state), fullgraph=True, dynamic=False)
    made = torch.autograd.grad(compiled(states[0]), list(states[0][0].values()))
    for mine, wanted in zip(made, expected, strict=True):
        torch.testing.assert_close(mine, wanted, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(states[0][1], states[1][1])
