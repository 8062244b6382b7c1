"""`unbraid check` finds what is damaged, and repairs what a killed process left behind."""

import json
import os
import re
import shutil

import numpy as np
import pytest
import torch

import unbraid as ub
from tests.support.command import unbraid
from tests.support.messages import names, naming
from tests.support.sweeps import sweep
from unbraid.data import from_array, storage
from unbraid.errors import RunError, UsageError
from unbraid.explore.demo import open_demo
from unbraid.folder_check import check
from unbraid.metrics.generative.features.classifier import classifier, get_stored
from unbraid.store import RunFolder, load_tensors, save_tensors

SMALL = {"network": "mlp", "encoder_hidden": (8,), "decoder_hidden": (8,), "z": 2, "batch": 8, "steps": 4}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    images = torch.rand(32, 4, 4, generator=torch.Generator().manual_seed(0)).numpy()
    run = ub.train("vae", data=images, root=tmp_path_factory.mktemp("checked"), name="run", device="cpu", **SMALL)
    run.score("kl/closed-form")
    return run.path


@pytest.fixture
def run(finished, tmp_path):
    return RunFolder(shutil.copytree(finished, tmp_path / "run"))


def states(report):
    return {finding.file.rpartition("/")[2]: finding.state for finding in report.findings}


def test_a_whole_run_has_no_findings(run):
    report = check(run.path)
    assert (report.kind, report.findings) == ("run", [])
    assert report.files >= 7


@pytest.mark.parametrize("name", ["model.safetensors", "config.yaml", "history.jsonl", "scores.jsonl", "data.json"])
def test_a_changed_file_is_damaged(run, name):
    path = run.path / name
    path.write_bytes(path.read_bytes().replace(b"1", b"2"))
    report = check(run.path, repair=True)
    assert report.damaged
    assert any(names(finding.what, path) or finding.file == str(path) for finding in report.findings)


def test_without_its_status_a_run_is_damaged_and_its_weights_are_not_used(run):
    """status.json holds the hash of the weights: without it, changed weights would be taken for the run's."""
    (run.path / "status.json").unlink()
    assert states(check(run.path)) == {"status.json": "damaged"}
    with pytest.raises(RunError, match=naming(run.path, "status.json")):
        run.load_model()
    run.model_path.unlink()
    assert states(check(run.path)) == {"status.json": "damaged"}  # it has scores, so it had weights
    (run.path / "scores.jsonl").unlink()
    assert check(run.path).findings == []  # so a process leaves it that is killed before its first step


def test_what_a_killed_process_leaves_is_repaired(run):
    run.write_json("status", {"state": "running", "step": 2})
    (run.path / ".model.safetensors.3.999999999.part").write_text("half")
    (run.path / "lock").touch()
    with (run.path / "history.jsonl").open("a") as file:
        file.write('{"format": 1, "st')
    expected = dict.fromkeys(("status.json", ".model.safetensors.3.999999999.part", "history.jsonl"), "untidy")
    assert states(check(run.path)) == expected
    assert not check(run.path).damaged
    assert states(check(run.path, repair=True)) == dict.fromkeys(expected, "repaired")
    assert check(run.path).findings == []
    assert run.status["state"] == "interrupted"
    assert not (run.path / "lock").exists()


def test_a_run_in_use_is_left_alone(run):
    run.write_json("status", {"state": "running", "step": 2})
    with run.locked():
        assert states(check(run.path, repair=True)) == {"run": "untidy"}
    assert run.status["state"] == "running"


def test_an_unusable_checkpoint_is_damaged_and_removed(run):
    run.write_json("status", {"state": "interrupted", "step": 2})
    owner = {"runs": [run.config.run_id], "data": run.read_json("data")["content"], "players": []}
    run.save_checkpoint(1, {"a": torch.ones(3)}, owner)
    run.save_checkpoint(2, {"a": torch.ones(3)}, {**owner, "runs": ["another"]})
    newest = run.checkpoints()[-1].name
    assert states(check(run.path)) == {newest: "damaged"}
    assert states(check(run.path, repair=True)) == {newest: "repaired"}
    assert len(run.checkpoints()) == 1


