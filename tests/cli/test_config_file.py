"""`unbraid train --config FILE`: the config of a run once more, with changes from the command line."""

import json
import os
import signal

import pytest
import yaml

import unbraid.cli.train as commands
from tests.cli.shared import is_one_error
from tests.support.command import unbraid
from tests.support.messages import names
from tests.support.sweeps import sweep
from unbraid.training import loop
from unbraid.training.state import State


def train(*words, cwd):
    return json.loads(unbraid("train", *words, "--json", "--device", "cpu", cwd=cwd))


def test_a_config_is_trained_again(folder, tmp_path):
    again = train("--config", folder / "config.yaml", cwd=tmp_path)
    assert again["id"] == folder.name
    same = train("--config", folder, "--name", "other", cwd=tmp_path)
    assert same["id"] == folder.name
    assert names(unbraid("train", "--config", folder, cwd=tmp_path), "finished already")


def stop_after_a_step(command, cwd, monkeypatch):
    """Run a command that is interrupted after its first step."""

    def advance_and_stop(self, advance=State.advance):
        advance(self)
        os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(State, "advance", advance_and_stop)
        return unbraid(*command, cwd=cwd, code=130)


def test_resume_continues_the_run_of_a_config(folder, tmp_path, monkeypatch):
    stop_after_a_step(["train", "--config", folder, "--name", "cut", "--device", "cpu"], tmp_path, monkeypatch)
    cut = tmp_path / "runs/cut"
    said = []
    monkeypatch.setattr(loop, "announce", said.append)
    for given in ("runs/cut/config.yaml", cut):
        assert train("--config", given, "--resume", cwd=tmp_path)["run"] in ("runs/cut", str(cut))
    assert len(said) == 1, "the second call finds a finished run"
    assert names(said[0], "runs/cut", "continues", "step 1")
    assert [each.name for each in (tmp_path / "runs").iterdir()] == ["cut"]


def test_resume_with_other_settings_is_another_run_and_says_so(folder, tmp_path, monkeypatch):
    train("--config", folder, "--name", "cut", cwd=tmp_path)
    said = []
    monkeypatch.setattr(commands, "announce", said.append)
    other = train("--config", "runs/cut/config.yaml", "seed=3", "--resume", cwd=tmp_path)
    assert other["run"] != "runs/cut"
    assert names(said[0], "seed", "runs/cut", "not continued")
    copy = tmp_path / "config.yaml"
    copy.write_bytes((folder / "config.yaml").read_bytes())
    assert train("--config", copy, "--resume", cwd=tmp_path)["run"] == f"runs/{folder.name}", "a copy has no run"


def test_settings_of_the_command_line_win(folder, tmp_path):
    changed = train("seed=3", "steps=4", "encoder.hidden=[8]", "--config", folder / "config.yaml", cwd=tmp_path)
    before = yaml.safe_load((folder / "config.yaml").read_text())
    after = yaml.safe_load((tmp_path / changed["run"] / "config.yaml").read_text())
    assert (after["training"].pop("seed"), after["training"].pop("steps")) == (3, 4)
    assert after["encoder"].pop("hidden") == [8]
    del before["training"]["seed"], before["training"]["steps"], before["encoder"]["hidden"]
    assert after == before


def test_settings_that_followed_from_the_data_are_kept(tmp_path):
    rows = "\n".join(f"{row},{row * row % 7},{row % 3}" for row in range(60))
    (tmp_path / "table.csv").write_text(f"a,b,c\n{rows}\n")
    first = train("beta-tcvae", "data=table.csv", "steps=2", cwd=tmp_path)
    again = train("--config", f"{first['run']}/config.yaml", "--name", "again", cwd=tmp_path)
    assert again["id"] == first["id"]


