"""Memory and disk are estimated before training; a limit that is met later costs no checkpoint."""

import resource
import shutil
from collections import namedtuple

import pytest

import unbraid as ub
from tests.support.messages import names, naming
from unbraid.errors import DiskError, RunError
from unbraid.store import RunFolder, load_tensors
from unbraid.training import Cadence, resources
from unbraid.training.resources import Runs, check_disk

TINY = {"data": "sprites-small", "data_positions": 4, "data_scales": 2, "device": "cpu", "steps": 8, "batch": 16}
TINY |= {"z": 4, "encoder": "mlp", "decoder": "mlp", "encoder_hidden": (8,), "decoder_hidden": (8,)}
Usage = namedtuple("Usage", "total used free")


@pytest.fixture
def set_memory(monkeypatch):
    """Return a function that makes the free memory a share of what a run is estimated to need."""

    def set_share(share):
        needed = 1 << 20
        monkeypatch.setattr(resources, "estimate_member_bytes", lambda state: needed)
        monkeypatch.setattr(resources, "free_bytes", lambda device: int(share * needed))

    return set_share


def test_a_run_that_surely_does_not_fit_in_memory_is_refused_before_it_begins(tmp_path, set_memory):
    set_memory(0.4)
    with pytest.raises(RunError, match=naming("1.05 MB", "419 kB", "free", "batch", 16, "widths")):
        ub.train("beta-tcvae", **TINY, root=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(("share", "warned"), [(0.6, True), (2.0, False)])
def test_a_run_that_may_fit_in_memory_is_trained(tmp_path, set_memory, capsys, share, warned):
    set_memory(share)
    assert ub.train("beta-tcvae", **{**TINY, "steps": 1}, root=tmp_path).folder.finished
    assert names(capsys.readouterr().err, "warning", "memory", "batch") == warned


@pytest.mark.parametrize("train", [ub.train, ub.sweep])
def test_files_that_do_not_fit_on_the_disk_are_refused_before_anything_is_written(tmp_path, monkeypatch, train):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(0, 0, 100_000))
    with pytest.raises(RunError, match=naming("checkpoints", "100 kB", "free", "root")):
        train("beta-tcvae", **TINY, root=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_the_estimate_of_the_disk_is_what_a_run_writes(tmp_path, monkeypatch):
    """The largest size of a run folder, as its files are written, lies below the estimate and above half of it."""
    largest, save = [0], RunFolder.save_checkpoint

    def measure(folder, *given):
        save(folder, *given)
        written = [path.stat().st_size for path in folder.path.rglob("*") if path.is_file()]
        newest = max(path.stat().st_size for path in folder.checkpoints())
        largest[0] = max(largest[0], sum(written) + newest)  # the next one is written before the oldest goes

    monkeypatch.setattr(RunFolder, "save_checkpoint", measure)
    wide = {**TINY, "encoder_hidden": (256,), "decoder_hidden": (256,)}
    run = ub.train("beta-tcvae", **wide, root=tmp_path, cadence=Cadence(checkpoint_steps=2))
    weights = sum(tensor.nbytes for tensor in load_tensors(run.folder.model_path)[0].values())
    needed = weights + resources.BYTES_BESIDE_TENSORS
    needed += resources.CHECKPOINTS_AT_ONCE * resources.TENSORS_PER_CHECKPOINT * weights
    assert needed / 2 < largest[0] + weights <= needed
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(0, 0, needed))
    check_disk([Runs(weights)], tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(0, 0, needed - 1))
    with pytest.raises(RunError):
        check_disk([Runs(weights)], tmp_path)


def test_a_sweep_needs_all_weights_but_the_checkpoints_of_one_group(tmp_path, monkeypatch):
    text, parameters = resources.BYTES_BESIDE_TENSORS, 10**6
    needed = 100 * (parameters + text) + 9 * 8 * parameters
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(0, 0, needed))
    check_disk([Runs(parameters, members=90, at_once=8), Runs(parameters, members=10, at_once=2)], tmp_path)
    with pytest.raises(RunError):
        check_disk([Runs(parameters, members=101, at_once=8)], tmp_path)


def test_a_limit_on_files_at_a_checkpoint_keeps_the_last_one_and_continues_to_the_same_bits(tmp_path, monkeypatch):
    """As `ulimit -f` does: the second checkpoint is refused half way, in one sentence that names it."""
    how = {**TINY, "root": tmp_path, "cadence": Cadence(checkpoint_steps=3)}
    whole, save = (
        load_tensors(ub.train("beta-tcvae", **how, name="whole").folder.model_path)[0],
        RunFolder.save_checkpoint,
    )
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def limited(folder, step, *given):
        if step == 6:
            resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))
        save(folder, step, *given)

    monkeypatch.setattr(RunFolder, "save_checkpoint", limited)
    try:
        with pytest.raises(DiskError, match=naming("step-000000006.safetensors", "free", "same command")):
            ub.train("beta-tcvae", **how, name="limited")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    monkeypatch.undo()
    folder = RunFolder(tmp_path / "limited")
    assert [path.stem for path in folder.checkpoint_folder.iterdir()] == ["step-000000003"]
    found = load_tensors(ub.train("beta-tcvae", **how, name="limited").folder.model_path)[0]
    assert all(found[name].equal(whole[name]) for name in whole)
