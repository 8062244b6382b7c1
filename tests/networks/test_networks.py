"""Networks against the papers' own descriptions."""

import pytest
import torch

from tests.support.messages import naming
from unbraid.errors import UsageError
from unbraid.networks import decoder, encoder
from unbraid.networks.base import halve_image
from unbraid.networks.broadcast import Patches


def test_broadcast_equals_the_tiled_form():
    """The tiled tensor of watters2019, written out."""
    module = decoder["broadcast-pixel"].make(8, (1, 5, 4))[0]
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


def test_patches_are_torchs_pixel_shuffle_and_add_nothing_to_old_configs():
    maps = torch.randn(2, 3 * 4, 5, 6)
    assert torch.equal(Patches(2)(maps), torch.nn.functional.pixel_shuffle(maps, 2))
    assert decoder["broadcast-pixel"].make(8, (3, 10, 12), patch=2)(torch.randn(2, 8)).shape == (2, 3, 10, 12)
    assert "patch" not in decoder["broadcast-pixel"].resolve({})
    with pytest.raises(UsageError, match=naming("broadcast-pixel", "3x3")):
        decoder["broadcast-pixel"].make(8, (1, 10, 12), patch=3)


CONVOLUTIONAL = ("locatello", "burgess", "daunhawer", "chen", "esmaeili", "infogan", "small", "wide")


@pytest.mark.parametrize("name", [*(f"conv-{each}" for each in CONVOLUTIONAL), "dcgan"])
@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 28, 40), (1, 96, 96), (3, 100, 75), (3, 128, 128)])
def test_convolutional_networks_take_any_sensible_size(name, shape):
    with torch.device("meta"):  # shapes only
        code = encoder[name].make(shape, {"z": 6}, **encoder[name].resolve({}))(torch.empty(2, *shape))
        image = decoder[name].make(6, shape, **decoder[name].resolve({}))(code)
    assert code.shape == (2, 6)
    assert image.shape == (2, *shape)


@pytest.mark.parametrize("shape", [(1, 7, 64), (9,)])
def test_tiny_images_and_vectors_have_no_convolutions(shape):
    with pytest.raises(UsageError, match=naming("conv-burgess", "8x8", shape)):
        encoder["conv-burgess"].make(shape, {"z": 6})


def test_larger_images_are_halved_more_often():
    found = {side: halve_image("x", (1, side, side)) for side in (28, 64, 96, 128)}
    assert {side: (maps.levels, maps.end[0]) for side, maps in found.items()} == {
        28: (2, 7),
        64: (4, 4),
        96: (4, 6),
        128: (5, 4),
    }
    assert found[128].spread([32, 32, 64, 64]) == [32, 32, 64, 64, 64]
    assert found[28].spread([32, 32, 64, 64]) == [32, 32]
