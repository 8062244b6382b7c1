"""Run folders: whole files or none, one process at a time, damaged things named."""

import errno
import json
import multiprocessing
import os
import sys
from dataclasses import replace

import pytest
import torch

from tests.support.configs import make_config
from tests.support.messages import naming
from unbraid import atomic
from unbraid.errors import RunError
from unbraid.store import RunFolder, load_tensors


@pytest.fixture
def folder(tmp_path):
    return RunFolder.create(tmp_path / "run", make_config())


def test_config_survives(folder):
    assert RunFolder.open(folder.path).config == make_config()


def test_a_changed_config_is_read_anew_and_changes_of_a_reader_are_its_own(folder):
    """Texts are parsed once; what was parsed may neither outlive the file nor be shared."""
    read = folder.written_config
    read["training"]["seed"] = 9
    assert folder.config.training.seed == 0
    stored = folder.path / "config.yaml"
    stored.write_text(stored.read_text().replace("seed: 0", "seed: 7"))
    assert folder.config.training.seed == folder.written_config["training"]["seed"] == 7


def test_another_config_is_refused(folder):
    with pytest.raises(RunError, match=naming("training.seed", 0, 1)):
        RunFolder.create(folder.path, make_config(seed=1))


def test_what_is_no_run_is_named(tmp_path):
    with pytest.raises(RunError, match="nothing"):
        RunFolder.open(tmp_path / "nothing")
    with pytest.raises(RunError, match=r"config\.yaml"):
        RunFolder.open(tmp_path)


@pytest.mark.parametrize("text", ["[1, 2", "just words", "format: 7"])
def test_damaged_config_names_the_file(folder, text):
    (folder.path / "config.yaml").write_text(text)
    with pytest.raises(RunError, match=r"config\.yaml"):
        _ = folder.config


def test_lines_append_and_survive_a_half_written_one(folder):
    folder.append_line("history", {"step": 1})
    with (folder.path / "history.jsonl").open("a") as handle:
        handle.write('{"step": 2, "lo')
    assert [line["step"] for line in folder.read_lines("history")] == [1]
    folder.append_line("history", {"step": 3})
    assert [line["step"] for line in folder.read_lines("history")] == [1, 3]


def test_history_is_cut_back(folder):
    for step in (10, 20, 30):
        folder.append_line("history", {"step": step})
    folder.cut_history(20)
    assert [line["step"] for line in folder.read_lines("history")] == [10, 20]


def test_every_file_states_its_format(folder):
    folder.append_line("scores", {"metric": "mig", "protocol": "exact", "value": 0.5, "samples": 8})
    folder.write_json("status", {"state": "running"})
    folder.save_model({"a": torch.ones(2)})
    assert folder.read_lines("scores")[0]["format"] == 1
    assert json.loads((folder.path / "status.json").read_text())["format"] == 1
    assert load_tensors(folder.model_path)[1]["format"] == "1"


def test_checkpoints_keep_two_and_fall_back_from_a_damaged_one(folder):
    for step in (1, 2, 3):
        folder.save_checkpoint(step, {"x": torch.full((3,), float(step))})
    assert [path.name for path in folder.checkpoints()] == ["step-000000002.safetensors", "step-000000003.safetensors"]
    step, tensors = folder.latest_checkpoint()
    assert step == 3
    assert tensors["x"].tolist() == [3, 3, 3]
    newest = folder.checkpoints()[-1]
    newest.write_bytes(newest.read_bytes()[:40])
    assert folder.latest_checkpoint()[0] == 2


def test_strided_tensors_are_stored_by_value(folder):
    weight = torch.randn(4, 3, 2, 2).to(memory_format=torch.channels_last)
    folder.save_model({"weight": weight})
    assert torch.equal(load_tensors(folder.model_path)[0]["weight"], weight)


def test_unfinished_run_says_how_to_go_on(folder):
    with pytest.raises(RunError, match="same arguments"):
        folder.load_model()


def test_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "file.txt"
    atomic.write_text(path, "old")
    with pytest.raises(RuntimeError), atomic.replacing(path) as part:
        part.write_text("half of the n")
        raise RuntimeError
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["file.txt"]


