"""Experiments at scale smoke through Python and through the command: runs that are reused, and what is refused."""

import json
import shutil
import subprocess
import sys

import pytest
import torch

from tests.support.command import unbraid
from tests.support.messages import names, naming
from tests.support.reproducing import smoke
from unbraid import data, store
from unbraid.config import Choice
from unbraid.errors import RunError, UsageError
from unbraid.experiments import Experiment, Scale, StandIn, experiment, running, writing
from unbraid.experiments.measuring import measure_all
from unbraid.experiments.run_matching import matches_settings
from unbraid.experiments.running import find_experiments
from unbraid.experiments.stand_in import choose_data
from unbraid.experiments.stored_runs import Source, find_stored
from unbraid.store import RunFolder
from unbraid.sweeps import Sweep, sweep
from unbraid.training import Interrupted, configure

FILES = {"README.md", "figure.png", "runs.csv", "table.csv", "table.md", "verdicts.json"}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("reproduced")


def test_the_same_runs_serve_two_figures(place):
    smoke("chen2018/fig2", place)
    sweeps = {path.parent.name for path in (place / "runs/chen2018").glob("*/sweep.yaml")}
    other = smoke("chen2018/fig4", place)
    assert other.trained == 0
    assert {path.parent.name for path in (place / "runs/chen2018").glob("*/sweep.yaml")} == sweeps


@pytest.mark.usefixtures("coarse_figures")
def test_an_extended_sweep_lends_only_the_runs_that_were_asked_for(place):
    smoke("chen2018/fig2", place)
    facts = experiment["chen2018/fig2"].facts
    settings = dict(facts.build_sweeps("smoke")["beta-vae"], seed=range(3))
    longer = sweep(settings.pop("recipe"), root=place / "runs/chen2018", device="cpu", metrics=["elbo"], **settings)
    assert len(longer) == 6
    assert smoke("chen2018/fig2", place).runs == 8


@pytest.mark.usefixtures("coarse_figures")
def test_scores_with_settings_of_their_own_are_measured_once(place):
    smoke("chen2018/figS5", place)
    folder = next((place / "runs/chen2018").glob("vae-*/runs/*"))
    lines = RunFolder(folder).read_lines("scores")
    batches = [line["details"]["settings"]["batch"] for line in lines if line["metric"] == "betavae"]
    assert batches == [1, 4, 16]
    smoke("chen2018/figS5", place)
    assert RunFolder(folder).read_lines("scores") == lines


@pytest.mark.usefixtures("coarse_figures")
def test_runs_have_all_their_scores_also_those_measured_last(place):
    smoke("chen2018/fig2", place)
    run = RunFolder(next((place / "runs/chen2018").glob("beta-vae-*/runs/*")))
    measures = {"KL of a run": ("kl/closed-form", {})}
    for _ in range(2):  # measured, and read
        scores = measure_all([run], measures, torch.device("cpu"))[run]
        assert {"KL of a run", "kl/closed-form", "elbo/closed-form"} <= scores.keys()


@pytest.mark.usefixtures("coarse_figures")
def test_a_run_is_loaded_and_hashed_once_for_all_its_scores(place, monkeypatch):
    smoke("chen2018/figS5", place)
    runs = [RunFolder(folder) for folder in (place / "runs/chen2018").glob("vae-*/runs/*")]
    hashed, real = [], store.content_hash
    monkeypatch.setattr(store, "content_hash", lambda *files: hashed.append(files[0]) or real(*files))
    sizes = {f"at {size}": ("betavae/logistic", {"batch": size, "train": 100, "test": 100}) for size in (2, 3, 5)}
    scores = measure_all(runs, sizes, torch.device("cpu"))
    assert all(sizes.keys() <= scores[run].keys() for run in runs)
    assert sorted(hashed) == sorted(run.model_path for run in runs)


@pytest.mark.usefixtures("coarse_figures")
def test_each_data_set_is_loaded_once(tmp_path, monkeypatch):
    loaded, load = [], data.base._load
    monkeypatch.setattr(data.base, "_load", lambda *given: loaded.append(given[:2]) or load(*given))
    smoke("chen2018/fig2", tmp_path)
    assert len(loaded) == 1


