"""Two processes that share every batch are one process with the whole batch."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.support.messages import names, naming
from tests.support.training import train
from tests.support.two_players import registered
from tests.training import ranks
from unbraid.errors import UsageError
from unbraid.store import RunFolder, load_tensors
from unbraid.training import Cadence, choose_device
from unbraid.training.distributed import World, join_world, read_launcher
from unbraid.training.sync_batchnorm import WorldBatchNorm, synchronise_batchnorm

ROOT = Path(__file__).parents[2]
SIZE = 2


def surroundings(**added):
    paths = {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "OMP_NUM_THREADS": "1", "UNBRAID_QUIET": "1"}
    return {**os.environ, **paths, **added}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The folder in which two processes have left what `ranks.py` does."""
    folder = tmp_path_factory.mktemp("ranks")
    run_ranks(folder, "cpu")
    return folder


def run_ranks(folder, device):
    """Train with several processes; another program may take their port before they bind it, so try some."""
    command = [sys.executable, str(Path(ranks.__file__)), str(folder), device]
    for _ in range(5):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": str(SIZE)}
        done = subprocess.run(command, env=surroundings(**shared), capture_output=True, text=True, timeout=600)
        if "EADDRINUSE" not in done.stderr and "address already in use" not in done.stderr.lower():
            break
    assert done.returncode == 0, done.stderr


def stored(made, name):
    return [load_tensors(made / f"{name}-{rank}")[0] for rank in range(SIZE)]


def errors(made, name):
    return [json.loads((made / f"{name}-{rank}.json").read_text()) for rank in range(SIZE)]


@pytest.mark.parametrize("case", ranks.CASES)
def test_weights_optimizers_and_history_are_those_of_one_process(made, sprites, case):
    with registered():
        expected = ranks.outcome(ranks.advanced(case, sprites))
    near = 1e-9 if "f64" in case else 1e-5
    for tensors in stored(made, case):
        assert tensors.keys() == expected.keys()
        for name, tensor in tensors.items():
            share = near if name == "sums" else 0.0  # sums over steps of hundreds of nats have no digit at 1e-5
            told = f"{name} of {case}"
            torch.testing.assert_close(tensor, expected[name], rtol=share, atol=near, msg=lambda t, n=told: f"{n}: {t}")


