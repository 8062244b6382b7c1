"""Sweeps: axes, folders that continue where they stopped, tables, the page, the command."""

import csv
import json
import os
import signal
import sys
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import yaml

import unbraid as ub
from tests.support.command import unbraid
from tests.support.messages import names, naming
from tests.support.sweeps import SMALL, WORDS, fail_at_batch_16, sweep, weights
from unbraid import scoring
from unbraid.errors import DiskError, RunError, UsageError
from unbraid.metrics import Evaluation
from unbraid.progress import progress
from unbraid.store import RunFolder
from unbraid.sweeps import run as leading, worker as working
from unbraid.sweeps.folder import SweepFolder
from unbraid.training import Cadence, Interrupted, loop
from unbraid.training.state import State


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return sweep(tmp_path_factory.mktemp("sweep"), metrics=("mig/histogram-mean", "elbo/closed-form", "tc/exact"))


def written(swept):
    return {run.path.name: run.folder.model_path.stat().st_mtime_ns for run in swept.runs}


# folders


def test_members_end_as_ordinary_runs(made, tmp_path):
    assert len(made) == len(made.runs) == 4
    assert not list(made.path.glob("groups/*"))
    run = made.runs[0]
    assert run.path.name == run.config.run_id
    alone = ub.train("beta-tcvae", beta=1, seed=0, root=tmp_path, **{k: v for k, v in SMALL.items() if k != "metrics"})
    assert alone.config == run.config
    assert alone.history[-1]["loss"] == pytest.approx(run.history[-1]["loss"], rel=1e-4)
    assert ub.load(run.path, device="cpu").sample(2).shape == (2, 1, 32, 32)


def test_sweep_yaml_says_what_was_asked_for(made):
    stored = yaml.safe_load((made.path / "sweep.yaml").read_text())
    assert stored["format"] == 1
    assert stored["axes"] == {"beta": [1, 4], "seed": [0, 1]}
    assert stored["fixed"]["recipe"] == "beta-tcvae"
    assert "tc/exact" in stored["metrics"]


def test_again_trains_nothing_and_more_seeds_extend(made, tmp_path):
    before = sweep(tmp_path)
    first = written(before)
    assert written(sweep(tmp_path)) == first
    longer = sweep(tmp_path, seed=range(3))
    assert len(longer.runs) == 6
    assert {run: time for run, time in written(longer).items() if run in first} == first
    assert yaml.safe_load((longer.path / "sweep.yaml").read_text())["axes"]["seed"] == [0, 1, 2]
    for other in ({"steps": 30}, {"lr": [1e-3, 1e-4]}):
        with pytest.raises(UsageError, match=naming(tmp_path / "one", next(iter(other)))):
            sweep(tmp_path, **other)


def test_more_metrics_are_measured_on_finished_runs(made):
    before = written(made)
    again = sweep(made.path.parent, metrics=("kl/closed-form",))
    assert written(again) == before
    assert all("kl/closed-form" in member.scores for member in again.members)
    counts = [sum(score.name == "kl/closed-form" for score in run.scores) for run in again.runs]
    assert counts == [1, 1, 1, 1]


@pytest.mark.parametrize(
    ("latents", "protocol"),
    [
        (["normal:2"], "closed-form"),
        pytest.param(["normal:2+concrete:3"], "sampled", marks=pytest.mark.slow),
        (["normal:2", "normal:2+concrete:3"], "sampled"),
    ],
)
def test_bounds_of_all_members_are_by_the_protocol_that_their_latents_have(tmp_path, latents, protocol):
    small = {key: value for key, value in SMALL.items() if key not in ("metrics", "z")}
    swept = ub.sweep("hfvae", **{**small, "steps": 2}, latents=latents, seed=range(2), root=tmp_path, report=False)
    scores = [{name for name in member.scores if name.startswith(("elbo", "kl"))} for member in swept.members]
    assert scores == [{f"elbo/{protocol}", f"kl/{protocol}"}] * 2 * len(latents)
    assert not any("elbo/" in note or "kl/" in note for note in swept.notes)
    assert f"elbo/{protocol}" in swept.report().read_text()


