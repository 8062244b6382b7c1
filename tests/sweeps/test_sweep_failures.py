"""What goes wrong in a sweep stays where it is: other groups train, other members are scored, and it is said why."""

import os
import re
import signal
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import unbraid as ub
from tests.support.command import unbraid
from tests.support.messages import names, naming
from tests.support.sweeps import fail_at_batch_16, sweep
from unbraid import scoring
from unbraid.errors import DataError, MissingExtraError, RunError, UnbraidError, UsageError
from unbraid.memory import is_out_of_memory
from unbraid.metrics import background
from unbraid.metrics.needs import INCEPTION_VARIABLE
from unbraid.store import RunFolder, save_tensors
from unbraid.sweeps import run as leading, worker as working
from unbraid.sweeps.folder import SweepFolder
from unbraid.sweeps.run import describe_left_out, describe_plan
from unbraid.training import Interrupted, launch

FULL = [
    torch.cuda.OutOfMemoryError("CUDA out of memory."),
    MemoryError(),
    RuntimeError("[enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory: you tried"),
    RuntimeError("[enforce fail] data. DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes."),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
    RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"),
]


@pytest.mark.parametrize("error", FULL, ids=str)
def test_full_memory_is_recognised(error):
    assert is_out_of_memory(error)


@pytest.mark.parametrize("error", [RuntimeError("shapes differ"), RunError("out of memory"), ValueError("")], ids=repr)
def test_other_errors_are_not_taken_for_full_memory(error):
    assert not is_out_of_memory(error)


# groups


def test_an_unexpected_error_costs_its_group_alone(tmp_path, monkeypatch):
    fail_at_batch_16(monkeypatch, KeyError("nobody expected this"))
    with pytest.raises(RunError, match=naming(1, 2, "KeyError", "nobody expected this", "error.txt")):
        sweep(tmp_path, beta=4, seed=0, batch=[16, 32])
    assert [row["status"] for row in ub.Sweep(tmp_path / "one").table] == ["waiting", "finished"]
    (kept,) = (tmp_path / "one").glob("groups/*/error.txt")
    assert "failing" in kept.read_text()


def test_a_group_that_fills_main_memory_is_halved(tmp_path, monkeypatch):
    trained = working.train_group

    def at_most_one(group, *others):
        if len(group.runs) > 1:
            raise FULL[2]
        return trained(group, *others)

    monkeypatch.setattr(working, "train_group", at_most_one)
    assert len(sweep(tmp_path, beta=4).runs) == 2


def test_a_group_of_another_process_is_left_to_it(tmp_path, monkeypatch, capsys):
    with monkeypatch.context() as patch:
        patch.setattr(leading, "_run_jobs", lambda *given: [])
        sweep(tmp_path, beta=4, seed=0)
    folder = SweepFolder(tmp_path / "one")
    (group,) = folder.list_groups()
    with folder.group_folder(group).locked():
        with pytest.raises(RunError, match=naming(group)):
            sweep(tmp_path, beta=4, seed=[0, 1])
        assert group in folder.list_groups()
        assert [row["status"] for row in ub.Sweep(folder.path).table] == ["waiting", "finished"]
        with pytest.raises(RunError, match=naming(group)):
            working.run_group(str(folder.path), group, "cpu")
    assert names(capsys.readouterr().err, group)
    assert len(sweep(tmp_path, beta=4, seed=[0, 1]).runs) == 2


def test_too_many_members_are_capped_with_a_note(tmp_path):
    assert any(names(note, 512, 1000) for note in sweep(tmp_path, beta=4, seed=0, members=1000).notes)


def test_a_sweep_under_torchrun_is_refused(tmp_path, monkeypatch):
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match="torchrun"):
        sweep(tmp_path)


# scores


def test_sigterm_between_scores_leaves_tables_and_the_next_call_goes_on(tmp_path, monkeypatch):
    evaluate = background.evaluate

    def terminated(*given, **settings):
        os.kill(os.getpid(), signal.SIGTERM)
        return evaluate(*given, **settings)

    before = signal.getsignal(signal.SIGTERM)
    with monkeypatch.context() as patch, pytest.raises(Interrupted, match=naming(tmp_path / "one")):
        patch.setattr(background, "evaluate", terminated)
        sweep(tmp_path, beta=4)
    assert signal.getsignal(signal.SIGTERM) == before
    table = ub.Sweep(tmp_path / "one").table
    assert [row["elbo/closed-form"] is not None for row in table] == [True, False]
    assert (tmp_path / "one" / "table.csv").read_text().count("finished") == 2
    assert all(member.scores for member in sweep(tmp_path, beta=4).members)


