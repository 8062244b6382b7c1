"""Data that every test of training may read."""

import pytest

from unbraid.data import load


@pytest.fixture(scope="session")
def sprites():
    return load("sprites-small")