@pytest.mark.gpu
@pytest.mark.slow  # two processes compile each case
def test_compiled_steps_on_a_gpu_are_those_of_one_process_on_a_cpu(tmp_path, sprites):
    run_ranks(tmp_path, "cuda")
    for case in ("batchnorm-f64", "convolutions-f64"):
        with registered():
            expected = ranks.outcome(ranks.advanced(case, sprites))
        for tensors in stored(tmp_path, case):
            for name, tensor in tensors.items():
                torch.testing.assert_close(tensor, expected[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("case", ranks.CASES)
def test_ranks_stay_equal_bit_for_bit(made, case):
    first, second = stored(made, case)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_gather_hands_every_rank_the_gradient_of_all_losses(made):
    rows = torch.stack([ranks.rows_of(rank) for rank in range(SIZE)]).requires_grad_()
    (expected,) = torch.autograd.grad(sum(ranks.judged(rank, rows) for rank in range(SIZE)), rows)
    for rank, tensors in enumerate(stored(made, "gather")):
        torch.testing.assert_close(tensors["gradient"], expected[rank], rtol=1e-12, atol=1e-12)


def test_gathered_rows_are_in_the_order_of_the_batch(made):
    rows = torch.cat([ranks.rows_of(rank) for rank in range(SIZE)])
    for tensors in stored(made, "rows"):
        assert torch.equal(tensors["posterior"], rows[None, :, 0])
        assert torch.equal(tensors["sample"], rows[None, :, 1])


def test_batchnorm_equals_that_of_the_joined_batch(made):
    layer = nn.BatchNorm1d(3, affine=False).double()
    rows = torch.cat([ranks.rows_of(rank) for rank in range(SIZE)]).requires_grad_()
    value = layer(rows)
    (gradient,) = torch.autograd.grad(value.square().mul(value.exp()).sum(), rows)
    later = layer.eval()(rows)
    expected = {**layer.state_dict(), "gradient": gradient, "later": later}
    for rank, tensors in enumerate(stored(made, "norm")):
        for name, tensor in tensors.items():
            own = expected[name].chunk(SIZE)[rank] if name in ("gradient", "later") else expected[name]
            torch.testing.assert_close(tensor, own.detach(), rtol=1e-10, atol=1e-10)


def test_a_stop_asked_of_one_rank_stops_all_at_the_same_step_and_loses_nothing(made, sprites, tmp_path):
    for kind, message, code in errors(made, "stopped"):
        assert (kind, code) == ("Interrupted", 130)
        assert names(message, 13)
    assert {(made / f"status-{rank}").read_text() for rank in range(SIZE)} == {
        "{'format': 1, 'state': 'interrupted', 'step': 13}"
    }
    config, broken = ranks.config_of("beta-tcvae", sprites), RunFolder.open(made / "run")
    whole = RunFolder.create(tmp_path / "whole", config)
    train(whole, sprites, Cadence(log_steps=4))
    for name, tensor in whole.load_model().items():
        torch.testing.assert_close(broken.load_model()[name], tensor, rtol=1e-4, atol=1e-5)
    histories = [folder.read_lines("history") for folder in (whole, broken)]
    assert len(histories[0]) == len(histories[1]) == 10
    for mine, theirs in zip(*histories, strict=True):
        del mine["images_per_second"], theirs["images_per_second"]
        assert mine == pytest.approx(theirs, rel=1e-4, abs=1e-5)
    assert broken.checkpoints() == []
    assert broken.read_json("environment")["processes"] == SIZE
    assert list(made.rglob("*.part")) == []


def test_refusals_reach_every_rank(made):
    for kind, message, code in errors(made, "indivisible"):
        assert (kind, code) == ("UsageError", 2)
        assert names(message, "batch=33", 2)
    assert {kind for kind, _, _ in errors(made, "members")} == {"UsageError"}
    (first, message, code), (second, _, _) = errors(made, "locked")
    assert (first, code) == ("RunError", 1)
    assert names(message, made / "busy")
    assert second == "StoppedElsewhereError"


def test_own_modules_are_the_first_ranks_and_a_refused_run_leaves_no_folder(made):
    names = {(made / f"api-{rank}").read_text() for rank in range(SIZE)}
    assert {path.name for path in (made / "api").iterdir()} == names
    assert len(names) == 1
    assert [kind for kind, _, _ in errors(made, "api-indivisible")] == ["UsageError"] * SIZE


def test_a_world_of_one_touches_nothing():
    tensor, world = torch.rand(1, 4, 2), World()
    assert world.take_rows(tensor) is tensor
    assert world.average(tensor) is tensor
    assert world.average_all((tensor, None)) == (tensor, None)
    assert world.maximum(1.0, 2.0) == world.agree(3, 1.0, 2.0) == (1.0, 2.0)
    world.wait()
    world.broadcast([tensor])
    network = nn.Sequential(nn.BatchNorm1d(2))
    synchronise_batchnorm(network, world.size)
    assert type(network[0]) is nn.BatchNorm1d
    with join_world(torch.device("cpu")) as found:
        assert found == world
    assert not torch.distributed.is_initialized()


def test_a_layer_in_two_places_stays_one_layer_with_its_names():
    layer = nn.BatchNorm1d(2)
    network = nn.Sequential(layer, nn.Sequential(layer, nn.BatchNorm1d(2, affine=False, track_running_stats=False)))
    names = list(network.state_dict())
    synchronise_batchnorm(network, 2)
    assert isinstance(network[0], WorldBatchNorm)
    assert network[0] is network[1][0]
    assert network[0].weight is layer.weight
    assert list(network.state_dict()) == names


def test_an_unknown_batchnorm_is_refused():
    class Own(nn.BatchNorm1d):
        pass

    with pytest.raises(UsageError, match="Own"):
        synchronise_batchnorm(nn.Sequential(Own(2)), 2)


def test_each_process_takes_its_own_gpu(monkeypatch):
    assert read_launcher() == (0, 1, 0, 1)
    for name, value in {"RANK": 3, "WORLD_SIZE": 4, "LOCAL_RANK": 1, "LOCAL_WORLD_SIZE": 2, "MASTER_ADDR": "x"}.items():
        monkeypatch.setenv(name, str(value))
    assert read_launcher() == (3, 4, 1, 2)
    assert choose_device("cpu") == torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(UsageError, match=naming(2, 1, "GPUs")):
        choose_device("auto")


def torchrun(*arguments):
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(SIZE)]
    return [*launcher, "-m", "unbraid", "train", "beta-tcvae", "data=sprites-small", "network=mlp", "z=3", *arguments]


@pytest.mark.slow
def test_torchrun_trains_stops_resumes_and_its_run_can_be_scored(tmp_path):
    options = {
        "cwd": tmp_path,
        "env": surroundings(),
        "text": True,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
    }
    settings = ["batch=64", "steps=1000", "--name", "run", "--log-steps", "10"]
    folder = RunFolder(tmp_path / "runs" / "run")
    process = subprocess.Popen(torchrun(*settings), **options)
    deadline = time.monotonic() + 200
    while len(folder.read_lines("history")) < 3 and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=120)
    assert folder.read_json("status")["state"] == "interrupted"
    step = folder.read_json("status")["step"]
    assert names(told, step)
    process = subprocess.run(torchrun(*settings, "--resume"), **options, timeout=300)
    assert process.returncode == 0, process.stderr
    assert process.stdout.count("unbraid evaluate") == 1
    assert 0 < step < 1000
    assert folder.finished
    scored = subprocess.run([sys.executable, "-m", "unbraid", "evaluate", str(folder.path)], **options, timeout=300)
    assert scored.returncode == 0, scored.stderr
    assert "mig" in scored.stdout


@pytest.mark.slow
def test_a_wrong_setting_is_named_once(tmp_path):
    process = subprocess.run(
        torchrun("batch=33", "steps=4"), cwd=tmp_path, env=surroundings(), capture_output=True, text=True, timeout=200
    )
    assert process.returncode != 0
    assert process.stderr.count("batch=33") == 1
    assert not (tmp_path / "runs").exists()
