"""The kernel that lays out weights along the axis that a product sums, against torch's copies."""

import importlib

import pytest
import torch

from tests.support.launches import note_launches

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture
def layout(monkeypatch):
    return note_launches(monkeypatch, "unbraid.networks.weight_layout")


def along(layout, weight: torch.Tensor) -> None:
    made = layout.along_inputs(weight)
    assert made.shape == weight.shape and torch.equal(made, weight)
    assert made.movedim(1, -1).is_contiguous()


@pytest.mark.parametrize("channels", [(32, 64), (64, 32), (5, 20), (70, 130), (1, 1)])
def test_copies_equal_the_weight(layout, channels):
    c, n = channels
    last = torch.randn(2, c, 4, 3, n, device=DEVICE).movedim(-1, 2)  # channels last, as weights are
    along(layout, last)
    along(layout, last.contiguous())
    along(layout, torch.randn(1, c, n, 4, 3, device=DEVICE).expand(2, -1, -1, -1, -1))
    assert [name for name, _ in layout.launched] == ["_transpose"] * (3 if channels != (1, 1) else 1)


def test_nothing_is_copied_without_need_and_odd_layouts_by_torch(layout, monkeypatch):
    ready = torch.randn(2, 8, 4, 4, 6, device=DEVICE).movedim(-1, 1)
    assert layout.along_inputs(ready).data_ptr() == ready.data_ptr()
    along(layout, torch.randn(2, 6, 8, 4, 4, device=DEVICE).mT)
    monkeypatch.setattr(importlib.import_module("unbraid.networks.conv_tiles"), "TRANSPOSES_WEIGHTS", False)
    along(layout, torch.randn(2, 6, 8, 4, 4, device=DEVICE))
    assert not layout.launched


def test_products_use_it_in_float32(layout):
    kernels = importlib.import_module("unbraid.networks.conv_kernels")
    x, weight = torch.randn(1, 2, 3, 3, 16, device=DEVICE), torch.randn(1, 16, 32, 4, 4, device=DEVICE)
    out = x.new_full((1, 2, 6, 6, 32), torch.nan)
    kernels.launch_product(True, x, weight, out, 2, 1, torch.float32, kernels.Epilogue(None, False, None))
    expected = torch.nn.functional.conv_transpose2d(x[0].permute(0, 3, 1, 2), weight[0], stride=2, padding=1)
    torch.testing.assert_close(out[0].permute(0, 3, 1, 2), expected, rtol=1e-3, atol=1e-3)
    assert [name for name, _ in layout.launched] == ["_transpose"]
