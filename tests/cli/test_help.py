"""Help, completion and listings, and what importing the package imports."""

import json
import os
import re
import subprocess
import sys

import pytest

from tests.support.command import SOURCE, unbraid
from tests.support.messages import names


def test_importing_what_trains_imports_no_compiler():
    code = (
        "import sys, unbraid; unbraid.train, unbraid.sweep; assert not {'triton', 'torch._inductor'} & set(sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": SOURCE}
    )
    assert done.returncode == 0, done.stderr


def test_help_imports_no_torch_and_shows_an_example():
    code = "import sys, unbraid.cli\nsys.argv = ['unbraid', '--help']\n"
    code += "try:\n    unbraid.cli.main()\nexcept SystemExit:\n    pass\n"
    code += "assert not {'torch', 'numpy', 'scipy'} & set(sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": SOURCE}
    )
    assert done.returncode == 0, done.stderr
    assert "unbraid train beta-tcvae" in " ".join(done.stdout.split())
    for command in ("demo", "train", "sweep", "evaluate", "report", "reproduce", "list", "data"):
        assert command in done.stdout
    assert not re.search(r"[\w,]\.\.\.$", done.stdout, re.MULTILINE)  # summaries end at a clause


@pytest.mark.parametrize(
    "command",
    [
        ["train"],
        ["sweep"],
        ["evaluate"],
        ["report"],
        ["reproduce"],
        ["list"],
        ["demo"],
        ["data", "fetch"],
        ["data", "check"],
    ],
)
def test_every_command_helps_with_an_example(command):
    assert re.search(r"Examples?: +unbraid ", unbraid(*command, "--help"))


@pytest.mark.parametrize("kind", ["objectives", "networks", "datasets", "metrics", "likelihoods"])
def test_listings(kind):
    rows = json.loads(unbraid("list", kind, "--json"))
    assert rows
    assert all(row["name"] and row["what"].endswith(".") for row in rows)


def test_data_listing_and_check():
    rows = json.loads(unbraid("data", "list", "--json"))
    assert {"sprites", "mnist", "images"} <= {row["name"] for row in rows}
    assert json.loads(unbraid("data", "check", "sprites", "--json"))[0]["state"] == "made"


@pytest.mark.parametrize("name", ["images", "array", "table", "paired"])
def test_files_of_ones_own_are_not_made(name):
    (row,) = json.loads(unbraid("data", "check", name, "--json"))
    assert names(row["what"], name, "your own files")
    assert names(unbraid("data", "fetch", name, code=2), name, "your own files")


def test_completion_knows_the_recipes():
    from unbraid.cli import registered_names
    from unbraid.data import dataset
    from unbraid.methods import objective
    from unbraid.metrics import metric

    assert registered_names("methods", "objective|preset") == list(objective)
    assert registered_names("data", "dataset") == list(dataset)
    assert registered_names("metrics", r"\w*metric\w*") == sorted(metric)


def test_train_help_names_every_setting():
    from unbraid.config import Training

    told = unbraid("train", "--help")
    assert all(name in told for name in [*Training.fields(), "network", "likelihood", "decoder"])
