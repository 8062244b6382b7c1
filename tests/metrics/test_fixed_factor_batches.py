"""Batches and pairs that agree in one factor, from complete grids and from any other table."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from tests.support.evaluations import full_grid
from tests.support.messages import naming
from unbraid.errors import DataError, UsageError
from unbraid.metrics.arrays import to_tensor
from unbraid.metrics.intervention.fixed_factor_batches import (
    Population,
    gather_codes,
    read_fixable_factors,
    sort_rows,
)


def population(factors, **names):
    return Population(read_fixable_factors(factors, len(factors), **names))


def unbalanced(rows=300, seed=0):
    """No grid: values of different frequency, and combinations that do not occur."""
    rng = np.random.default_rng(seed)
    first = rng.choice(4, rows, p=[0.1, 0.2, 0.3, 0.4])
    return np.stack([first, (first + rng.integers(0, 3, rows)) % 5], axis=1)


@pytest.mark.parametrize("factors", [full_grid((3, 4, 5)), unbalanced()], ids=["grid", "table"])
def test_a_batch_shares_its_factor_and_varies_otherwise(factors):
    drawn = population(factors).draw_batches(np.random.default_rng(0), 500, 16)
    assert drawn.rows.shape == (500, 16)
    held = [len({factors[row, k] for row in rows}) for k, rows in zip(drawn.factor, drawn.rows, strict=True)]
    assert set(held) == {1}
    assert np.mean([len(set(rows)) for rows in drawn.rows.tolist()]) > 8


@pytest.mark.parametrize("factors", [full_grid((3, 4, 5)), unbalanced()], ids=["grid", "table"])
def test_a_pair_agrees_in_its_factor_and_each_pair_in_a_value_of_its_own(factors):
    pairs = population(factors).draw_pairs(np.random.default_rng(0), 400, 16)
    first = factors[pairs.first, pairs.factor[:, None]]
    second = factors[pairs.second, pairs.factor[:, None]]
    assert (first == second).all()
    assert np.mean([len(set(values)) for values in first.tolist()]) > 2


def test_draws_are_uniform_over_factors_and_over_rows():
    """Every row as often as every other, whichever factor is held: a value as often as it occurs."""
    factors = unbalanced()
    drawn = population(factors).draw_batches(np.random.default_rng(1), 60_000, 4)
    np.testing.assert_allclose(np.bincount(drawn.factor) / 60_000, 0.5, atol=0.01)
    for k in range(2):
        seen = np.bincount(drawn.rows[drawn.factor == k].ravel(), minlength=len(factors))
        np.testing.assert_allclose(seen / seen.sum() * len(factors), 1, atol=0.35)
        values = factors[drawn.rows[drawn.factor == k, 0], k]
        np.testing.assert_allclose(np.bincount(values) / len(values), np.bincount(factors[:, k]) / 300, atol=0.02)


def test_both_sides_of_a_pair_are_uniform_over_rows():
    factors = unbalanced()
    pairs = population(factors).draw_pairs(np.random.default_rng(1), 60_000, 2)
    for side in (pairs.first, pairs.second):
        seen = np.bincount(side.ravel(), minlength=len(factors))
        np.testing.assert_allclose(seen / seen.sum() * len(factors), 1, atol=0.25)


def test_a_value_of_one_row_alone_is_never_drawn():
    factors = np.array([[0, 0], [0, 1], [1, 0], [2, 1], [2, 1]])
    drawn = population(factors).draw_batches(np.random.default_rng(0), 2_000, 3)
    assert set(drawn.rows[drawn.factor == 0].ravel()) == {0, 1, 3, 4}
    assert set(drawn.rows[drawn.factor == 1].ravel()) == {0, 1, 2, 3, 4}
    with pytest.raises(DataError, match="size"):
        population(np.array([[0, 0], [1, 0], [2, 1]]), names=["size", "hue"])


@settings(max_examples=30)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), min_size=12, max_size=40).filter(
        lambda table: all(len(set(column)) > 1 for column in zip(*table, strict=True))
    ),
    st.integers(0, 99),
)
def test_any_table_gives_rows_that_exist_and_agree(table, seed):
    factors = np.array(table)
    drawn = population(factors).draw_batches(np.random.default_rng(seed), 50, 5)
    values = factors[drawn.rows, drawn.factor[:, None]]
    assert (values == values[:, :1]).all()


def test_the_same_seed_draws_the_same_rows():
    one, same, other = (population(unbalanced()).draw_batches(np.random.default_rng(s), 20, 8).rows for s in (3, 3, 4))
    assert (one == same).all()
    assert (one != other).any()


@pytest.mark.parametrize("size", [3, 2**16, 2**16 + 1])
def test_rows_are_sorted_by_value(size):
    column = np.random.default_rng(0).integers(0, size, 1_000)
    column[:2] = 0, size - 1
    order, counts = sort_rows(column, size)
    assert (np.diff(column[order]) >= 0).all()
    assert sorted(order) == list(range(1_000))
    assert (counts == np.bincount(column)).all()


def test_continuous_factors_are_refused():
    factors = np.stack([np.random.default_rng(0).random(200), np.arange(200) % 4], axis=1)
    with pytest.raises(UsageError, match=naming("angle", "continuous", "bins")):
        read_fixable_factors(factors, 200, names=["angle", "hue"])
    with pytest.raises(UsageError, match="bins"):
        read_fixable_factors(factors[:, 0], 200)
    words = np.array([["red", "round"], ["blue", "round"], ["red", "square"], ["blue", "square"]])
    assert read_fixable_factors(words, 4).sizes == (2, 2)


def test_codes_come_in_chunks_and_are_checked(monkeypatch):
    codes = to_tensor("codes", np.arange(12.0).reshape(6, 2).astype(np.float32))
    assert codes.dtype == torch.float64
    rows = np.array([[0, 5], [1, 1], [2, 3]], dtype=np.int32)
    whole = torch.cat(list(gather_codes(codes, rows)))
    monkeypatch.setattr("unbraid.metrics.intervention.fixed_factor_batches.MAX_GATHERED_VALUES", {"cpu": 1})
    assert torch.equal(torch.cat(list(gather_codes(codes, rows))), whole)
    assert torch.equal(whole[0, 1], codes[5])
    with pytest.raises(DataError, match="NaN"):
        to_tensor("codes", [[0.0, float("nan")], [1.0, 2.0]])


@pytest.mark.gpu
def test_codes_on_a_gpu_stay_there_and_are_checked():
    assert to_tensor("codes", torch.ones(3, 2, device="cuda")).is_cuda
    with pytest.raises(DataError, match="NaN"):
        to_tensor("codes", torch.full((3, 2), float("nan"), device="cuda"))
    with pytest.raises(UsageError, match="shape"):
        to_tensor("codes", torch.ones(3, device="cuda"))
