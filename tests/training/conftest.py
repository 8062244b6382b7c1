"""Data that every test of training may read."""

import pytest


@pytest.fixture(scope="session")
def sprites():
    from unbraid.data import load  # not above: the process that only hands tests to workers reads this file, too

    return load("sprites-small")
