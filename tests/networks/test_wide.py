"""Widened networks: as many parameters as asked for, and the plain network where that has as many."""

import pytest
import torch

from tests.support.messages import naming
from tests.support.networks import count
from unbraid.errors import UsageError
from unbraid.latents import Normal, Space
from unbraid.networks import decoder, encoder
from unbraid.networks.base import count_parameters
from unbraid.networks.wide import wide_settings

SPACE = Space({"z": Normal(size=15)})


def both(wanted, shape):
    settings = wide_settings(wanted, shape, SPACE.outputs, SPACE.width)
    assert settings["network"] == "conv-wide"
    with torch.device("meta"):
        one = encoder["conv-wide"].make(shape, SPACE.outputs, parameters=settings["encoder.parameters"])
        other = decoder["conv-wide"].make(SPACE.width, shape, parameters=settings["decoder.parameters"])
    return one, other


@pytest.mark.parametrize("shape", [(3, 64, 64), (1, 28, 28), (3, 32, 32)])
@pytest.mark.parametrize("wanted", [150_000, 2_345_678, 11_000_001, 60_000_000])
def test_both_sides_together_have_the_number_that_is_asked_for(shape, wanted):
    one, other = both(wanted, shape)
    assert count(one) + count(other) == pytest.approx(wanted, rel=0.01)
    channels = [m.out_channels for m in one.modules() if isinstance(m, torch.nn.Conv2d)]
    assert all(width % 8 == 0 for width in channels)


@pytest.mark.parametrize(("plain", "shape"), [("conv-locatello", (3, 64, 64)), ("conv-small", (1, 28, 28))])
def test_the_plain_network_is_widened_to_itself(plain, shape):
    torch.manual_seed(0)
    original = encoder[plain].make(shape, SPACE.outputs), decoder[plain].make(SPACE.width, shape)
    sizes = [count_parameters(module) for module in original]
    torch.manual_seed(0)
    same = (
        encoder["conv-wide"].make(shape, SPACE.outputs, parameters=sizes[0]),
        decoder["conv-wide"].make(SPACE.width, shape, parameters=sizes[1]),
    )
    inputs = torch.rand(2, *shape), torch.randn(2, SPACE.width)
    for first, second, x in zip(original, same, inputs, strict=True):
        torch.testing.assert_close(first(x), second(x), rtol=0, atol=0)  # counting draws no weights
    settings = wide_settings(sum(sizes), shape, SPACE.outputs, SPACE.width)
    assert [settings["encoder.parameters"], settings["decoder.parameters"]] == sizes


def test_too_few_parameters_are_refused():
    with pytest.raises(UsageError, match=naming("conv-wide", "parameters", 100)):
        encoder["conv-wide"].make((3, 64, 64), SPACE.outputs, parameters=100)