def test_a_mixture_of_experts_is_swept_with_notes_about_its_bound(tmp_path):
    small = {key: SMALL[key] for key in ("network", "batch", "device")}
    pairs = {"data": "sprites-pairs", "data_size": 16, "data_positions": 3, "data_orientations": 4}
    swept = ub.sweep("mmvae", **small, **pairs, steps=2, seed=range(2), root=tmp_path, report=False)
    assert [member.state for member in swept.members] == ["finished"] * 2
    assert any(names(note, "elbo/closed-form", 2) for note in swept.notes)


def test_an_interrupted_group_resumes_as_it_was_and_ends_the_same(made, tmp_path, monkeypatch):
    advance = State.advance

    def interrupted(state):
        advance(state)
        if state.step == 4:
            os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch, pytest.raises(Interrupted, match=naming(tmp_path / "one")):
        patch.setattr(State, "advance", interrupted)
        sweep(tmp_path, cadence=Cadence(checkpoint_steps=3))
    folder = SweepFolder(tmp_path / "one")
    (group,) = folder.list_groups()
    assert folder.group_folder(group).latest_checkpoint()[0] == 4
    assert {row["status"] for row in ub.Sweep(folder.path).table} == {"interrupted"}
    composition = folder.list_runs(group)
    seen = []
    trained = working.train_group
    monkeypatch.setattr(
        working, "train_group", lambda *given: seen.append([f.path.name for f in given[0].runs]) or trained(*given)
    )
    again = sweep(tmp_path, members=1)
    assert seen == [composition], "a group keeps its members, whatever the command says now"
    for run, tensors in weights(again).items():
        assert all(torch.equal(tensor, weights(made)[run][name]) for name, tensor in tensors.items())
    assert [line["step"] for line in again.runs[0].history] == [line["step"] for line in made.runs[0].history]


def test_weights_of_many_members_are_written_several_at_once(made, tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "MAX_WRITERS", 2)
    save, two_writers = RunFolder.save_model, threading.Barrier(2)

    def save_beside_another(folder, tensors):
        two_writers.wait(timeout=60)
        save(folder, tensors)

    def fail(folder, tensors):
        raise DiskError(f"{folder.model_path} cannot be written: the disk is full.")

    with monkeypatch.context() as patch, pytest.raises(RunError, match="the disk is full"):
        patch.setattr(RunFolder, "save_model", fail)
        sweep(tmp_path)
    monkeypatch.setattr(RunFolder, "save_model", save_beside_another)
    for run, tensors in weights(sweep(tmp_path)).items():
        assert all(torch.equal(tensor, weights(made)[run][name]) for name, tensor in tensors.items())


def test_a_group_that_is_killed_between_its_last_files_trains_again_as_a_whole(made, tmp_path, monkeypatch):
    """It has no checkpoint, and one of its members has ended."""
    write = RunFolder.write_json

    def killed(folder, name, facts):
        write(folder, name, facts)
        if facts.get("state") == "finished":
            raise SystemExit

    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr(RunFolder, "write_json", killed)
        sweep(tmp_path)
    assert sorted(row["status"] for row in ub.Sweep(tmp_path / "one").table) == ["finished", *["running"] * 3]
    again = sweep(tmp_path)
    assert {run.folder.read_json("environment")["group"] for run in again.runs} == {4}
    for run, tensors in weights(again).items():
        assert all(torch.equal(tensor, weights(made)[run][name]) for name, tensor in tensors.items())


