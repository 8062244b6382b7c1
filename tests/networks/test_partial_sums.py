"""The kernel that adds partial sums of weight gradients, against torch's sums."""

import importlib

import pytest
import torch

from tests.support.launches import note_launches

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture
def sums(monkeypatch):
    return note_launches(monkeypatch, "unbraid.networks.partial_sums")


@pytest.mark.parametrize("shape", [(4, 2, 544), (3, 1, 1024), (2, 3, 1025), (32, 1, 7), (4, 2, 4, 528), (1, 2, 4, 33)])
def test_equal_torchs_sums(sums, shape):
    parts = torch.randn(shape, device=DEVICE)
    made = sums.add_parts(parts)
    assert [constants["PARTS"] for _, constants in sums.launched] == [shape[0]]
    expected = parts.double().sum(0 if len(shape) == 3 else (0, 2))
    torch.testing.assert_close(made.double(), expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(made, sums.add_parts(parts))


def test_one_part_is_the_sum_and_many_are_added_by_torch(sums, monkeypatch):
    parts = torch.randn(33, 2, 5, device=DEVICE)
    assert sums.add_parts(parts[:1]).data_ptr() == parts.data_ptr()
    torch.testing.assert_close(sums.add_parts(parts), parts.sum(0))
    monkeypatch.setattr(importlib.import_module("unbraid.networks.conv_tiles"), "ADDS_PARTS", False)
    torch.testing.assert_close(sums.add_parts(parts[:4]), parts[:4].sum(0))
    assert not sums.launched
