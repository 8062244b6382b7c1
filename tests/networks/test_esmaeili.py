"""Networks of esmaeili2018 against its tables 3 to 5, counted by hand."""

import pytest
import torch
from torch import nn

from tests import contracts
from unbraid.networks import decoder, encoder, esmaeili

NAMES = ("mlp-esmaeili-28", "mlp-esmaeili-64", "conv-esmaeili")
SHAPES = {"mlp-esmaeili-28": (1, 28, 28), "mlp-esmaeili-64": (1, 64, 64), "conv-esmaeili": (3, 64, 64)}


def outputs(normal: int, classes: int) -> dict[str, int]:
    return {"z.mean": normal, "z.log_variance": normal, "c.logits": classes}


def linear(width_in: int, width_out: int) -> int:
    return width_in * width_out + width_out


def convolution(channels_in: int, channels_out: int) -> int:
    """Kernel 4x4, a bias, and, but for the image, the scale and shift of a BatchNorm."""
    return 16 * channels_in * channels_out + channels_out + (2 * channels_out if channels_out != 3 else 0)


TABLE_3 = linear(784, 400) + 2 * (linear(400, 200) + linear(200, 10)) + linear(400, 10)
TABLE_4 = linear(4096, 1200) + linear(1200, 1200) + 2 * (linear(1200, 400) + linear(400, 10)) + linear(1200, 3)
TABLE_5 = convolution(3, 32) + convolution(32, 32) + convolution(32, 64) + convolution(64, 64)
TABLE_5 += 2 * (linear(1024, 256) + linear(256, 20)) + linear(1024, 2)


@pytest.mark.parametrize(
    ("name", "normal", "classes", "count"),
    [
        ("mlp-esmaeili-28", 10, 10, TABLE_3),
        ("mlp-esmaeili-64", 10, 3, TABLE_4),
        ("conv-esmaeili", 20, 2, TABLE_5),
    ],
)
def test_encoders_have_the_papers_sizes(name, normal, classes, count):
    module = encoder[name].make(SHAPES[name], outputs(normal, classes))
    assert sum(p.numel() for p in module.parameters()) == count


@pytest.mark.parametrize(
    ("name", "code", "count"),
    [
        ("mlp-esmaeili-28", 20, linear(20, 200) + linear(200, 400) + linear(400, 784)),
        ("mlp-esmaeili-64", 13, linear(13, 400) + linear(400, 1200) + linear(1200, 1200) + linear(1200, 4096)),
        (
            "conv-esmaeili",
            22,
            linear(22, 256)
            + linear(256, 1024)
            + sum(convolution(a, b) for a, b in [(64, 64), (64, 32), (32, 32), (32, 3)]),
        ),
    ],
)
def test_decoders_have_the_papers_sizes(name, code, count):
    module = decoder[name].make(code, SHAPES[name])
    assert sum(p.numel() for p in module.parameters()) == count


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("mlp-esmaeili-28", [nn.ReLU, nn.ReLU]),
        ("mlp-esmaeili-64", [nn.Tanh, nn.Tanh, nn.Tanh]),
        ("conv-esmaeili", [nn.ReLU, nn.Tanh, nn.ReLU, nn.ReLU, nn.ReLU]),
    ],
)
def test_decoders_have_the_papers_activations(name, kinds):
    layers = decoder[name].make(13, SHAPES[name]).modules()
    assert [type(m) for m in layers if isinstance(m, nn.ReLU | nn.Tanh)] == kinds


def test_outputs_come_in_order_from_their_own_heads():
    """Mean and log variance through a hidden layer of their own, logits straight from the 400, written out."""
    wanted = {"c.logits": 3, "z.mean": 2, "z.log_variance": 2, "b.logits": 1}
    module = encoder["mlp-esmaeili-28"].make((1, 28, 28), wanted)
    first, heads = module.trunk[1], list(module.heads)
    x = torch.rand(5, 1, 28, 28)
    features = (x.reshape(5, 784) @ first.weight.T + first.bias).relu()

    def branch(head: nn.Sequential) -> torch.Tensor:
        return head[2]((features @ head[0].weight.T + head[0].bias).relu())

    assert [head[0].weight.shape for head in heads[1:3]] == [(200, 400)] * 2
    expected = [heads[0](features), branch(heads[1]), branch(heads[2]), heads[3](features)]
    torch.testing.assert_close(module(x), torch.cat(expected, dim=1))


@pytest.mark.parametrize("name", NAMES)
def test_no_logits_no_head(name):
    module = encoder[name].make(SHAPES[name], {"z.mean": 4, "z.log_variance": 4})
    assert isinstance(module, esmaeili.Branches)
    assert len(module.heads) == 2
    assert all(isinstance(head, nn.Sequential) for head in module.heads)


@pytest.mark.parametrize("channels", [1, 3])
def test_conv_takes_grey_and_colour(channels):
    shape = (channels, 64, 64)
    assert encoder["conv-esmaeili"].make(shape, outputs(20, 2))(torch.rand(2, *shape)).shape == (2, 42)
    assert decoder["conv-esmaeili"].make(22, shape)(torch.rand(2, 22)).shape == (2, *shape)


@pytest.mark.parametrize("side", ["encoder", "decoder"])
@pytest.mark.parametrize("name", NAMES)
def test_contract(side, name):
    contracts.check_network(side, name)
