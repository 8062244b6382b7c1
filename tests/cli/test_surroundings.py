"""What surrounds a command: signals, streams, environment variables, and errors that nobody foresaw."""

import io
import os
import pwd
import shlex
import signal
import subprocess
import sys
import tempfile

import pytest
import torch

from tests.support.command import SOURCE, unbraid
from tests.support.messages import names
from unbraid.__main__ import main as enter
from unbraid.cli import main
from unbraid.store import RunFolder, load_tensors
from unbraid.training.interrupt import STOPPING
from unbraid.training.state import State

TRAIN = ["train", "vae", "data=sprites-small", "data.positions=4", "data.scales=2", "steps=8", "batch=16", "z=3"]
TRAIN += ["encoder=mlp", "decoder=mlp", "encoder.hidden=[8]", "decoder.hidden=[8]", "--device", "cpu"]


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    """No lines of progress, which a slow machine prints beside the one sentence."""
    monkeypatch.setenv("UNBRAID_QUIET", "1")


def signalled_at(step, number, advance):
    """Return a `State.advance` that sends a signal to this process during a step."""

    def stop(self):
        advance(self)
        if self.step == step:
            os.kill(os.getpid(), number)

    return stop


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """The weights of the run of `TRAIN`, trained without a disturbance."""
    root = tmp_path_factory.mktemp("whole")
    unbraid(*TRAIN, "--name", "whole", cwd=root)
    return load_tensors(root / "runs/whole/model.safetensors")[0]


@pytest.mark.parametrize("number", STOPPING)
def test_a_signal_saves_and_resume_ends_with_the_same_bits(tmp_path, monkeypatch, weights, number):
    folder = RunFolder(tmp_path / "runs/run")
    outside = signal.getsignal(number)
    before = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
    signal.signal(number, before)  # these tests may run under nohup, which ignores SIGHUP
    try:
        with monkeypatch.context() as patch:
            patch.setattr(State, "advance", signalled_at(5, number, State.advance))
            told = unbraid(*TRAIN, "--name", "run", cwd=tmp_path, code=130)
        assert signal.getsignal(number) == before
    finally:
        signal.signal(number, outside)
    assert told.count("\n") == 1
    assert names(told, 5, "--resume")
    assert folder.read_json("status")["state"] == "interrupted"
    assert [path.stem for path in folder.checkpoints()] == ["step-000000005"]
    unbraid(*shlex.split(told.rpartition("continue with: unbraid ")[2]), cwd=tmp_path)
    found = load_tensors(folder.model_path)[0]
    assert all(found[name].equal(weights[name]) for name in weights)


def test_a_signal_that_is_ignored_as_by_nohup_stops_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(State, "advance", signalled_at(5, signal.SIGHUP, State.advance))
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        unbraid(*TRAIN, "--name", "run", cwd=tmp_path)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert RunFolder(tmp_path / "runs/run").finished


class Interrupted:
    """A module during whose import Ctrl-C comes."""

    def __getattr__(self, name):
        raise KeyboardInterrupt


def test_ctrl_c_during_imports_is_no_traceback(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "unbraid.cli", Interrupted())
    with pytest.raises(SystemExit) as left:
        enter()
    assert left.value.code == 130
    assert capsys.readouterr().err == ""


def open_broken(kind):
    """Return a stream without a reader, a full one, a closed one, or none at all."""
    if kind == "none":
        return None
    reading, writing = os.pipe()
    os.close(reading)
    if kind == "full":
        os.dup2(os.open("/dev/full", os.O_WRONLY), writing)
    stream = io.TextIOWrapper(os.fdopen(writing, "wb"), "utf-8", write_through=True)
    if kind == "closed":
        stream.close()
    return stream


@pytest.mark.parametrize("name", ["stdout", "stderr"])
@pytest.mark.parametrize(("kind", "code"), [("pipe", 0), ("closed", 0), ("none", 0), ("full", 1)])
def test_a_broken_stream_stops_no_training(tmp_path, monkeypatch, capsys, name, kind, code):
    monkeypatch.setattr(sys, "argv", ["unbraid", *TRAIN, "--name", "run"])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, name, open_broken(kind))
    with pytest.raises(SystemExit) as left:
        main()
    told = capsys.readouterr().err
    assert RunFolder(tmp_path / "runs/run").finished
    if name == "stdout":
        assert (left.value.code or 0) == code, told
        assert names(told, "No space left on device", "work is done") == (kind == "full")