@pytest.mark.usefixtures("coarse_figures")
def test_runs_of_a_sweep_that_is_there_are_taken_without_weights(place, tmp_path):
    smoke("chen2018/fig2", place)
    smoke("chen2018/figS5", place)
    facts = experiment["chen2018/fig2"].facts.build_sweeps("smoke")
    study = shutil.copytree(Sweep(_sweep_of(place, "beta-tcvae")).path, tmp_path / "study")
    for weights in study.rglob("model.safetensors"):
        weights.unlink()
    assert all(matches_settings(RunFolder(path).config, facts["beta-tcvae"]) for path in (study / "runs").iterdir())
    assert not any(matches_settings(RunFolder(path).config, facts["beta-vae"]) for path in (study / "runs").iterdir())
    mixed = smoke("chen2018/fig2", tmp_path, runs=study)
    assert (mixed.runs, mixed.trained) == (8, 4)
    assert any(names(note, "beta-tcvae", study, "beta-vae") for note in mixed.notes)
    several = tmp_path / "several"
    for number, recipe in enumerate(("vae", "beta-tcvae", "beta-vae")):
        shutil.copytree(_sweep_of(place, recipe), several / str(number))
    both = smoke("chen2018/fig2", tmp_path / "again", runs=several)
    assert both.trained == 0
    assert both.runs >= 8  # other experiments may have added seeds to these sweeps
    with pytest.raises(RunError, match="nowhere"):
        smoke("chen2018/fig2", tmp_path, runs=tmp_path / "nowhere")
    taken = shutil.copytree(Sweep(_sweep_of(place, "vae")).path, tmp_path / "vaes")
    with pytest.raises(UsageError, match=naming(taken, "beta-vae", "beta-tcvae", "smoke")):
        smoke("chen2018/fig2", tmp_path, runs=taken)
    outcome = smoke("chen2018/figS5", tmp_path, runs=taken)
    assert (outcome.runs, outcome.trained) == (3, 0)
    assert any(names(note, taken) for note in outcome.notes)


def test_runs_on_the_wanted_data_come_before_those_on_its_stand_in(tmp_path):
    tiny = {"data.size": 16, "data.positions": 2, "network": "mlp", "encoder.hidden": (4,), "decoder.hidden": (4,)}
    facts = Experiment(
        series={"vae": {"recipe": "vae"}},
        scales={"small": Scale({"data": StandIn("sprites", "sprites-small"), "z": 2, "seed": range(1)})},
    )
    for name in ("sprites-small", "sprites"):  # the stand-in first, as its folder may come first by its name
        data = {"data": name, **({"data.scales": 2, "data.orientations": 2} if name == "sprites" else {})}
        root = tmp_path / str(name == "sprites")
        sweep("vae", root=root, device="cpu", metrics=[], z=2, steps=1, batch=4, seed=range(1), **data, **tiny)
    paths = [next((tmp_path / each).iterdir()) for each in ("False", "True")]
    for sources, wanted, notes in ((paths, "sprites", 0), (paths[:1], "sprites-small", 1)):
        source = Source(tmp_path, tuple(Sweep(path) for path in sources))
        sweeps = facts.build_sweeps("small")
        stored = find_stored(facts, "small", sweeps, source)
        series, (member,) = stored.runs["vae"]
        assert series.folder(member).config.data.name == wanted
        assert sum(names(note, "stand", "sprites-small") for note in stored.describe(sweeps)) == notes


def _sweep_of(place, recipe):
    named = experiment["chen2018/figS5" if recipe == "vae" else "chen2018/fig2"].facts.build_sweeps("smoke")
    wanted = named[recipe]
    for path in (place / "runs/chen2018").glob("*/sweep.yaml"):
        members = Sweep(path.parent).folder
        if all(
            matches_settings(members.run_folder(run).config, {**wanted, "seed": range(9)}) for run in members.members
        ):
            return path.parent
    raise AssertionError(recipe)


@pytest.mark.usefixtures("coarse_figures")
def test_larger_results_are_not_written_over(place, tmp_path):
    outcome = smoke("chen2018/table1", tmp_path)
    stored = outcome.folder / "verdicts.json"
    stored.write_text(json.dumps({**json.loads(stored.read_text()), "scale": "budget"}))
    with pytest.raises(UsageError, match=naming(outcome.folder, "budget", "smoke", "--out")):
        smoke("chen2018/table1", tmp_path)
    stored.write_text("{}")
    with pytest.raises(UsageError, match=naming(stored, "--out")):
        smoke("chen2018/table1", tmp_path)


