"""A trained run for the tests of commands; each file has its own."""

import json
from pathlib import Path

import pytest

from tests.cli.shared import SMALL
from tests.support.command import unbraid


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("cli")
    told = json.loads(unbraid("train", "beta-tcvae", *SMALL, "--json", "--device", "cpu", cwd=made))
    assert told["step"] == 30
    assert Path(made / told["run"]).name == told["id"]
    return made / told["run"]
