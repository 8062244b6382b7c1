"""msvae2020, figures 21 to 31: what is made of a score, and verdicts on results whose truth is known."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from unbraid.data import load
from unbraid.experiments import Results, judge, running
from unbraid.experiments.base import Scale, experiment
from unbraid.experiments.stand_in import StandIn, choose_data, replace_in_stages
from unbraid.metrics import Score
from unbraid.papers.msvae2020 import identity
from unbraid.report.tables import Member


def kept(value, chance, **moved):
    details = {
        "chance": chance,
        "moved": moved,
        "factor": "car",
        "network": {"accuracy": {"car": 0.75}, "held_out_rows": 40},
    }
    return {identity.KEPT: Score("kept", "drawn", value, 100, details=details)}


def test_scores_that_are_made_of_another():
    found = kept(0.6, 0.2, c0=0.1, c1=0.3)
    assert identity.score_above_chance(found).value == pytest.approx(0.5)
    assert identity.mean_change(found).value == pytest.approx(0.2)
    assert (identity.classifier_accuracy(found).value, identity.classifier_accuracy(found).samples) == (0.75, 40)
    assert identity.score_above_chance(kept(1.0, 1.0)).value == 0.0  # one identity, whatever is drawn


def verdicts(name, values, moved=0.1):
    change = Score("a", "b", moved, 1)
    made = [
        Member(
            f"{series}-{seed}",
            {"recipe": series, "seed": seed},
            "finished",
            "",
            {identity.ABOVE_CHANCE: score, identity.CHANGE: change},
        )
        for series, value in values.items()
        for seed in range(4)
        for score in [Score("a", "b", value + 0.01 * seed, 1)]
    ]
    return [judge(claim, Results(tuple(made))).verdict for claim in experiment[f"msvae2020/{name}"].facts.claims]


def test_verdicts_ask_whether_ms_gan_keeps_identity_more_often():
    better = {identity.MS: 0.6, identity.CGAN: 0.3, identity.INFO: 0.2}
    assert verdicts("fig21", better) == ["holds"]
    assert verdicts("fig29", better) == ["holds", "holds"]
    worse = {identity.MS: 0.25, identity.CGAN: 0.5, identity.INFO: 0.1}
    assert verdicts("fig21", worse) == ["does not hold"]
    assert verdicts("fig29", worse) == ["holds", "does not hold"]
    assert verdicts("fig21", {**better, identity.CGAN: 0.6}) == ["inconclusive"]
    still = verdicts("fig21", better, moved=0.001) + verdicts("fig29", better, moved=0.001)
    assert still == ["does not hold"] * 3  # C moves nothing, so identity is easily kept


@pytest.mark.parametrize(("name", "wanted"), [("fig21", "cars3d"), ("fig27", "chairs3d")])
@pytest.mark.parametrize("scale", ["budget", "paper"])
def test_labels_are_those_of_the_data_that_are_there(name, wanted, scale, monkeypatch, tmp_path):
    """A car or chair has a view, and a sprite in its place has a place; the generators are told the same labels."""
    monkeypatch.setenv("UNBRAID_DATA", str(tmp_path))
    facts = experiment[f"msvae2020/{name}"].facts
    sweeps = facts.build_sweeps(scale)
    labels = sweeps[identity.LABELS]
    assert (str(labels["data"]), labels["factors"]) == (wanted, ("azimuth", "elevation"))
    stages = [sweeps[each] for each in (identity.MS, identity.CGAN)]
    assert all(stage["given"] == labels["factors"] for stage in stages)
    used, (note,) = choose_data(labels)
    assert wanted in note
    assert set(used["factors"]) <= set(load(used["data"], {"positions": 2, "orientations": 2}).factor_names)
    assert replace_in_stages(facts.find_data(identity.MS, scale)) == {"given": used["factors"]}


def test_stages_on_files_that_are_there_keep_their_labels(monkeypatch):
    here = [SimpleNamespace(name="cars3d", state="ready")]
    monkeypatch.setattr("unbraid.experiments.stand_in.describe", lambda: here)
    facts = experiment["msvae2020/fig21"].facts
    assert replace_in_stages(facts.find_data(identity.MS, "budget")) == {}
    assert choose_data(facts.build_sweeps("budget")[identity.LABELS])[0]["data"] == "cars3d"


def test_faces_have_six_codes_with_each_method():
    sweeps = experiment["msvae2020/fig24"].facts.build_sweeps("budget")
    assert (sweeps[identity.FIRST]["z"], sweeps[identity.INFO]["z"]) == (6, 6)
    cars = experiment["msvae2020/fig29"].facts.build_sweeps("budget")
    assert (cars[identity.FIRST]["z"], cars[identity.INFO]["z"]) == (2, 2)


def test_a_generator_is_trained_on_the_stand_in_of_its_first_stage(monkeypatch, tmp_path):
    """Its labels are those of the data that are used instead: cars have a view, sprites a place."""
    monkeypatch.setenv("UNBRAID_DATA", str(tmp_path / "no files"))
    cars = StandIn("cars3d", "sprites-small", {"factors": identity.PLACE}, {"given": identity.PLACE})
    of_labels = {**identity.FIRST_STAGES["smoke"], "factors": identity.VIEW}
    of_gan = {**identity.GANS["smoke"], "given": identity.VIEW}
    scale = Scale({**identity.SHARED["smoke"], "data": cars}, {identity.LABELS: of_labels, identity.MS: of_gan})
    facts = replace(experiment["msvae2020/fig21"].facts.with_series([identity.MS]), scales={"smoke": scale}, derived={})
    results, runs, notes = running._run_experiment(facts, "smoke", tmp_path, "cpu", None)
    assert {(m.settings["recipe"], m.state) for m in results.members} == {
        (name, "finished") for name in (identity.LABELS, identity.MS)
    }
    assert any("stand in for cars3d" in note for note in notes)
    assert tuple(runs[-1].config.objective.settings["given"]) == identity.PLACE
