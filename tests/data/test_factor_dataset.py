"""Rows, factor values and storage."""

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from tests.support.messages import naming
from unbraid.data import Factor, FactorDataset, Pixels, pack_bits
from unbraid.data.file_formats import make_factors, sort_into_grid
from unbraid.errors import DataError, UsageError

SIZES = (3, 2, 4)
FACTORS = tuple(Factor(name, size) for name, size in zip("abc", SIZES, strict=True))


def grid():
    stored = torch.arange(24, dtype=torch.uint8)[:, None, None, None].expand(24, 1, 2, 2).contiguous()
    return FactorDataset("grid", Pixels(stored, (1, 2, 2)), FACTORS)


def table(rows=(23, 0, 5, 5, 17)):
    full = grid()
    index = torch.tensor(rows)
    pixels = Pixels(full.pixels.stored[index], full.shape)
    return FactorDataset("table", pixels, FACTORS, full.values_of(index), held_out=torch.tensor([1, 4]))


def test_grid_maps_both_ways():
    data = grid()
    index = torch.arange(24)
    values = data.values_of(index)
    assert torch.equal(data.index_of(values), index)
    assert values.tolist() == [list(v) for v in np.ndindex(*SIZES)]  # last factor fastest
    assert data.is_grid
    assert data.values_of(index.view(4, 6)).shape == (4, 6, 3)


def test_table_maps_both_ways_and_finds_the_first_row():
    data = table()
    index = torch.arange(5)
    assert torch.equal(data.index_of(data.values_of(index)), torch.tensor([0, 1, 2, 2, 4]))
    assert not data.is_grid


def test_missing_combination_is_an_error():
    with pytest.raises(DataError, match=naming("table", "[0, 0, 1]")):
        table().index_of(torch.tensor([[0, 0, 1]]))


def test_wrong_counts_are_errors():
    pixels = grid().pixels
    with pytest.raises(DataError, match=naming(12, 24)):
        FactorDataset("x", pixels, FACTORS[::2])
    with pytest.raises(DataError, match=naming("(24, 1)", "(24, 3)")):
        FactorDataset("x", pixels, FACTORS, torch.zeros(24, 1, dtype=torch.int64))


def test_unknown_factor_names_the_nearest():
    with pytest.raises(UsageError, match=naming("d", "grid")):
        grid().factor_position("d")
    assert grid().factor_position("c") == 2


@given(st.integers(1, 5), st.integers(1, 40), st.integers(0, 2**32 - 1))
def test_bits_are_numpys(count, pixels, seed):
    images = np.random.default_rng(seed).random((count, 1, pixels)) < 0.5
    packed = pack_bits(torch.from_numpy(images))
    assert (packed.numpy() == np.packbits(images.reshape(count, -1), axis=1)).all()
    back = Pixels(packed, (1, pixels), bits=True)[torch.arange(count)]
    assert back.dtype == torch.float32
    assert (back.numpy() == images).all()


def test_bytes_and_floats_become_float32():
    stored = torch.tensor([[0, 51], [255, 102]], dtype=torch.uint8)
    assert Pixels(stored, (2,))[torch.tensor([1, 0])].tolist() == [[1, pytest.approx(0.4)], [0, pytest.approx(0.2)]]
    floats = torch.tensor([[-3.5], [7.0]])
    assert Pixels(floats, (1,))[torch.tensor([1])].tolist() == [[7.0]]


def test_content_hash_sees_pixels_factors_and_shape():
    same, other = grid(), grid()
    assert same.content_hash() == other.content_hash()
    other.pixels.stored[3, 0, 0, 0] += 1
    assert same.content_hash() != other.content_hash()
    assert table().content_hash() != table((0, 23, 5, 5, 17)).content_hash()


def test_shuffled_complete_rows_become_a_grid():
    order = torch.randperm(24)
    full = grid()
    pixels = Pixels(full.pixels.stored[order], full.shape)
    shuffled = FactorDataset("s", pixels, FACTORS, full.values_of(order), held_out=(order >= 20).nonzero()[:, 0])
    made = sort_into_grid(shuffled)
    assert made.is_grid
    assert torch.equal(made.pixels.stored, full.pixels.stored)
    assert made.held_out.tolist() == [20, 21, 22, 23]


def test_incomplete_rows_stay_a_table():
    assert sort_into_grid(table()).table is not None
    assert sort_into_grid(table((*range(23), 0))).table is not None
    assert sort_into_grid(table(tuple(range(24)))).is_grid


def test_classes_are_positions_among_sorted_values():
    factors, classes = make_factors(("a", "b"), np.array([[0.5, 9], [0.1, 9], [0.5, 7]]).T)
    assert factors == (Factor("a", 2, (0.1, 0.5)), Factor("b", 2, (7, 9)))
    assert classes.tolist() == [[1, 1], [0, 1], [1, 0]]


def test_a_hash_is_taken_from_the_same_content_elsewhere(monkeypatch):
    data, copy = grid(), grid()
    copy.take_hash(data)
    monkeypatch.setattr(FactorDataset, "_digest", lambda self: pytest.fail("hashed again"))
    assert copy.content_hash() == data.content_hash()


def test_a_taken_hash_does_not_hide_a_later_write():
    data, copy = grid(), grid()
    copy.take_hash(data)
    copy.pixels.stored[0] = 9
    assert copy.content_hash() != data.content_hash()