def test_members_are_encoded_a_few_at_a_time_and_forgotten(tmp_path, monkeypatch):
    made = []
    encode = scoring._encode
    monkeypatch.setattr(scoring, "MAX_ENCODED_TOGETHER", 2)
    monkeypatch.setattr(scoring, "_encode", lambda several: made.append(several) or encode(several))
    swept = sweep(tmp_path, beta=4, seed=range(3))
    assert [len(part) for part in made] == [1, 2]
    assert all(member.scores for member in swept.members)
    assert not any({"posterior", "means", "samples"} & vars(each).keys() for part in made for each in part)


def test_a_score_that_fills_memory_is_tried_once_more_alone(tmp_path, monkeypatch):
    evaluate, tries = background.evaluate, []

    def full_at_first(evaluation, names, **settings):
        tries.append("posterior" in vars(evaluation))
        if len(tries) == 1:
            raise FULL[0]
        return evaluate(evaluation, names)

    monkeypatch.setattr(scoring, "_is_faster_stacked", lambda device: True)
    monkeypatch.setattr(background, "evaluate", full_at_first)
    assert all(member.scores for member in sweep(tmp_path, beta=4).members)
    assert tries == [True, False, False], "the codes of all were given up before the second try"


def test_a_score_that_never_fits_costs_the_others_nothing(tmp_path, monkeypatch):
    evaluate, seen = background.evaluate, []

    def full_for_the_first(evaluation, names, **settings):
        seen.append(evaluation)
        if evaluation is seen[0]:
            raise FULL[0]
        return evaluate(evaluation, names)

    monkeypatch.setattr(background, "evaluate", full_for_the_first)
    with pytest.raises(RunError, match=naming("elbo/closed-form", "memory")):
        sweep(tmp_path, beta=4)
    assert [bool(member.scores) for member in ub.Sweep(tmp_path / "one").members] == [False, True]


def test_a_member_that_changed_after_training_costs_the_others_nothing(tmp_path):
    first, second = sweep(tmp_path, beta=4, metrics=[]).runs
    save_tensors(first.folder.model_path, {n: tensor + 1 for n, tensor in first.folder.load_model().items()})
    with pytest.raises(RunError, match=naming(first.path)):
        sweep(tmp_path, beta=4)
    assert (first.scores, bool(second.scores)) == ([], True)


def test_a_metric_without_its_weights_is_asked_for_again_once_they_are_given(tmp_path, monkeypatch):
    monkeypatch.delenv(INCEPTION_VARIABLE, raising=False)
    run, names = RunFolder(tmp_path), ["frechet/inception", "coherence/classifier"]
    run.write_json("left-out", {"metrics": dict.fromkeys(names, "why")})
    assert scoring.find_missing_metrics(run, names) == []
    monkeypatch.setenv(INCEPTION_VARIABLE, "weights.safetensors")
    assert scoring.find_missing_metrics(run, names) == ["frechet/inception"]


def test_what_is_left_out_is_noted_once_per_metric(tmp_path, monkeypatch):
    numbers = iter(range(100))

    def refuse(evaluation, names, **settings):
        raise DataError(f"posterior {next(numbers)} is too narrow.")

    monkeypatch.setattr(background, "evaluate", refuse)
    swept = sweep(tmp_path, batch=[16, 32])
    (note,) = swept.notes
    assert names(note, "elbo/closed-form", 8, "posterior 0 is too narrow.")
    assert sweep(tmp_path, batch=[16, 32]).notes == []


def test_a_missing_extra_is_not_held_against_the_run(tmp_path, monkeypatch):
    def refuse(evaluation, names, **settings):
        raise MissingExtraError("This", "scipy", "metrics")

    with monkeypatch.context() as patch:
        patch.setattr(background, "evaluate", refuse)
        swept = sweep(tmp_path, beta=4)
    (note,) = swept.notes
    assert names(note, "elbo/closed-form", "pip install 'unbraid[metrics]'")
    assert all(member.scores for member in sweep(tmp_path, beta=4).members)


