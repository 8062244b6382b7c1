"""Which rows come next: no repeats, fair draws, factors kept where they should be."""

import pytest
import torch
from scipy import stats

from unbraid import noise
from unbraid.data import Factor, FactorDataset, Pixels, load
from unbraid.data.sampling import Epochs, fixed_factor, pairs
from unbraid.data.splits import split
from unbraid.errors import UsageError


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


def test_fixed_factor_keeps_one_value_and_varies_the_others(sprites):
    for factor in range(3):
        values = sprites.values_of(fixed_factor(sprites, factor, 200, seed=0, draw=factor))
        distinct = [len(values[:, column].unique()) for column in range(3)]
        assert distinct[factor] == 1
        assert all(count > 1 for column, count in enumerate(distinct) if column != factor)


def test_fixed_factor_is_fair_on_tables():
    data = table([0] * 60 + [1] * 40)
    counts = torch.zeros(100)
    for draw in range(400):
        counts += torch.bincount(fixed_factor(data, 0, 50, seed=0, draw=draw), minlength=100)
    assert stats.chisquare(counts[:60].numpy()).pvalue > 1e-3
    assert stats.chisquare(counts[60:].numpy()).pvalue > 1e-3


def test_pairs_differ_only_where_they_say(sprites):
    first, second, changed = pairs(sprites, 500, differing=1, seed=0, draw=0)
    agree = sprites.values_of(first) == sprites.values_of(second)
    assert (agree | changed).all()
    assert (changed.sum(1) == 1).all()
    assert changed.any(0).all()
    with pytest.raises(UsageError, match="grid"):
        pairs(table([0, 1]), 5, 1, 0, 0)


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
