"""Every registered network runs in the page as it does in PyTorch: the contract of the explorer's interpreter."""

import pytest
import torch

from tests.contracts import OUTPUTS, SHAPES
from tests.support.node import case, run_cases
from unbraid.errors import UsageError
from unbraid.explore.graph import OPERATIONS
from unbraid.explore.trace import trace
from unbraid.networks import decoder, encoder, flow, refiner

SMALL = {
    "hidden": (16,), "channels": 8, "width": 8, "parameters": 60_000, "widths": (8, 8, 8, 8, 16), "couplings": 2,
    "modulating": 3,
}  # fmt: skip
CODE = 8
GREY = 1 / 255


def quick(registry):
    """Names of networks; the largest MLP of a fixed size is slow, and one like it is quick."""
    slow = pytest.mark.slow
    return [pytest.param(name, marks=slow) if name == "mlp-esmaeili-64" else name for name in registry]


def small_module(entry, *arguments):
    given = {key: value for key, value in SMALL.items() if key in entry.settings}
    if "hidden" in given and not isinstance(entry.settings["hidden"].default, tuple):
        given["hidden"] = 16
    return entry.make(*arguments, **entry.resolve({**given, **entry.facts.trial}))


def first_shape(make):
    """The smallest common shape that a network takes, and the network."""
    for shape in sorted(SHAPES, key=lambda shape: torch.Size(shape).numel()):
        try:
            return shape, settle(make(shape))
        except UsageError:
            continue
    raise AssertionError("this network takes none of the common shapes")


def settle(module):
    """The module as after training: statistics of its BatchNorms and their weights are anything."""
    for layer in module.modules():
        if isinstance(layer, torch.nn.BatchNorm2d):
            layer.running_mean.normal_()
            layer.running_var.uniform_(0.5, 2)
            torch.nn.init.uniform_(layer.weight, 0.5, 1.5)
            torch.nn.init.normal_(layer.bias)
    return module.eval()


def check_equal(function, inputs, folder):
    """The page's outputs equal torch's: to 1e-5 at float32, at 16 bits to a hundredth of a grey level.

    A grey level is 1/255 of the range of pictures, which is 1, and of codes: their largest number, but 1 at least.
    """
    with torch.no_grad():
        expected = function(*inputs)
    graph = trace(function, *inputs)
    assert {node.operation for node in graph.nodes.values()} <= set(OPERATIONS)
    exact, stored = run_cases([case(graph, *inputs, precision=each) for each in ("float32", 16)], folder)
    reach = max(1.0, float(expected.abs().max()))
    for found, limit in ((exact, 1e-5), (stored, 1e-2 * GREY * reach)):
        made = torch.from_numpy(found[0].copy()).view_as(expected)
        assert float((made - expected).abs().max()) <= limit


@pytest.mark.parametrize("name", quick(encoder))
def test_encoder(name, tmp_path):
    shape, module = first_shape(lambda shape: small_module(encoder[name], shape, OUTPUTS))
    check_equal(module, [torch.rand(3, *shape)], tmp_path)


@pytest.mark.parametrize("name", quick(decoder))
def test_decoder(name, tmp_path):
    _, module = first_shape(lambda shape: small_module(decoder[name], CODE, shape))
    check_equal(lambda code: module(code).sigmoid(), [torch.randn(3, CODE)], tmp_path)


@pytest.mark.parametrize("name", list(refiner))
def test_refiner(name, tmp_path):
    shape, module = first_shape(lambda shape: small_module(refiner[name], shape, CODE))
    inputs = [torch.rand(3, *shape), torch.randn(3, CODE)]
    check_equal(lambda y, z: module(y, z).sigmoid(), inputs, tmp_path)


@pytest.mark.parametrize("name", list(flow))
def test_flow(name, tmp_path):
    module = small_module(flow[name], CODE, (1, 4, 4)).eval()
    inputs = [torch.randn(3, 16), torch.randn(3, CODE)]
    check_equal(lambda base, h: module.inverse(base, h).sigmoid(), inputs, tmp_path)
