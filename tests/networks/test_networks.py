"""Networks against the papers' own descriptions."""

import pytest
import torch

from unbraid.networks import decoder, encoder


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
