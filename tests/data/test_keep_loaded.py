"""Within `keep_loaded` a data set is loaded once."""

import pytest

from unbraid.data import keep_loaded, load
from unbraid.data.base import MAX_KEPT


def test_a_data_set_is_loaded_again_outside_and_once_inside():
    assert load("sprites-small") is not load("sprites-small")
    with keep_loaded():
        first = load("sprites-small")
        assert load("sprites-small") is first
        with keep_loaded():
            assert load("sprites-small") is first
        assert load("sprites-small") is first
    assert load("sprites-small") is not first


def test_other_settings_are_other_data():
    with keep_loaded():
        assert len(load("pendulum", {"rows": 16})) == 16
        assert len(load("pendulum", {"rows": 24})) == 24


def test_only_the_last_ones_are_kept():
    with keep_loaded():
        first = load("pendulum", {"rows": 16})
        others = [load("pendulum", {"rows": 17 + k}) for k in range(MAX_KEPT)]
        assert load("pendulum", {"rows": 16}) is not first
        assert load("pendulum", {"rows": 17 + MAX_KEPT - 1}) is others[-1]


def test_nothing_is_kept_after_an_error():
    with pytest.raises(RuntimeError), keep_loaded():
        first = load("sprites-small")
        raise RuntimeError
    assert load("sprites-small") is not first
