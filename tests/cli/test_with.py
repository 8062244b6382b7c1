"""A user's own objectives, data sets and metrics on the command line, and what a run remembers of them."""

import json
import os
import signal
import subprocess
import sys

import pytest

import unbraid as ub
from tests.support.command import SOURCE, unbraid
from tests.support.messages import names, naming
from unbraid import plugins
from unbraid.data import dataset
from unbraid.errors import RunError
from unbraid.folder_check import check
from unbraid.methods import objective
from unbraid.metrics.score import metric
from unbraid.training.interrupt import Interrupted
from unbraid.training.state import State

OWN = '''
"""Everything of my own."""
import torch
from unbraid import Factor, FactorDataset, dataset, objective
from unbraid.data import Pixels
from unbraid.objectives import elbo_terms

@objective("own-vae")
def own_vae(out, batch, context):
    """My own bound, E[log p(x|z)] - KL."""
    return elbo_terms(out, batch, context)

@dataset("own-bars")
def own_bars(*, size: int = 4):
    """Images of one bright row."""
    images = torch.eye(size).repeat(4, 1).view(-1, 1, 1, size).expand(-1, 1, size, size) * 255
    return FactorDataset("own-bars", Pixels(images.byte().contiguous(), (1, size, size)), source="drawn")
'''
TINY = ["data=own-bars", "network=mlp", "encoder.hidden=[8]", "decoder.hidden=[8]", "z=2", "batch=8", "steps=2"]


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delenv(plugins.VARIABLE, raising=False)
    (tmp_path / "own_things.py").write_text(OWN)
    yield tmp_path
    forget()


def forget():
    sys.modules.pop("own_things", None)
    os.environ.pop(plugins.VARIABLE, None)  # commands of later tests would import the file again
    for registry, name in ((objective, "own-vae"), (dataset, "own-bars")):
        if name in registry:
            registry.remove(name)


def test_a_file_is_known_to_every_command_and_remembered_by_the_run(home):
    own = ["--with", home / "own_things.py"]
    trained = unbraid(*own, "train", "own-vae", *TINY, "--name", "mine", "--device", "cpu", "--json", cwd=home)
    assert json.loads(trained)["step"] == 2
    listed = json.loads(unbraid(*own, "list", "objectives", "--json", cwd=home))
    assert "own-vae" in {row["name"] for row in listed}
    assert names(unbraid(*own, "show", "own-bars", cwd=home), "one bright row", "size")
    stored = json.loads((home / "runs/mine/modules.json").read_text())["entries"]
    assert [(each["kind"], each["name"], each["file"]) for each in stored] == [
        ("objective", "own-vae", "own_things.py"),
        ("data set", "own-bars", "own_things.py"),
    ]
    assert ub.load(home / "runs/mine", device="cpu").notes == []
    forget()
    with pytest.raises(RunError, match=naming("own-vae", "own_things.py", "--with", stored[0]["sha256"][:12])):
        ub.load(home / "runs/mine", device="cpu")
    assert "own_things" not in sys.modules, "opening a run imports nothing"
    (home / "own_things.py").write_text(OWN + "\n# another line\n")
    plugins.load_files([home / "own_things.py"])
    assert names(ub.load(home / "runs/mine", device="cpu").notes[0], "own_things.py", "changed")


def test_a_second_stage_remembers_the_files_of_the_first(home):
    own = ["--with", home / "own_things.py"]
    unbraid(*own, "train", "own-vae", *TINY, "--name", "mine", "--device", "cpu", cwd=home)
    stage = ["z=1", "encoder=mlp", "decoder=mlp", "batch=8", "steps=2", "--name", "finer", "--device", "cpu"]
    unbraid(*own, "refine", "runs/mine", *stage, cwd=home)
    stored = json.loads((home / "runs/finer/modules.json").read_text())["entries"]
    assert sorted((each["kind"], each["name"]) for each in stored) == [
        ("data set", "own-bars"),
        ("objective", "own-vae"),
    ]
    forget()
    with pytest.raises(RunError, match=naming("own_things.py", "--with")):
        ub.load(home / "runs/finer", device="cpu")
    (home / "own_things.py").write_text(OWN + "\n# another line\n")
    plugins.load_files([home / "own_things.py"])
    assert any(names(note, "own-vae", "changed") for note in ub.load(home / "runs/finer", device="cpu").notes)