def test_a_diverged_member_is_flagged_and_left_alone(made, tmp_path):
    swept = sweep(tmp_path, lr=[1e-3, 1e9], beta=4, seed=0)
    states = {row["lr"]: (row["status"], row["trouble"]) for row in swept.table}
    assert states[1e-3] == ("finished", "")
    assert states[1e9][0] == "diverged"
    assert names(states[1e9][1], "step")
    assert any(names(note, 1, 2, "diverged") for note in swept.notes)
    assert "diverged" in swept.report().read_text()
    history = [(swept.folder.run_folder(m.run).path / "status.json").stat().st_mtime_ns for m in swept.members]
    again = sweep(tmp_path, lr=[1e-3, 1e9], beta=4, seed=0)
    assert [(again.folder.run_folder(m.run).path / "status.json").stat().st_mtime_ns for m in again.members] == history


def test_a_group_that_does_not_fit_is_halved(tmp_path, monkeypatch, capsys):
    trained = working.train_group

    def at_most_one(group, *others):
        if len(group.runs) > 1:
            raise torch.cuda.OutOfMemoryError("too much")
        return trained(group, *others)

    monkeypatch.setattr(working, "train_group", at_most_one)
    swept = sweep(tmp_path, beta=4, seed=range(3))
    assert len(swept.runs) == 3
    assert names(capsys.readouterr().err, "memory", 3, 2, 1)
    assert len(swept.notes) == 2
    assert not list(swept.path.glob("groups/*"))
    assert working.run_group(str(swept.path), "0001-done", "cpu") == [], "a job that died at its very end is done"


def test_codes_that_do_not_fit_are_made_in_smaller_parts(monkeypatch):
    sizes = []

    def at_most_two(evaluations):
        if len(evaluations) > 2:
            raise torch.cuda.OutOfMemoryError("too much")
        sizes.append(len(evaluations))

    def on_gpu():
        evaluation = Evaluation.__new__(Evaluation)
        evaluation.dataset = SimpleNamespace(device=torch.device("cuda"))
        return evaluation

    monkeypatch.setattr(scoring, "encode_together", at_most_two)
    scoring._encode([on_gpu() for _ in range(7)])
    assert sizes == [2, 2, 2], "the seventh encodes itself when it is needed"


def test_one_failing_group_does_not_stop_the_others(tmp_path, monkeypatch):
    fail_at_batch_16(monkeypatch, RunError("the disk is full"))
    with pytest.raises(RunError, match=naming(1, 2, "the disk is full")):
        sweep(tmp_path, beta=4, batch=[16, 32])
    states = [row["status"] for row in ub.Sweep(tmp_path / "one").table]
    assert states == ["waiting", "waiting", "finished", "finished"]


def test_metrics_that_the_data_do_not_allow_are_noted_once(tmp_path, monkeypatch):
    images = np.random.default_rng(0).integers(0, 255, (64, 8, 8), dtype=np.uint8)
    given = {"data": images, "batch": 16, "beta": 4, "metrics": ("mig/histogram-mean", "elbo/closed-form")}
    swept = sweep(tmp_path, **given)
    (note,) = swept.notes
    assert names(note, "mig/histogram-mean", "factor")
    assert not sweep(tmp_path, **given).notes
    monkeypatch.setattr(leading, "check_place", lambda on: None)
    with pytest.raises(UsageError, match=naming("on='local'")):
        sweep(tmp_path, **given, on="slurm")


def test_a_setting_may_be_one_recipes_alone(tmp_path):
    own = {"beta-tcvae.estimator": ["mws", "mss"], "beta-tcvae.kl": "sampled"}
    swept = sweep(tmp_path, ["beta-vae", "beta-tcvae"], beta=2, seed=0, **own)
    assert [(row["recipe"], row["beta-tcvae.estimator"]) for row in swept.table] == [
        ("beta-vae", "none"),
        ("beta-tcvae", "mws"),
        ("beta-tcvae", "mss"),
    ]
    settings = [run.config.objective.settings for run in swept.runs]
    assert [(s.get("estimator"), s.get("kl")) for s in settings] == [
        (None, None),
        ("mws", "sampled"),
        ("mss", "sampled"),
    ]
    with pytest.raises(UsageError, match=naming("estimatr", "beta-tcvae", "estimator")):
        sweep(tmp_path, ["beta-vae", "beta-tcvae"], name="two", **{"beta-tcvae.estimatr": "mws"})