def test_a_reader_that_goes_away_leaves_no_words():
    """As in `unbraid --help | head -1`; Python itself would complain when the process ends."""
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "unbraid", "--help"]
    environment = {**os.environ, "PYTHONPATH": SOURCE}
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, env=environment, text=True, timeout=60)
    os.close(writing)
    assert done.stderr == ""
    assert done.returncode in (0, 1)


@pytest.fixture
def homeless(monkeypatch):
    """A user without a home folder, as in some containers."""

    def forget(user):
        raise KeyError(user)

    for name in ("HOME", "XDG_CACHE_HOME", "UNBRAID_DATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", forget)


@pytest.mark.parametrize("arguments", [["data", "show", "mnist"], ["data", "fetch", "mnist"], TRAIN])
def test_a_user_without_a_home_is_asked_for_a_folder_of_data(tmp_path, homeless, arguments):
    told = unbraid(*arguments, cwd=tmp_path, code=1)
    assert told.count("\n") == 1
    assert names(told, "home", "UNBRAID_DATA")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("path", ["~", "~nobody-of-this-name/x.py"])
def test_a_home_that_is_unknown_is_one_sentence(tmp_path, homeless, path):
    assert names(unbraid("--with", path, "list", "priors", cwd=tmp_path, code=2), path, "--with")


@pytest.mark.parametrize(
    "environment",
    [{"RANK": "0"}, {"RANK": "3"}, {"WORLD_SIZE": "4"}, {"RANK": "1", "WORLD_SIZE": "2"}, {"LOCAL_RANK": "x"}],
    ids=str,
)
def test_variables_of_torchrun_without_the_others_change_nothing(tmp_path, environment):
    assert "unbraid evaluate" in unbraid(*TRAIN, "--name", "run", cwd=tmp_path, **environment)


@pytest.mark.parametrize(("rank", "size"), [("x", "2"), ("-1", "2"), ("5", "2"), ("0", "many"), ("9" * 400, "2")])
def test_odd_ranks_are_one_sentence(tmp_path, rank, size):
    told = unbraid(*TRAIN, cwd=tmp_path, code=2, RANK=rank, WORLD_SIZE=size, MASTER_ADDR="localhost")
    assert told.count("\n") == 1
    assert names(told, "torchrun")
    assert "RANK=" in told or "WORLD_SIZE=" in told
    assert not (tmp_path / "runs").exists()


def fill_memory(*given, **others):
    """Ask the allocator for more than any machine has, which it refuses in its own words."""
    torch.empty(1 << 58)


MODEL = "unbraid.models.base.Model.encode"


@pytest.mark.parametrize(
    ("place", "arguments", "facts"),
    [
        ("unbraid.training.state.State.advance", TRAIN, ["memory", "batch"]),
        ("unbraid.data.find.load", ["data", "show", "sprites-small"], ["loading the data", "data.size"]),
        (MODEL, ["evaluate", "demo", "--metric", "kl/closed-form", "--no-save", "--device", "cpu"], ["memory"]),
        (MODEL, ["encode", "demo", "--out", "codes.csv", "--device", "cpu"], ["memory"]),
    ],
    ids=["train", "data show", "evaluate", "encode"],
)
def test_full_memory_is_one_sentence(tmp_path, monkeypatch, place, arguments, facts):
    monkeypatch.setattr(place, fill_memory)
    told = unbraid(*arguments, cwd=tmp_path, code=1)
    assert told.count("\n") == 1
    assert names(told, *facts)
    assert "unexpected" not in told


@pytest.fixture
def failing(monkeypatch, tmp_path):
    """A command that fails as no code foresaw, and a folder for temporary files."""

    def fail(*given, **others):
        raise ZeroDivisionError("never\nexpected")

    monkeypatch.setattr("unbraid.open_run.load", fail)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_an_unexpected_error_is_one_sentence_with_the_path_of_its_traceback(failing):
    told = unbraid("evaluate", "run", code=1)
    (log,) = failing.glob("unbraid-*.log")
    assert told.count("\n") == 1
    assert names(told, "ZeroDivisionError", "never", log, "report")
    assert "Traceback" in log.read_text()


def test_an_unexpected_error_says_how_to_see_its_traceback_if_it_cannot_be_written(failing, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(failing / "missing"))
    told = unbraid("evaluate", "run", code=1)
    assert told.count("\n") == 1
    assert names(told, "ZeroDivisionError", "UNBRAID_DEBUG=1", "report")


def test_a_traceback_is_printed_if_it_is_asked_for(failing):
    assert "Traceback" in unbraid("evaluate", "run", code=1, UNBRAID_DEBUG="1")
