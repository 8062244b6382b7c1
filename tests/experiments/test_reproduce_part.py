"""Experiments with other seeds, or with some of their series and values: what is trained, and what is refused."""

import csv
import json
from dataclasses import replace

import numpy as np
import pytest

from tests.support.messages import naming
from tests.support.reproducing import smoke
from unbraid.errors import UsageError
from unbraid.experiments import experiment, writing


@pytest.mark.usefixtures("coarse_figures")
def test_seeds_are_added_to_those_that_are_finished(tmp_path):
    assert smoke("chen2018/fig2", tmp_path).trained == 8
    more = smoke("chen2018/fig2", tmp_path, seeds=3)
    assert (more.runs, more.trained) == (12, 4)
    page = (more.folder / "README.md").read_text()
    assert "unbraid reproduce chen2018/fig2 --scale smoke --seeds 3 --device cpu" in page
    assert "| seed | 0..2 |" in page
    assert {each.looks for each in more.verdicts} == {2}
    again = smoke("chen2018/fig2", tmp_path, seeds=3)
    assert (again.trained, {each.looks for each in again.verdicts}) == (0, {2})
    stored, claims = json.loads((again.folder / "verdicts.json").read_text()), experiment["chen2018/fig2"].facts.claims
    assert set(writing.read_looks(stored, claims).values()) == {2}
    reworded = [replace(claim, text=f"{claim.text}, indeed") for claim in claims]
    assert set(writing.read_looks(stored, reworded).values()) == {2}
    with pytest.raises(UsageError, match=naming("seeds")):
        smoke("chen2018/fig2", tmp_path, seeds=1)


@pytest.mark.usefixtures("coarse_figures")
def test_one_series_is_trained_with_further_seeds(tmp_path):
    found = smoke("chen2018/fig2", tmp_path, seeds=range(5, 7), series=["beta-vae"])
    with (found.folder / "runs.csv").open(newline="") as handle:
        rows = list(csv.DictReader(handle))
    assert {(row["series"], row["seed"]) for row in rows} == {("beta-vae", "5"), ("beta-vae", "6")}
    page = (found.folder / "README.md").read_text()
    assert "unbraid reproduce chen2018/fig2 --scale smoke --seeds 5:7 --series beta-vae --device cpu" in page
    assert "| seed | 5..6 |" in page
    assert any(v.why.startswith("no finished run of beta-tcvae") for v in found.verdicts)
    assert smoke("chen2018/fig2", tmp_path, seeds=range(5, 7), series=["beta-vae"]).trained == 0
    with pytest.raises(UsageError, match=naming("chen2018/fig2", "--out")):  # a part never replaces more
        smoke("chen2018/fig2", tmp_path, seeds=range(7, 9), series=["beta-vae"])
    with pytest.raises(UsageError, match=naming("series", "beta-vea", "beta-vae")):
        smoke("chen2018/fig2", tmp_path, series=["beta-vea"])


@pytest.mark.usefixtures("coarse_figures")
def test_some_values_of_a_setting_are_trained_with_further_seeds(tmp_path):
    chosen = {"seeds": range(5, 7), "series": ["beta-vae"], "only": {"beta": [4]}}
    found = smoke("chen2018/fig2", tmp_path, **chosen)
    with (found.folder / "runs.csv").open(newline="") as handle:
        rows = [(row["series"], row["beta"], row["seed"]) for row in csv.DictReader(handle)]
    assert rows == [("beta-vae", "4", "5"), ("beta-vae", "4", "6")]
    page = (found.folder / "README.md").read_text()
    assert "--seeds 5:7 --series beta-vae --only beta=4 --device cpu" in page
    assert "| beta-vae: beta | [4] |" in page
    assert smoke("chen2018/fig2", tmp_path, **{**chosen, "only": {"beta": 4}}).trained == 0
    with pytest.raises(UsageError, match=naming("chen2018/fig2", "--out")):  # a part never replaces more
        smoke("chen2018/fig2", tmp_path, only={"beta": [1]})
    with pytest.raises(UsageError, match=naming("--only")):
        smoke("chen2018/fig2", tmp_path, only={"beta": [4]}, twice=True)
    with pytest.raises(UsageError, match=naming("sweeps beta over 1, 4", "not '4'")):
        smoke("chen2018/fig2", tmp_path / "other", only={"beta": "4"})
    with pytest.raises(UsageError, match=naming("esmaeili2018/decomposition: No series sweeps")):
        smoke("esmaeili2018", tmp_path / "other", only={"beta": np.array([4])})