def test_what_is_said_for_one_recipe_takes_the_place_of_what_is_said_for_all(tmp_path):
    swept = sweep(tmp_path, ["beta-vae", "beta-tcvae"], beta=[1, 4], seed=0, **{"beta-tcvae.beta": 2})
    assert [(row["recipe"], row["beta"]) for row in swept.table] == [
        ("beta-vae", 1),
        ("beta-vae", 4),
        ("beta-tcvae", 2),
    ]
    assert [run.config.objective.settings["beta"] for run in swept.runs] == [1, 4, 2]


def test_recipes_are_an_axis(tmp_path):
    swept = sweep(tmp_path, ["beta-vae", "beta-tcvae"], beta=[1, 4], seed=0)
    assert [(row["recipe"], row["beta"]) for row in swept.table] == [
        ("beta-vae", 1), ("beta-vae", 4), ("beta-tcvae", 1), ("beta-tcvae", 4)]  # fmt: skip
    with pytest.raises(UsageError, match=naming("beta", "vae")):
        sweep(tmp_path, ["beta-vae", "vae"])


@pytest.mark.parametrize(
    ("settings", "facts"),
    [
        ({"beta": []}, ["beta"]),
        ({"beta": [1, 1]}, ["beta"]),
        ({"beta": [1, 1.0]}, ["run"]),
        ({"members": 0}, [1]),
        ({"slurm": {"partition": "gpu"}}, ["partition", "--on slurm"]),
        ({"seed": range(6000)}, ["12,000", "10,000", "--many"]),
        ({"encoder": torch.nn.Linear(2, 2)}, ["networks"]),
        ({"on": "moon"}, ["moon"]),
        ({"metrics": ("migg",)}, ["migg", "mig"]),
        ({"name": "a/b"}, ["a/b"]),
    ],
)
def test_wrong_sweeps_leave_nothing_behind(tmp_path, settings, facts):
    with pytest.raises(UsageError, match=naming(*facts)):
        sweep(tmp_path, **settings)
    assert not list(tmp_path.iterdir())


def test_other_folders_are_not_written_into(tmp_path):
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "thesis.tex").touch()
    with pytest.raises(RunError, match=naming(tmp_path / "one", "sweep.yaml")):
        sweep(tmp_path)


# results


def test_tables_on_disk(made):
    with (made.path / "table.csv").open(newline="") as handle:
        rows = list(csv.DictReader(handle))
    assert [(row["beta"], row["seed"]) for row in rows] == [("1", "0"), ("1", "1"), ("4", "0"), ("4", "1")]
    assert all(row["status"] == "finished" for row in rows)
    assert float(rows[0]["tc/exact"]) == made.members[0].scores["tc/exact"].value
    with (made.path / "summary.csv").open(newline="") as handle:
        summary = [row for row in csv.DictReader(handle) if row["score"] == "elbo/closed-form"]
    values = [float(row["elbo/closed-form"]) for row in rows if row["beta"] == "4"]
    assert float(summary[1]["mean"]) == pytest.approx(np.mean(values))


