"""Run folders as commands meet them: finished, interrupted, replaced, damaged."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time

import pytest
import torch

import unbraid.api as api
from tests.cli.shared import NARROW, SMALL, TINY, VAE, is_one_error
from tests.support.command import SOURCE, unbraid
from tests.support.messages import names, naming
from unbraid.errors import RunError
from unbraid.report.observation_files import write_picture
from unbraid.store import RunFolder, load_tensors, save_tensors


def test_finished_run_is_not_trained_again(folder):
    before = (folder / "model.safetensors").stat().st_mtime_ns
    told = unbraid("train", "beta-tcvae", *SMALL, "--device", "cpu", cwd=folder.parents[1])
    assert names(told, "finished")
    assert (folder / "model.safetensors").stat().st_mtime_ns == before


def test_a_scored_run_without_its_weights_is_never_taken_for_a_success(folder, tmp_path):
    import shutil

    copy = shutil.copytree(folder, tmp_path / "runs/lost")
    unbraid("evaluate", copy, "--metric", "kl/closed-form", "--device", "cpu")
    (copy / "model.safetensors").unlink()
    again = ["train", "beta-tcvae", *SMALL, "--name", "lost", "--device", "cpu"]
    for command in (["evaluate", copy, "--device", "cpu"], again, [*again, "--resume"]):
        told = unbraid(*command, cwd=tmp_path, code=1)
        assert is_one_error(told.splitlines()[-1])
        assert names(told, "weights are missing", "--fresh --name lost")
    unbraid(*again, "--fresh", cwd=tmp_path)
    assert (copy / "model.safetensors").exists()


def test_a_member_of_a_sweep_without_its_weights_names_the_command_of_the_sweep(tmp_path):
    import shutil

    command = ["sweep", "vae", *TINY, *NARROW, "seed=0,1", "--metric", "kl", "--name", "our sweep", "--device", "cpu"]
    unbraid(*command, cwd=tmp_path)
    member = next((tmp_path / "runs/our sweep/runs").iterdir())
    weights = member / "model.safetensors"
    weights.unlink()
    told = unbraid("evaluate", member, "--device", "cpu", code=1)
    assert is_one_error(told)
    assert names(told, "weights are missing", "remove this folder", "unbraid sweep vae", "--name 'our sweep'")
    assert "--fresh" not in told
    shutil.rmtree(member)
    unbraid(*command, cwd=tmp_path)
    assert weights.exists()


@pytest.mark.parametrize("command", ["", "rm runs; unbraid sweep", "unbraid sweep 'vae"])
def test_only_the_command_of_a_sweep_is_named(tmp_path, command):
    folder = RunFolder(tmp_path / "runs/one")
    folder.write_json("status", {"state": "finished", "step": 3})
    folder.write_json("environment", {"command": command})
    (tmp_path / "sweep.yaml").touch()
    with pytest.raises(RunError, match=naming("repeat the sweep")):
        folder.check_has_weights()


def test_next_commands_can_be_pasted(tmp_path):
    told = unbraid("train", "vae", *TINY, *NARROW, "--root", "our runs", "--name", "mein Lauf", cwd=tmp_path)
    assert names(told, "unbraid report 'our runs/mein Lauf'")


def test_a_name_that_cannot_be_resumed_is_noticed(tmp_path, monkeypatch):
    said = []
    monkeypatch.setattr(api, "announce", said.append)
    for _ in range(2):
        unbraid("train", "vae", *TINY, *NARROW, "--name", "misspelt", "--resume", cwd=tmp_path)
    assert len(said) == 1, "the second call finds the run"
    assert names(said.pop(), "no run runs/misspelt to resume")
    unbraid("train", "vae", *TINY, *NARROW, "seed=5", "--resume", cwd=tmp_path)
    assert names(said.pop(), "no run", "to resume", "step 0")


def test_damaged_weights_are_named(folder, tmp_path):
    import shutil

    copy = shutil.copytree(folder, tmp_path / "run")
    weights = copy / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    assert names(unbraid("evaluate", copy, "--device", "cpu", code=1), "model.safetensors")


@pytest.mark.parametrize("name", ["model.safetensors", "config.yaml"])
def test_runs_that_changed_after_training_are_not_scored_or_reported(folder, tmp_path, name):
    import shutil

    copy = shutil.copytree(folder, tmp_path / "run")
    if name == "config.yaml":
        (copy / name).write_text((copy / name).read_text().replace("beta: 6.0", "beta: 5.0"))
    else:
        tensors = load_tensors(copy / name)[0]
        save_tensors(copy / name, {key: tensor + 1 for key, tensor in tensors.items()})
    for command in (["evaluate", copy, "--metric", "kl/closed-form"], ["report", copy]):
        told = unbraid(*command, "--device", "cpu", code=1)
        assert names(told, str(copy), "changed")
        assert is_one_error(told)
    (copy / "status.json").write_text('{"format": 1, "state": "finished"}')  # as of a run that never said which
    assert "kl/closed-form" in unbraid("evaluate", copy, "--metric", "kl/closed-form", "--device", "cpu")


def test_data_that_have_changed_are_named_before_the_settings_that_follow_from_them(tmp_path):
    """With other rows, batch and steps are others, too: --fresh would discard a training for a lost picture."""
    folder = tmp_path / "pictures"
    folder.mkdir()
    for number in range(40):
        write_picture(folder / f"{number}.png", torch.full((1, 8, 8), number / 40))
    train = ["train", "vae", f"data={folder}", "steps=2", *NARROW, "--device", "cpu", "--name", "mine"]
    unbraid(*train, cwd=tmp_path)
    (folder / "0.png").unlink()
    for command in (train, [*train, "--resume"], ["evaluate", "runs/mine", "--device", "cpu"]):
        told = unbraid(*command, cwd=tmp_path, code=1)
        assert is_one_error(told.splitlines()[-1])
        assert names(told, "40 rows then, 39 now", folder)


def test_ctrl_c_saves_and_resume_finishes(tmp_path):
    command = [
        sys.executable,
        "-m",
        "unbraid",
        "train",
        "vae",
        *SMALL[:-1],
        "steps=100000",
        "--name",
        "long",
        "--log-steps",
        "5",
    ]
    env = {**os.environ, "PYTHONPATH": SOURCE, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, cwd=tmp_path, env=env, stderr=subprocess.PIPE, text=True)
    history = tmp_path / "runs/long/history.jsonl"
    deadline = time.monotonic() + 60
    while not (history.exists() and history.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    told = process.communicate(timeout=60)[1]
    assert process.returncode == 130
    status = json.loads((tmp_path / "runs/long/status.json").read_text())
    assert status["state"] == "interrupted"
    settings = ["vae", *SMALL[:-1], "steps=100000", "--name", "long", "--log-steps", "5", "--resume"]
    assert f"step {status['step']} of 100000" in told
    assert f"continue with: unbraid train {shlex.join(settings)}\n" in told
    told = unbraid("evaluate", "runs/long", cwd=tmp_path, code=1)
    assert names(told, "unbraid train --config runs/long/config.yaml --resume")
    record = {"state": "running", "step": 5}
    RunFolder(tmp_path / "runs/long").write_json("status", record)  # as a killed process leaves it
    assert "running" not in (told := unbraid("runs", cwd=tmp_path)) and "interrupted" in told
    again = unbraid("train", "vae", *SMALL[:-1], "steps=100000", "--name", "long", cwd=tmp_path, code=2)
    assert names(again, "--resume")
    other = unbraid("train", "vae", *SMALL, "--name", "long", cwd=tmp_path, code=1)
    assert names(other, "training.steps", 100000, 30)
    unbraid("train", "vae", *SMALL, "--name", "long", "--fresh", cwd=tmp_path)


@pytest.mark.parametrize(
    ("more", "fact"),
    [
        (["beat=6"], "beat"),
        (["--device", "cud"], "cud"),
        (["split=5"], "split"),
        (["network=mlp-esmaeili-64"], "64x64"),
        (["groups=3"], "groups"),
    ],
)
def test_a_wrong_request_for_a_fresh_run_leaves_the_old_one(more, fact, folder):
    before = sorted((path.name, path.stat().st_mtime_ns) for path in folder.iterdir() if path.is_file())
    again = ["--root", str(folder.parent), "--name", folder.name, "--fresh"]
    assert names(unbraid(*VAE, *more, *again, code=2), fact)
    assert sorted((path.name, path.stat().st_mtime_ns) for path in folder.iterdir() if path.is_file()) == before


def test_nothing_but_a_run_is_ever_removed_or_written_into(tmp_path):
    root = tmp_path / "runs"
    (root / "photos").mkdir(parents=True)
    (root / "photos" / "thesis.txt").write_text("years of work")
    outside = tmp_path / "precious"
    unbraid("train", "vae", *SMALL, "--root", str(tmp_path), "--name", "precious")
    unbraid("sweep", "vae", *TINY, *NARROW, "seed=0,1", "--metric", "elbo", "--root", str(root), "--name", "many")
    for name, code in (("photos", 1), ("many", 1), ("../precious", 2)):
        for fresh in ([], ["--fresh"]):
            assert names(unbraid(*VAE, "--root", str(root), "--name", name, *fresh, code=code), name)
    assert (root / "photos" / "thesis.txt").read_text() == "years of work"
    assert (outside / "model.safetensors").exists()
    assert (root / "many" / "sweep.yaml").exists()
    assert len(list((root / "many" / "runs").iterdir())) == 2


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("data.json", "[]"),
        ("status.json", "{"),
        ("data.json", None),
        ("scores.jsonl", '{"a": 1}\n'),
        ("history.jsonl", "[[\n"),
    ],
)
def test_damaged_files_are_named(folder, tmp_path, name, content):
    import shutil

    copy = shutil.copytree(folder, tmp_path / "run")
    (copy / name).unlink(missing_ok=True)
    if content is not None:
        (copy / name).write_text(content)
    command = "report" if name.endswith("l") else "evaluate"
    told = unbraid(command, copy, "--device", "cpu", code=1) if name != "status.json" else ""
    assert name == "status.json" or name in told
    if name == "status.json":
        from unbraid.errors import RunError
        from unbraid.store import RunFolder

        with pytest.raises(RunError, match=naming("status.json")):
            _ = RunFolder(copy).finished
