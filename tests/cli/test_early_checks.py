"""Misspelt names are refused before torch is imported, in the words that the registries would use."""

import importlib.metadata
import json
import os
import subprocess
import sys

import pytest

from tests.support.command import SOURCE, unbraid
from tests.support.messages import names, naming
from unbraid.cli.early_checks import check_recipes, check_settings
from unbraid.errors import UsageError
from unbraid.methods import objective
from unbraid.training.configure import list_settings

MISTAKES = [
    ["train", "beta-tcvaee"],
    ["train", "vae", "data=spritess"],
    ["train", "vae", "data=no/folder"],
    ["sweep", "vae,beta-tcvaee"],
    ["sweep", "vae", "--metric", "migg"],
    ["sweep", "vae", "--metric", "mig/exactt"],
    ["reproduce", "chen2018/fig99"],
    ["reproduce", "chen2019"],
    ["evaluate", "nothing"],
    ["evaluate", "demo", "--metric", "migg"],
    ["report", "nothing"],
    ["report", "."],
    ["explore", "nothing"],
    ["encode", "n" * 300],
    ["data", "fetch", "mnistt"],
    ["data", "check", "mnistt"],
    ["data", "show", "mnistt"],
    ["advise", "mnistt"],
]

PROGRAM = """
import contextlib, io, json, sys
from unbraid.cli import main

told = []
for arguments in json.loads(sys.argv[1]):
    sys.argv = ["unbraid", *arguments]
    with contextlib.redirect_stderr(io.StringIO()) as err, contextlib.suppress(SystemExit):
        main()
    assert "torch" not in sys.modules, arguments
    told.append(err.getvalue())
print(json.dumps(told))
"""


def tell_without_torch(commands, cwd):
    """Return what each command prints to stderr, in a process that must not import torch."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(commands)],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": SOURCE},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_mistakes_are_told_before_torch_is_imported_in_the_same_words(tmp_path):
    for arguments, told in zip(MISTAKES, tell_without_torch(MISTAKES, tmp_path), strict=True):
        run_errors = ("nothing", ".")
        assert told == unbraid(*arguments, cwd=tmp_path, code=1 if arguments[1] in run_errors else 2)


def test_misspelt_common_settings_are_told_before_torch_is_imported(tmp_path):
    told = tell_without_torch([["train", "vae", "stepss=10"], ["sweep", "vae", "sed=0:3"]], tmp_path)
    assert names(told[0], "stepss", "steps", "unbraid show vae")
    assert names(told[1], "sed", "seed")


def test_no_setting_of_a_recipe_is_taken_for_a_mistake():
    for recipe in objective:
        check_settings.__wrapped__(recipe, [*list_settings(recipe), "encoder.widht", "vae.latents", "data_size"])


def test_plugins_may_know_more_names(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch")
    with pytest.raises(UsageError, match=naming("from-a-plugin")):
        check_recipes(["from-a-plugin"])
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: ["a plugin"])
    check_recipes(["from-a-plugin"])