def test_one_member_is_counted_as_one(tmp_path):
    swept = sweep(tmp_path, beta=4, seed=0)
    configs = {run.path.name: run.config for run in swept.runs}
    one = r"\b1 (member|run)\b"
    assert re.search(one, describe_plan(swept.folder, [], configs, "cpu", "local"))
    group = swept.folder.add_group(list(configs))
    told = describe_plan(swept.folder, [group], configs, "cpu", "local")
    assert re.search(one, told)
    assert names(told, 6, "cpu")
    (note,) = describe_left_out({}, {"a": {"mig": "why"}})
    assert names(note, "mig", 1, "why")


def test_only_a_request_to_stop_gets_out_of_a_job(tmp_path):
    def stopped(*given):
        raise Interrupted("Stopped at step 3")

    with pytest.raises(Interrupted):
        launch.run_job(stopped, launch.GroupJob(str(tmp_path), "one"))


@pytest.mark.parametrize("late", ["train_group", "_score"])
def test_a_signal_after_the_last_step_or_score_of_a_group_stops_the_sweep(tmp_path, monkeypatch, late):
    done = getattr(working, late)

    def interrupted(*given):
        ended = done(*given)
        os.kill(os.getpid(), signal.SIGINT)
        return ended

    with monkeypatch.context() as patch, pytest.raises(Interrupted, match=naming(tmp_path / "one")):
        patch.setattr(working, late, interrupted)
        sweep(tmp_path, beta=4, seed=0)
    assert {member.state for member in sweep(tmp_path, beta=4, seed=0).members} == {"finished"}


@pytest.fixture
def begun(tmp_path, monkeypatch):
    """A sweep over runs on pictures in a relative path, whose first command was given in the folder `home`."""
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    (home / "pictures").mkdir(parents=True)
    elsewhere.mkdir()
    for number in range(8):
        pixels = np.random.default_rng(number).integers(0, 256, (8, 8)).astype(np.uint8)
        Image.fromarray(pixels).save(home / "pictures" / f"{number}.png")
    monkeypatch.chdir(home)
    settings = {"network": "mlp", "encoder_hidden": (4,), "decoder_hidden": (4,), "z": 2, "steps": 2, "batch": 4}
    call = partial(ub.sweep, "beta-vae", beta=[1, 4], device="cpu", metrics=[], report=False, **settings)
    sweep = call(data="pictures", root=home / "runs", name="pairs")
    monkeypatch.chdir(elsewhere)
    return sweep, call


@pytest.mark.parametrize("data", [{"data": "pictures"}, {"data": "images", "data_folder": "pictures"}])
def test_a_sweep_that_is_continued_elsewhere_names_member_path_and_folder(begun, data):
    sweep, call = begun
    home, elsewhere = sweep.path.parents[1], Path.cwd()
    facts = (min(sweep.folder.members), "pictures", elsewhere, f"from {home}")
    with pytest.raises(RunError, match=naming(*facts, sweep.path)):
        call(root=sweep.path.parent, name="pairs", **data)
    with pytest.raises(UnbraidError, match=naming("pictures")) as caught:
        call(root=sweep.path.parent, name="others", **data)
    assert "member" not in str(caught.value), "another sweep has no member with these data"


def test_the_command_says_so_too(begun):
    sweep, _ = begun
    words = ["sweep", "beta-vae", "beta=1,4", "data=pictures", "--root", sweep.path.parent, "--device", "cpu"]
    told = unbraid(*words, cwd=Path.cwd(), code=1)
    assert names(told, "member", "pictures", sweep.path, f"from {sweep.path.parents[1]}")


def test_a_worker_and_a_second_stage_elsewhere_name_the_run_that_lacks_its_data(begun):
    sweep, _ = begun
    run = sweep.folder.run_folder(min(sweep.folder.members))
    group = sweep.folder.add_group([run.path.name])
    with pytest.raises(RunError, match=naming(run.path, "pictures", Path.cwd())):
        working.run_group(str(sweep.path), group, "cpu")
    with pytest.raises(RunError, match=naming(run.path, "pictures", Path.cwd())):
        ub.sweep("ms-vae", refines=[run.path], z=[1, 2], device="cpu", root=sweep.path.parent)
