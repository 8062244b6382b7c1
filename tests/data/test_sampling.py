"""Rows of batches and splits: no repeats, and nothing left out."""

import pytest
import torch

from unbraid import noise
from unbraid.data import Factor, FactorDataset, Pixels, load
from unbraid.data.sampling import Epochs
from unbraid.data.splits import split


@pytest.fixture(scope="module")
def sprites():
    return load("sprites-small")


def table(values, size=2):
    column = torch.tensor(values)[:, None]
    images = torch.arange(len(values), dtype=torch.uint8)[:, None, None, None].expand(-1, 1, 2, 2)
    return FactorDataset("table", Pixels(images, (1, 2, 2)), (Factor("kind", size),), column)


def test_an_epoch_holds_every_row_once_and_no_batch_repeats_one():
    epochs = Epochs(10, 3, noise.seed_tensor(0, 1))
    for epoch in range(3):
        rows = torch.cat([epochs[epoch * 3 + position] for position in range(3)], dim=1)
        assert rows.shape == (2, 9)
        assert all(len(set(member.tolist())) == 9 for member in rows)
    assert not torch.equal(epochs[0], epochs[3])
    assert torch.equal(Epochs(10, 3, noise.seed_tensor(0, 1))[4], epochs[4])


@pytest.mark.parametrize(("rule", "held_out"), [("none", 0), ("default", 0), (0.25, 384), ("posX:0,15", 192)])
def test_splits_are_disjoint_and_complete(sprites, rule, held_out):
    made = split(sprites, rule)
    outside = torch.zeros(0, dtype=torch.int64) if made.held_out is None else made.held_out
    assert len(outside) == held_out
    if held_out:
        assert torch.equal(torch.cat([made.train, outside]).sort().values, torch.arange(len(sprites)))


def test_content_hash_tells_splits_and_names_apart():
    data = table([0, 1, 0, 1])
    others = [
        FactorDataset("table", data.pixels, data.factors, data.table, held_out=torch.tensor([1])),
        FactorDataset("table", data.pixels, (Factor("sort", 2),), data.table),
        table([0, 1, 1, 1]),
    ]
    assert len({data.content_hash(), *(other.content_hash() for other in others)}) == 4
    assert table([0, 1, 0, 1]).content_hash() == data.content_hash()