def test_checkpoints_of_other_settings_blame_the_settings_and_stay(run):
    run.write_json("status", {"state": "interrupted", "step": 2})
    for step in (1, 2):
        run.save_checkpoint(step, {"a": torch.ones(3)}, {"runs": ["another"], "players": []})
    for repair in (False, True):
        assert states(check(run.path, repair=repair)) == {"config.yaml": "damaged"}
    assert len(run.checkpoints()) == 2


def test_a_link_is_damage(run, tmp_path):
    (run.path / "report.html").symlink_to(tmp_path / "elsewhere")
    assert states(check(run.path)) == {"report.html": "damaged"}


def test_weights_of_another_structure_are_damage(run):
    tensors, facts = load_tensors(run.model_path)
    save_tensors(run.model_path, {name: tensor[:1] for name, tensor in tensors.items() if tensor.ndim}, facts)
    run.write_json("status", {**run.read_json("status"), "content": run.content()})
    assert states(check(run.path)) == {"model.safetensors": "damaged"}


def test_the_command_prints_and_exits(run):
    assert names(unbraid("check", run.path), run.path, "whole")
    assert json.loads(unbraid("check", run.path, "--json"))["damaged"] is False
    (run.path / "data.json").write_text("{")
    unbraid("check", run.path, code=1)


def test_a_sweep_and_its_runs_are_checked(tmp_path):
    swept = sweep(tmp_path, beta=4, metrics=[], report=False)
    report = check(swept.path)
    assert (report.kind, report.findings) == ("sweep", [])
    one, other = (run.folder for run in swept.runs)
    shutil.rmtree(one.path)
    text = (other.path / "config.yaml").read_text()
    (other.path / "config.yaml").write_text(text.replace("batch: 32", "batch: 16"))
    found = check(swept.path)
    assert {finding.file: finding.state for finding in found.findings}[str(one.path)] == "untidy"
    assert str(other.path / "config.yaml") in [finding.file for finding in found.findings if finding.state == "damaged"]


def test_stored_data_and_their_description_are_checked(tmp_path):
    path = tmp_path / "some.safetensors"
    storage.save(path, from_array(torch.rand(6, 4, 4).numpy(), name="some"))
    assert check(path).findings == []
    tensors, facts = load_tensors(path)
    save_tensors(path, tensors, {**facts, "description": facts["description"].replace("some", "none")})
    assert states(check(tmp_path)) == {"some.safetensors": "damaged"}
    old = {key: value for key, value in facts.items() if key != "seal"}
    save_tensors(path, tensors, old)  # as before there were seals
    assert check(path).findings == []


def test_a_folder_of_runs_and_sweeps_is_checked_run_by_run(run, tmp_path, monkeypatch):
    root = tmp_path / "runs"
    shutil.copytree(run.path, root / "deeper" / "one")
    (root / "project").mkdir()
    (root / "project" / "config.yaml").write_text("model: of another program\n")
    swept = sweep(root, beta=4, metrics=[], report=False)
    members = len(swept.runs)
    report = check(root)
    assert (report.kind, report.findings, report.unknown) == ("folder", [], [])
    assert (report.runs, report.whole_runs) == (members + 1, members + 1)
    assert check(swept.path / "runs").whole_runs == members
    assert names(unbraid("check", root), root, "whole", f"{members + 1} of {members + 1} runs")
    monkeypatch.chdir(root)
    assert check(".").whole_runs == members + 1
    (swept.runs[0].path / "data.json").write_text("{")
    report = check(root)
    assert (report.damaged, report.whole_runs) == (True, members)


def test_a_link_in_one_run_keeps_no_other_run_from_being_checked(run, tmp_path):
    (shutil.copytree(run.path, tmp_path / "other") / "page.html").symlink_to(tmp_path)
    report = check(tmp_path)
    assert (report.runs, report.whole_runs, states(report)) == (2, 1, {"page.html": "damaged"})
    assert report.files == check(run.path).files


@pytest.mark.parametrize("name", ["model.safetensors", "config.yaml", "checkpoints/step-000000002.safetensors"])
def test_a_file_inside_a_run_stands_for_the_run(run, name):
    owner = {"runs": [run.config.run_id], "data": run.read_json("data")["content"]}
    run.save_checkpoint(2, {"a": torch.ones(3)}, owner)
    report = check(run.path / name)
    assert (report.path, report.kind, report.damaged) == (str(run.path), "run", False)


