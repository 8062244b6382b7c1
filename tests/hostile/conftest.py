"""The arena of a hostile case, and a finished run that is trained once."""

import json

import pytest

from tests.hostile.arena import CPU, TINY, Arena
from tests.support.command import unbraid


@pytest.fixture(scope="session")
def template(tmp_path_factory):
    """The folder of a finished run of the smallest settings, with one score."""
    made = tmp_path_factory.mktemp("template")
    shown = json.loads(unbraid("train", "beta-vae", *TINY, "--json", *CPU, cwd=made))
    unbraid("evaluate", made / shown["run"], "--metric", "units", *CPU)
    return made / shown["run"]


@pytest.fixture
def arena(tmp_path, template, record_property):
    record_property("hostile cases", 1)
    return Arena(tmp_path / "arena", template)