def _try_to_lock(path, queue):
    try:
        with RunFolder(path).locked():
            queue.put("locked")
    except RunError:
        queue.put("refused")


def test_a_device_or_a_pipe_is_never_replaced(tmp_path):
    """`--out /dev/null` of a user who may write there would break the machine."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/dev/null")
    (tmp_path / "folder").mkdir()
    for name in ("pipe", "link", "folder"):
        with pytest.raises(RunError, match=naming(name, "plain file")):
            atomic.write_text(tmp_path / name, "text")
    assert (tmp_path / "pipe").is_fifo()
    assert (tmp_path / "link").is_symlink()
    assert len(list(tmp_path.iterdir())) == 3


def test_second_process_is_kept_out(folder):
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    with folder.locked():
        process = context.Process(target=_try_to_lock, args=(folder.path, queue))
        process.start()
        assert queue.get(timeout=30) == "refused"
        process.join()
    process = context.Process(target=_try_to_lock, args=(folder.path, queue))
    process.start()
    assert queue.get(timeout=30) == "locked"
    process.join()


@pytest.mark.parametrize("action", ["json", "line", "tensors"])
def test_a_full_disk_is_one_sentence_and_leaves_the_old_file(folder, monkeypatch, action):
    folder.append_line("history", {"step": 1})
    folder.write_json("status", {"state": "running", "step": 1})

    def full(*given):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync" if action == "tensors" else "write", full)
        with pytest.raises(RunError, match=naming(folder.path, "No space left on device", "same command")):
            if action == "json":
                folder.write_json("status", {"state": "running", "step": 2})
            elif action == "line":
                folder.append_line("history", {"step": 2})
            else:
                folder.save_checkpoint(2, {"x": torch.ones(1)})
    assert folder.read_json("status")["step"] == 1
    assert [line["step"] for line in folder.read_lines("history")] == [1]
    assert not list(folder.path.rglob("*.part"))


def test_an_error_names_the_file_that_the_user_wants_written(tmp_path, monkeypatch):
    def refuse(path, *_):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(atomic.os, "open", refuse)
    with pytest.raises(PermissionError) as caught:
        atomic.write_text(tmp_path / "codes.csv", "row\n")
    assert caught.value.filename == str(tmp_path / "codes.csv")


def test_messages_name_options_to_commands_and_arguments_to_python(tmp_path, monkeypatch):
    config = make_config()
    longer = replace(config, training=replace(config.training, steps=7))
    RunFolder.create(tmp_path / "run", config)
    with pytest.raises(RunError, match=naming("training.steps", "new run", "steps=7", "name=…")):
        RunFolder.create(tmp_path / "run", longer)
    with pytest.raises(RunError, match=naming("training.seed", "fresh=True")):
        RunFolder.create(tmp_path / "run", replace(config, training=replace(config.training, seed=7)))
    monkeypatch.setattr(sys, "argv", ["/somewhere/unbraid", "train"])
    with pytest.raises(RunError, match=naming("--config", tmp_path / "run/config.yaml", "steps=7", "--name")):
        RunFolder.create(tmp_path / "run", longer)
    with pytest.raises(RunError, match=naming("training.seed", "--fresh")):
        RunFolder.create(tmp_path / "run", replace(config, training=replace(config.training, seed=7)))


@pytest.mark.parametrize(
    ("status", "said"),
    [
        ({"state": "diverged", "step": 3, "term": "kl"}, ("diverged", 3)),
        ({"state": "interrupted", "step": 3}, ("same arguments",)),
    ],
)
def test_a_run_without_weights_says_why_and_what_to_do(folder, status, said):
    folder.write_json("status", status)
    with pytest.raises(RunError, match=naming("model.safetensors", *said)):
        folder.load_model()


def test_a_run_that_is_being_trained_says_so(folder):
    folder.write_json("status", {"state": "running", "step": 3})
    with folder.locked(), pytest.raises(RunError, match=naming("another process")):
        folder.load_model()