@pytest.mark.parametrize("name", ["scores.csv", "photo.png", "config.yaml", "weights.safetensors", "cut.safetensors"])
def test_a_file_without_a_seal_is_not_called_damaged(run, tmp_path, name):
    file = tmp_path / "mine" / name
    file.parent.mkdir()
    if name == "weights.safetensors":
        shutil.copy(run.model_path, file)
    else:
        file.write_text("version https://git-lfs.github.com/spec/v1")
    for path in (file, file.parent):
        with pytest.raises(UsageError, match=r"not a file that unbraid can check|holds neither runs") as caught:
            check(path)
        assert not re.search("damaged|remove", str(caught.value))
    report = check(tmp_path)
    assert (report.findings, report.whole_runs) == ([], 1)
    assert report.unknown == ([str(file)] if file.suffix == ".safetensors" else [])


def test_a_pipe_is_not_read(tmp_path):
    os.mkfifo(tmp_path / "pipe.safetensors")
    for path in (tmp_path / "pipe.safetensors", tmp_path):
        with pytest.raises(UsageError):
            check(path)


def test_everything_in_the_data_folder_is_known(run, tmp_path, monkeypatch):
    home = tmp_path / "home"
    monkeypatch.setenv("UNBRAID_DATA", str(home))
    open_demo()
    storage.save(home / "some.safetensors", from_array(torch.rand(6, 4, 4).numpy(), name="some"))
    data = from_array(torch.rand(48, 8, 8).numpy(), factors=np.arange(48) % 3, name="labelled")
    get_stored(("key",), None, data, lambda: classifier(data, torch.arange(48), 0, steps=2))
    (stored,) = (home / "classifiers").glob("*.safetensors")
    report = check(home)
    assert (report.findings, report.unknown, report.whole_runs) == ([], [], 1)
    assert check(stored).files == 1
    stored.write_bytes(stored.read_bytes()[:-1] + b"?")
    assert states(check(home)) == {stored.name: "damaged"}
    (home / "some.safetensors").write_bytes(b"?" * 100)
    assert states(check(home))["some.safetensors"] == "damaged"


def test_a_cut_file_of_stored_data_is_damaged(tmp_path):
    path = tmp_path / "some.safetensors"
    storage.save(path, from_array(torch.rand(6, 4, 4).numpy(), name="some"))
    path.write_bytes(path.read_bytes()[:-9])
    assert states(check(path)) == states(check(tmp_path)) == {"some.safetensors": "damaged"}


def test_scoring_without_saving_leaves_the_run_as_it_is(run, tmp_path, monkeypatch):
    images = torch.rand(32, 4, 4, generator=torch.Generator().manual_seed(0)).numpy()
    opened = ub.load(run.path, data=images, device="cpu")
    before = {path.name: path.read_bytes() for path in run.path.iterdir()}
    assert len(opened.score("kl/closed-form", save=False)) == 1
    assert {path.name: path.read_bytes() for path in run.path.iterdir()} == before
    monkeypatch.setattr("unbraid.store.os.access", lambda *given: False)
    with pytest.raises(ub.errors.RunError, match="save=False"):
        opened.score("kl/closed-form")


@pytest.mark.parametrize("read", ["encode", "decode", "sample", "explore", "export", "report", "score", "refine"])
def test_changed_weights_are_refused_by_every_reader(run, tmp_path, read):
    tensors, facts = load_tensors(run.model_path)
    save_tensors(run.model_path, {name: tensor + 1 for name, tensor in tensors.items()}, facts)
    images = torch.rand(32, 4, 4, generator=torch.Generator().manual_seed(0)).numpy()
    opened = ub.load(run.path, data=images, device="cpu")
    actions = {
        "encode": lambda: opened.encode(images),
        "decode": lambda: opened.decode(torch.zeros(1, 2)),
        "sample": lambda: opened.sample(2),
        "explore": lambda: opened.explore(tmp_path / "page.html", open=False),
        "export": lambda: opened.export(tmp_path / "exported"),
        "report": lambda: opened.report(),
        "score": lambda: opened.score("kl/closed-form"),
        "refine": lambda: ub.refine(opened, "vae", root=tmp_path, device="cpu", steps=2),
    }
    with pytest.raises(ub.errors.RunError, match="changed"):
        actions[read]()
