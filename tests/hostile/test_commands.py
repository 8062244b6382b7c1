"""Hostile arguments of every command that reads runs or data, on the command line."""

from pathlib import Path

import pytest

from tests.hostile.arena import read_tree, some_quick
from tests.hostile.command_table import fill_words, list_cases

CASES = list_cases()
KEPT = ("config.yaml", "model.safetensors", "status.json", "data.json", "history.jsonl", "environment.json")


@pytest.mark.parametrize("number", some_quick(len(CASES), every=60))
def test_commands(arena, number):
    words = fill_words(arena, CASES[number])
    before = read_tree(arena.folder)
    kept = [name for name in before if not (arena.folder / name).is_symlink()]  # a link may be replaced by a file
    arena.attack(*words, succeeds=None)
    after = read_tree(arena.folder)
    inputs = [name for name in kept if name.startswith("input/") or name.rpartition("/")[2] in KEPT]
    assert [name for name in inputs if after.get(name) != before[name]] == []
    assert not Path("/dev/full").is_file(), "a device was replaced"
