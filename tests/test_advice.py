"""Advice names what is in the data, fits a recipe to them, measures this machine, and gives commands that work."""

import shlex

import numpy as np
import pytest
from PIL import Image

from tests.support.command import unbraid
from tests.support.messages import names
from unbraid import advice
from unbraid.advice import advise
from unbraid.cli.train import list_next_steps
from unbraid.config import parse_overrides
from unbraid.data import from_array, from_arrays

RANDOM = np.random.default_rng(0)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "my photos").mkdir()
    for number in range(24):
        picture = RANDOM.integers(0, 256, (12, 9), dtype=np.uint8)
        Image.fromarray(picture).save(tmp_path / "my photos" / f"{number}.png")
    return tmp_path / "my photos"


def test_the_command_prints_facts_settings_time_and_commands(folder):
    text = unbraid("advise", folder, "--device", "cpu")
    assert names(text, "24 rows", "9x12 pixels", "grey", "beta-tcvae", "encoder=conv-small", "steps=1000", "cpu")
    commands = [line.split("   #")[0].strip() for line in text.splitlines() if line.strip().startswith("unbraid ")]
    assert [shlex.split(command)[1] for command in commands] == ["train", "evaluate", "report", "explore", "sweep"]
    assert f"data={folder}" in shlex.split(commands[0])  # quoted, because of the space


def test_named_data_get_settings_in_the_command():
    advice = advise("sprites-small", "cpu")
    train = next(iter(advice.commands))
    given = parse_overrides(word for word in shlex.split(train)[3:] if "=" in word)
    assert given.pop("data") == "sprites-small"
    assert given == {each.name: each.value for each in advice.settings}
    assert advice.seconds > 0


class Machine:
    """A clock and a training state whose steps take the given seconds."""

    def __init__(self, seconds):
        self.now, self.seconds = 0.0, iter(seconds)

    def monotonic(self):
        return self.now

    def advance(self):
        self.now += next(self.seconds)


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        ([9.0] + [0.01] * 30, 0.01),  # the first step compiles
        ([9.0] + [0.05] * 12 + [0.01] * 8 + [0.2] * 10, 0.01),  # another program runs before and after
        ([9.0, 4.0], 4.0),  # one step takes longer than all may
        ([9.0, 0.9, 0.9, 0.6, 0.9], 0.6),  # slow steps are measured one by one
    ],
)
def test_other_programs_do_not_make_the_estimate_longer(monkeypatch, seconds, expected):
    machine, data = Machine(seconds), from_array(RANDOM.random((40, 3)))
    monkeypatch.setattr(advice, "time", machine)
    monkeypatch.setattr(advice, "prepare", lambda config, dataset: machine)
    found = advise(data, "cpu")
    assert found.seconds / found.steps == pytest.approx(expected)


def test_missing_cells_and_labels_are_found():
    rows = {"size": [[1.0, 2.0], None] * 20, "pet": ["cat", "dog"] * 20}
    advice = advise(from_arrays(rows), "cpu")
    assert advice.recipe == "partitioned-mvae"
    assert names("\n".join(advice.found), "size", "empty in 20 rows", "pet", "cat", "dog", 2)
    labels = np.array([[0, 1], [2, -1]] * 20)
    labelled = advise(from_array(RANDOM.random((40, 3)), factors=labels, factor_names=["a", "b"]), "cpu")
    assert names("\n".join(labelled.found), "factor a", "factor b", "unknown in 20 rows", "vector of 3")
    assert names("\n".join(labelled.notes), "b", "s2-beta-vae")


def test_the_demo_says_how_to_go_on(monkeypatch, tmp_path):
    monkeypatch.setattr("sys.prefix", str(tmp_path / ".venv"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    lines = list_next_steps("explore.html")
    assert lines[0].startswith("source .venv/bin/activate")
    assert names("\n".join(lines), "explore.html", "unbraid advise", "data=my/folder")
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path / ".venv"))
    assert not any("activate" in line for line in list_next_steps("explore.html"))