def test_without_matplotlib_the_verdicts_are_still_there(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    outcome = smoke("chen2018/table1", tmp_path)
    assert {path.name for path in outcome.folder.iterdir()} == FILES - {"figure.png"}
    assert any(names(note, "figure.png", "matplotlib") for note in outcome.notes)


def test_commit_is_told_in_a_checkout_and_the_version_elsewhere(monkeypatch):
    def no_git(*given, **others):
        raise OSError

    monkeypatch.setattr(subprocess, "run", no_git)
    assert writing.find_commit().startswith("version ")


def test_a_stand_in_is_named():
    settings, notes = choose_data(experiment["chen2018/fig2"].facts.build_sweeps("paper")["beta-vae"])
    assert settings["data"] == "sprites"
    (note,) = notes
    assert names(note, "sprites", "dsprites")


OWN_FILES = {item.name for item in data.describe() if item.origin == "your files"}


@pytest.mark.parametrize("name", experiment)
def test_data_that_nobody_can_download_have_a_stand_in(name):
    facts = experiment[name].facts
    for scale in facts.scales:
        for settings in facts.build_sweeps(scale).values():
            wanted = settings.get("data")
            assert (wanted.instead if isinstance(wanted, StandIn) else wanted) not in OWN_FILES


@pytest.mark.parametrize("scale", ["budget", "paper"])
def test_without_faces_figure_5_biases_the_places_of_sprites(scale):
    """The stand-in has other factors, so its settings differ, and runs with them are found."""
    wanted = experiment["chen2018/fig5-faces"].facts.build_sweeps(scale)["beta-TCVAE"]
    assert wanted["split"][0].startswith("bias:azimuth,elevation:A")
    used, (note,) = choose_data(wanted)
    assert names(note, "sprites", "faces3d")
    on_sprites = experiment["chen2018/fig5"].facts.build_sweeps("budget")["beta-TCVAE"]

    def about_data(settings):
        return {key: value for key, value in settings.items() if key.partition(".")[0] in ("data", "split")}

    assert about_data(used) == about_data(on_sprites)
    few = data.load("sprites", {"orientations": 1, "positions": 2})
    for rule in (*wanted["split"], *used["split"]):
        own = {"network": "mlp", "steps": used["steps"], "batch": used["batch"], "split": rule}
        own |= {"beta": 4, "estimator": "mws"}
        config = configure("beta-tcvae", Choice("sprites", {"orientations": 1}), few, {**own, "seed": 0})
        assert matches_settings(config, {**wanted, "network": "mlp", "precision": "f32"}) == (rule in used["split"])


def test_chosen():
    assert find_experiments("chen2018/fig2") == find_experiments("chen2018/fig2/") == ["chen2018/fig2"]
    assert (
        find_experiments("chen2018")
        == find_experiments("chen2018/")
        == [name for name in experiment if name.startswith("chen2018/")]
    )


# the command


def test_command_tells_and_lists(tmp_path):
    words = ["reproduce", "chen2018/figS5", "--scale", "smoke", "--device", "cpu", "--out", "there"]
    printed = unbraid(*words, cwd=tmp_path)
    assert "there/chen2018/figS5" in printed
    assert printed.count("inconclusive") == 4
    told = json.loads(unbraid(*words, "--json", cwd=tmp_path))[0]
    assert (told["experiment"], told["runs"], told["trained"]) == ("chen2018/figS5", 3, 0)
    assert (tmp_path / "runs/reproduce/chen2018/minutes.json").exists()
    rows = json.loads(unbraid("list", "experiments", "--json"))
    assert {row["name"] for row in rows} == set(experiment)
    assert all(row["what"].endswith(".") for row in rows)
    assert "unbraid reproduce chen2018/fig2" in " ".join(unbraid("reproduce", "--help").split())


@pytest.mark.usefixtures("coarse_figures")
@pytest.mark.parametrize("stopped", [KeyboardInterrupt(), Interrupted("Stopped at step 3; continue with --resume.")])
def test_whatever_is_stopped_the_same_command_continues(stopped, tmp_path, monkeypatch):
    def carry_out(*given):
        raise stopped

    monkeypatch.setattr(running, "_reproduce_one", carry_out)
    told = unbraid("reproduce", "chen2018/fig2", "--root", "there", cwd=tmp_path, code=130)
    assert names(told, "there")
    assert told.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        (["chen2081"], ["paper", "chen2081", "chen2018"]),
        (["chen2018/fg2"], ["experiment", "chen2018/fg2", "chen2018/fig2"]),
        (["chen2018/fig2", "--scale", "smal"], ["scale", "smal", "small"]),
        (["chen2018/fig2", "--scale", "smoke", "--device", "tpu"], ["device", "tpu"]),
    ],
)
def test_wrong_use_is_one_line(arguments, facts, tmp_path):
    told = unbraid("reproduce", *arguments, cwd=tmp_path, code=2)
    assert names(told, *facts)
    assert len(told.strip().splitlines()) == 1
    assert not (tmp_path / "results").exists()


def test_completion_knows_the_experiments():
    from unbraid.cli import registered_names
    from unbraid.cli.source_names import EXPERIMENTS

    assert registered_names(*EXPERIMENTS) == list(experiment)


@pytest.mark.usefixtures("coarse_figures")
def test_a_figure_of_models_needs_weights(place, tmp_path):
    smoke("chen2018/figS6", place)
    taken = shutil.copytree(Sweep(_sweep_of(place, "beta-tcvae")).path, tmp_path / "study")
    for weights in taken.rglob("model.safetensors"):
        weights.unlink()
    outcome = smoke("chen2018/figS6", tmp_path, runs=taken)
    assert not (outcome.folder / "figure.png").exists()
    assert any(names(note, "figure.png", "models") for note in outcome.notes)