def test_every_command_says_that_a_file_has_changed_since_training(home, capsys):
    own = ["--with", home / "own_things.py"]
    again = ["train", "own-vae", *TINY, "--name", "mine", "--device", "cpu"]
    unbraid(*own, *again, cwd=home)
    assert check(home / "runs/mine").notes == []
    forget()
    (home / "own_things.py").write_text(OWN + "\n# another line\n")
    shown = {}
    for verb in (["evaluate", "runs/mine", "--metric", "elbo"], ["sample", "runs/mine", "--out", "x.npy"], again):
        command = [sys.executable, "-m", "unbraid", *map(str, own), *map(str, verb)]
        environment = {**os.environ, "PYTHONPATH": SOURCE, "UNBRAID_QUIET": "1"}
        done = subprocess.run(command, cwd=home, env=environment, capture_output=True, text=True, check=True)
        shown[verb[0]] = done.stderr
    for verb, text in shown.items():
        assert names(text, "note", "runs/mine", "objective", "own-vae", "own_things.py", "changed"), (verb, text)
    plugins.load_files([home / "own_things.py"])
    assert names(check(home / "runs").notes[0], "runs/mine", "own_things.py", "changed")
    ub.load(home / "runs/mine", device="cpu")
    assert names(capsys.readouterr().err, "own_things.py", "changed")


def test_training_that_continues_with_a_changed_file_says_so(home, monkeypatch, capsys):
    def advance_and_stop(self, advance=State.advance):
        advance(self)
        os.kill(os.getpid(), signal.SIGINT)

    def train():
        plugins.load_files([home / "own_things.py"])
        return ub.train("own-vae", data="own-bars", network="mlp", z=2, batch=8, steps=3, root=home, device="cpu")

    with monkeypatch.context() as patch:
        patch.setattr(State, "advance", advance_and_stop)
        with pytest.raises(Interrupted):
            train()
    forget()
    (home / "own_things.py").write_text(OWN + "\n# another line\n")
    capsys.readouterr()
    assert train().folder.finished
    assert names(capsys.readouterr().err, "continues at step 1", "note", "own-vae", "own_things.py", "changed")


METRICS = """
from unbraid import Score, metric

@metric("own-broken/x")
def broken(evaluation):
    return 1 / 0

@metric("own-number/x")
def number(evaluation):
    return 3.0

@metric("own-largest/x")
def largest(evaluation):
    return [Score("own-largest", "x", float(evaluation.means.abs().max()), samples=len(evaluation))]
"""


def test_a_metric_that_fails_is_named_and_the_others_are_stored(home):
    (home / "own_things.py").write_text(OWN + METRICS)
    own = ["--with", home / "own_things.py"]
    unbraid(*own, "train", "own-vae", *TINY, "--name", "mine", "--device", "cpu", cwd=home)
    wanted = ["own-broken", "own-number", "own-largest", "elbo/closed-form"]
    options = [word for name in wanted for word in ("--metric", name)]
    line = (OWN + METRICS).splitlines().index("    return 1 / 0") + 1
    try:
        told = unbraid(*own, "evaluate", "runs/mine", *options, "--out", "some.json", cwd=home, code=1)
        unbraid(*own, "evaluate", "runs/mine", *options, cwd=home, code=1)
    finally:
        for name in wanted[:-1]:
            metric.remove(f"{name}/x")
    assert names(told, "own-broken/x", "own_things.py", f"line {line}", "ZeroDivisionError", "division by zero")
    assert names(told, "own-number/x", "returns a float", "must return", "Score", "evaluation")
    assert not names(told, "please report")
    scores = (home / "runs/mine/scores.jsonl").read_text().splitlines()
    assert [json.loads(line)["metric"] for line in scores] == ["own-largest", "elbo"]
    assert [score["metric"] for score in json.loads((home / "some.json").read_text())["runs/mine"]] == [
        "own-largest",
        "elbo",
    ]


@pytest.mark.parametrize(
    ("text", "facts"),
    [("x = 1 +\n", ["own_things.py", "SyntaxError"]), ("\nx = 1 / 0\n", ["line 2", "ZeroDivisionError"])],
)
def test_a_file_that_cannot_be_imported_is_named(home, text, facts):
    (home / "own_things.py").write_text(text)
    assert names(unbraid("--with", home / "own_things.py", "list", "priors", cwd=home, code=2), *facts)
    assert names(unbraid("--with", "nothing.py", "list", "priors", cwd=home, code=2), "nothing.py")
    assert names(unbraid("train", "vae", "--with", "x.py", cwd=home, code=2), "unbraid --with")


def test_installed_packages_add_names(home, monkeypatch):
    package = home / "own_plugin-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: own-plugin\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text(f"[{plugins.GROUP}]\nown = own_things\nlost = no_such_module\n")
    monkeypatch.syspath_prepend(str(home))
    monkeypatch.setattr(plugins, "_installed_are_loaded", False)
    with pytest.warns(UserWarning, match=naming("lost", "no_such_module")):
        assert "own-vae" in objective