def test_values_that_no_series_sweeps_are_refused():
    facts = experiment["esmaeili2018/discrete"].facts
    sweeps = facts.with_values("budget", {"beta": [4], "gamma": [3, 8]}).build_sweeps("budget")
    assert (sweeps["HFVAE, MNIST"]["beta"], sweeps["HFVAE, MNIST"]["gamma"]) == ([4.0], [3.0, 8.0])
    assert sweeps["beta-SVAE, MNIST"]["beta"] == [4.0]
    assert sweeps["HFVAE, Fashion-MNIST"] == facts.build_sweeps("budget")["HFVAE, Fashion-MNIST"]
    for chosen, words in (
        ({"beta": [4, 5]}, ("beta", "1.0, 4.0, 8.0", "not 5")),
        ({"z": [4]}, ("z", "beta, gamma")),
        ({"seed": [1]}, ("--seeds",)),
    ):
        with pytest.raises(UsageError, match=naming(*words)):
            facts.with_values("budget", chosen)


@pytest.mark.usefixtures("coarse_figures")
def test_results_are_not_replaced_by_fewer_seeds(tmp_path):
    more = smoke("chen2018/fig2", tmp_path, seeds=4)
    for seeds in ({}, {"seeds": 3}, {"seeds": range(2, 6)}):
        with pytest.raises(UsageError, match=naming("chen2018/fig2", "seeds", "--out")):
            smoke("chen2018/fig2", tmp_path, **seeds)
    assert smoke("chen2018/fig2", tmp_path, seeds=4).runs == more.runs


def test_results_of_a_command_that_begins_alike_are_not_replaced(tmp_path):
    command = "unbraid reproduce chen2018/fig2 --scale small --seeds 5:70 --series beta"
    for longer, refused in (("-vae", True), (" --twice", True), (" --device cuda", False), (" --runs x", False)):
        (tmp_path / "verdicts.json").write_text(json.dumps({"command": command + longer}))
        if refused:
            with pytest.raises(UsageError, match=naming("--out")):
                writing.refuse_replacing_whole(tmp_path, command)
        else:
            writing.refuse_replacing_whole(tmp_path, command)


def test_a_series_comes_with_those_that_it_refines():
    facts = experiment["msvae2020/fig10"].facts
    name = next(each for each, settings in facts.series.items() if "refines" in settings)
    assert list(facts.with_series([name]).series) == [facts.series[name]["refines"], name]


def test_every_series_gets_the_seeds_that_are_asked_for():
    facts = experiment["esmaeili2018/discrete"].facts.with_seeds("budget", 4)
    sweeps = facts.build_sweeps("budget")
    assert {tuple(settings["seed"]) for settings in sweeps.values()} == {(0, 1, 2, 3)}
    assert experiment["esmaeili2018/discrete"].facts.scales["budget"].settings["seed"] != range(4)


def test_the_page_lists_no_setting_that_every_series_replaces():
    facts = experiment["msvae2020/fig10"].facts
    assert facts.get_scale("budget").settings["beta"] == [1, 4, 10]
    rows = {row["setting"]: row["here"] for row in writing._compare_settings(facts, "budget")}
    assert "beta" not in rows
    assert rows["beta-TCVAE, |C| = 2: beta"] == "4"
    assert rows["seed"] == "0..4"