def test_page_without_the_extra_is_a_note(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    swept = sweep(tmp_path, beta=4, seed=0, report=True)
    assert any(names(note, "report.html", "pip install 'unbraid[report]'") for note in swept.notes)
    command = ["sweep", "beta-tcvae", *WORDS, "beta=4", "seed=0", "--metric", "elbo", "--device", "cpu"]
    printed = unbraid(*command, cwd=tmp_path)
    assert "table.csv" in printed
    assert "report.html" not in printed


# the command


def test_command_plans_trains_and_tells(tmp_path):
    told = json.loads(
        unbraid("sweep", "beta-vae", *WORDS, "beta=1,4", "--metric", "elbo", "--json", "--device", "cpu", cwd=tmp_path)
    )
    assert (told["members"], told["finished"], told["diverged"]) == (2, 2, 0)
    assert told["sweep"].startswith("runs/beta-vae-")
    assert all((tmp_path / told[key]).exists() for key in ("table", "summary", "report"))
    printed = unbraid("sweep", "beta-vae", *WORDS, "beta=1,4", "--metric", "elbo", "--device", "cpu", cwd=tmp_path)
    assert "elbo/closed-form" in printed
    (tmp_path / told["report"]).unlink()
    assert unbraid("report", told["sweep"], cwd=tmp_path).strip() == told["report"]
    assert (tmp_path / told["report"]).exists()


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        (["beta-vae", "beta=0:0"], ["beta=0:0"]),
        (["beta-vae", "bta=1,2"], ["bta", "beta-vae", "beta"]),
        (["beta-vae,beta-tcva"], ["beta-tcva", "beta-tcvae"]),
        (["beta-vae", "name=x"], ["name", "--name"]),
        (["beta-vae", "cadence=1"], ["cadence"]),
        (["3", *WORDS], ["objective", 3]),
        (["beta-vae", "--slurm", "partition=gpu"], ["--on slurm"]),
        (["beta-vae", *WORDS, "seed=0:20000"], ["20,000", "10,000", "--many"]),
        (["beta-vae", "--on", "rey"], ["rey", "ray"]),
        (["beta-vae", *WORDS, "beta=1,two"], ["beta", "two"]),
    ],
)
def test_wrong_use_of_the_command_exits_2(arguments, facts, tmp_path):
    told = unbraid("sweep", *arguments, cwd=tmp_path, code=2)
    assert names(told, *facts)
    assert not list(tmp_path.glob("runs/*"))


def test_progress_names_the_values_of_the_axes_and_the_time_left(tmp_path, monkeypatch):
    shown, said = [], []

    def record(words, *given, **options):
        shown.append(words)
        return progress(words, *given, **options)

    monkeypatch.setattr(loop, "progress", record)
    monkeypatch.setattr(leading, "announce", said.append)
    sweep(tmp_path, z=[2, 3], lr=[1e-3, 1e-2], seed=0, beta=4, metrics=(), members=1)
    assert shown[:2] == ["beta-tcvae on sprites-small, z=2, lr=0.001", "beta-tcvae on sprites-small, z=2, lr=0.01"]
    assert names(said[1], "1 of 4", "left")
    assert not names(said[-1], "left")
    shown.clear()
    sweep(tmp_path, z=[2, 3], name="two", metrics=())
    assert shown == [f"beta-tcvae on sprites-small, z={z}, 4 members" for z in (2, 3)]


def test_interrupted_command_exits_130(tmp_path, monkeypatch):
    def interrupted(*given):
        raise Interrupted("Stopped at step 3")

    monkeypatch.setattr(working, "train_group", interrupted)
    arguments = ["sweep", "beta-vae", *WORDS, "beta=1,4", "--name", "one", "--device", "cpu"]
    assert names(unbraid(*arguments, cwd=tmp_path, code=130), "runs/one")
    assert (tmp_path / "runs/one/table.csv").exists()


def test_tables_hold_scores_of_one_kind_alone(tmp_path):
    """A score on some rows, or with other settings, is not set beside those of other runs."""
    given = {
        **SMALL,
        "metrics": ("mig/histogram-mean",),
        "seed": [0, 1],
        "root": tmp_path,
        "name": "few",
        "report": False,
    }
    made = ub.sweep("vae", **given)
    before = (made.path / "summary.csv").read_text()
    run = made.runs[0]
    usual = run.scores[-1]
    (other,) = run.score("mig/histogram-mean", bins=2)
    (some,) = run.score("mig/histogram-mean", rows=50)
    assert [score.has_default_settings for score in (usual, other, some)] == [True, False, False]
    ub.sweep("vae", **given)
    assert (made.path / "summary.csv").read_text() == before
    page = run.report().read_text()
    assert page.count("mig/histogram-mean") == 3, "each of the three scores has its row"
    run.score("units/active")
    made.report()
    assert "units/active" in (made.path / "table.csv").read_text().splitlines()[0]
