"""What `key=value` arguments of a sweep mean."""

import math

import pytest
from hypothesis import given, strategies as st

from tests.support.messages import naming
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
    ("argument", "facts"),
    [
        ("beta=", ["beta"]),
        ("beta=1,,2", ["beta=1,,2"]),
        ("seed=0:0", ["0:0"]),
        ("seed=5:2", ["5:2"]),
        ("seed=0:5:0", ["0:5:0"]),
        ("beta=0.5:2", ["0.5:2"]),
        ("beta=1,2,1.0", ["beta=1,2,1.0"]),
        ("encoder.hidden=[16,16", ["bracket"]),
        ("encoder.hidden=16],[2", ["bracket"]),
        ("seed=0:99999999999", ["0:99999999999", "1,000,000"]),
        ("beta", ["beta", "key=value"]),
    ],
)
def test_wrong_axes_are_named(argument, facts):
    with pytest.raises(UsageError, match=naming(*facts)):
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
