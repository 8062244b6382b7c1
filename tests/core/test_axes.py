"""What `key=value` arguments of a sweep mean."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unbraid.config import combinations, parse_axes
from unbraid.errors import UsageError


@pytest.mark.parametrize(
    ("argument", "values"),
    [
        ("beta=1,2,4", [1, 2, 4]),
        ("beta=.5, 1e-3", [0.5, 1e-3]),
        ("seed=0:4", [0, 1, 2, 3]),
        ("seed=0:10:5,20", [0, 5, 20]),
        ("seed=3:0:-1", [3, 2, 1]),
        ("encoder.hidden=[16,16],[32,32]", [(16, 16), (32, 32)]),
        ("encoder.hidden=[16,16]", [(16, 16)]),
        ("clip=none,1", [None, 1]),
        ("data=sprites,sprites-small", ["sprites", "sprites-small"]),
        ("split=posX:0,1", ["posX:0,1"]),
    ],
)
def test_axes(argument, values):
    assert parse_axes([argument]) == {argument.partition("=")[0]: values}


@pytest.mark.parametrize(
    ("argument", "sentence"),
    [
        ("beta=", "has an empty value"),
        ("beta=1,,2", "has an empty value"),
        ("seed=0:0", "holds no value"),
        ("seed=5:2", "holds no value"),
        ("seed=0:5:0", "step of a range cannot be 0"),
        ("beta=0.5:2", "needs whole numbers"),
        ("beta=1,2,1.0", "has 1.0 twice"),
        ("encoder.hidden=[16,16", "bracket without its partner"),
        ("encoder.hidden=16],[2", "bracket without its partner"),
        ("seed=0:99999999999", "more than 1,000,000"),
        ("beta", "not of the form key=value"),
    ],
)
def test_wrong_axes_are_one_clear_sentence(argument, sentence):
    with pytest.raises(UsageError, match=sentence.replace(".", r"\.")):
        parse_axes([argument])


@given(st.lists(st.integers(-(10**6), 10**6), min_size=1, unique=True))
def test_lists_of_numbers_are_read_as_written(values):
    assert parse_axes([f"beta={','.join(map(str, values))}"])["beta"] == values


@given(st.integers(-50, 50), st.integers(1, 40), st.integers(1, 7))
def test_ranges_are_those_of_python(start, length, step):
    assert parse_axes([f"seed={start}:{start + length}:{step}"])["seed"] == list(range(start, start + length, step))


@given(st.dictionaries(st.sampled_from("abcd"), st.lists(st.integers(), min_size=1, max_size=4, unique=True)))
def test_every_combination_comes_once(axes):
    found = [tuple(sorted(each.items())) for each in combinations(axes)]
    assert len(set(found)) == len(found) == math.prod(len(values) for values in axes.values())