def test_a_file_may_write_numbers_as_the_command_line_does(folder, tmp_path):
    stored = yaml.safe_load((folder / "config.yaml").read_text())
    stored["training"] |= {"lr": "5e-4", "steps": "2E0"}
    stored["objective"]["beta"] = "1e1"
    file = tmp_path / "edited.yaml"
    file.write_text(yaml.safe_dump(stored))  # text of this form has no quotes
    assert "lr: 5e-4\n" in file.read_text()
    run = train("--config", file, cwd=tmp_path)
    after = yaml.safe_load((tmp_path / run["run"] / "config.yaml").read_text())
    assert (after["training"]["lr"], after["training"]["steps"], after["objective"]["beta"]) == (5e-4, 2, 10.0)


def test_a_sweep_is_not_a_config_and_names_one(tmp_path):
    swept = sweep(tmp_path, beta=4, metrics=[], report=False)
    member = min(run.path for run in swept.runs)
    for given in (swept.path, swept.path / "sweep.yaml"):
        told = unbraid("train", "--config", given, code=2)
        assert names(told, given, "sweep", member / "config.yaml")
        assert is_one_error(told)
    assert names(unbraid("train", "--config", member, "--resume", code=2), member, "sweep", "repeat")


def test_a_relative_path_of_data_names_the_folder_to_run_from(tmp_path):
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    home.mkdir()
    elsewhere.mkdir()
    rows = "\n".join(f"{row},{row * row % 7},{row % 3}" for row in range(60))
    (home / "my table.csv").write_text(f"a,b,c\n{rows}\n")
    run = home / train("beta-tcvae", "data=my table.csv", "steps=2", cwd=home)["run"]
    told = unbraid("evaluate", run, "--device", "cpu", cwd=elsewhere, code=1)
    assert names(told, "my table.csv", "relative", f"from {home}")
    assert is_one_error(told)
    moved = run.rename(elsewhere / "run")
    told = unbraid("evaluate", moved, "--device", "cpu", cwd=elsewhere, code=1)
    assert names(told, "my table.csv", "relative", "folder in which it was trained")
    told = unbraid("train", "--config", moved, "--device", "cpu", cwd=elsewhere, code=2)
    assert names(told, "my table.csv", "relative", "data=PATH")
    again = train("--config", moved, f"data.file={home / 'my table.csv'}", cwd=elsewhere)
    assert again["step"] == 2


@pytest.mark.parametrize(
    ("change", "code", "facts"),
    [
        ({"format": 2}, 1, ["newer version", "2", "update"]),
        ({"optimizer": {}}, 1, ["section", "optimizer"]),
        ({"training": {"stepz": 3}}, 1, ["stepz", "steps"]),
        ({"encoder": None}, 1, ["encoder"]),
        ({"objective": {"name": "beta-tcvae", "betta": 3}}, 2, ["betta", "beta"]),
        ({"objective": {"name": "beta-tcvaee"}}, 2, ["beta-tcvaee", "beta-tcvae"]),
        ({"parent": {"run": "a", "content": "0" * 64, "config": {}}}, 2, ["unbraid refine"]),
    ],
    ids=str,
)
def test_a_file_that_cannot_be_trained_is_one_error(folder, tmp_path, change, code, facts):
    stored = yaml.safe_load((folder / "config.yaml").read_text())
    file = tmp_path / "changed.yaml"
    file.write_text(yaml.safe_dump({**stored, **change}))
    told = unbraid("train", "--config", file, cwd=tmp_path, code=code)
    assert names(told, *facts)
    assert is_one_error(told)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("words", "code", "facts"),
    [
        (["--config", "nothing.yaml"], 2, ["nothing.yaml", "config.yaml"]),
        (["--config", "."], 2, ["config.yaml"]),
        (["--config", "broken.yaml"], 1, ["broken.yaml", "YAML"]),
        (["--config", "words.yaml"], 1, ["words.yaml", "mapping"]),
        (["beta-vae", "--config", "nothing.yaml"], 2, ["recipe", "beta-vae"]),
        ([], 2, ["recipe", "--config"]),
    ],
)
def test_a_wrong_use_of_config_is_one_error(tmp_path, words, code, facts):
    (tmp_path / "broken.yaml").write_text("a: [1\n")
    (tmp_path / "words.yaml").write_text("some words\n")
    told = unbraid("train", *words, cwd=tmp_path, code=code)
    assert names(told, *facts)
    assert is_one_error(told)
