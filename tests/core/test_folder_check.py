"""`unbraid check` finds what is damaged, and repairs what a killed process left behind."""

import json
import shutil

import pytest
import torch

import unbraid as ub
from tests.support.command import unbraid
from tests.support.messages import names
from tests.support.sweeps import sweep
from unbraid.data import from_array, storage
from unbraid.folder_check import check
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


def test_scoring_without_saving_leaves_the_run_as_it_is(run, tmp_path, monkeypatch):
    images = torch.rand(32, 4, 4, generator=torch.Generator().manual_seed(0)).numpy()
    opened = ub.load(run.path, data=images, device="cpu")
    before = {path.name: path.read_bytes() for path in run.path.iterdir()}
    assert len(opened.score("kl/closed-form", save=False)) == 1
    assert {path.name: path.read_bytes() for path in run.path.iterdir()} == before
    monkeypatch.setattr("unbraid.store.os.access", lambda *given: False)
    with pytest.raises(ub.errors.RunError, match="--no-save"):
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
