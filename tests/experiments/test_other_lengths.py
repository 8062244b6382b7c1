"""Runs of half or twice the steps: training them, their files, and when they count beside whole runs."""

import importlib
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.messages import names, naming
from tests.support.results import member
from unbraid.errors import UsageError
from unbraid.experiments import Claim, Results, Scale, experiment, other_lengths, reproduce, running, settling
from unbraid.experiments.base import Experiment, derive
from unbraid.experiments.evidence import find_mean
from unbraid.experiments.lengths import HALF, LENGTHS, TWICE
from unbraid.experiments.writing import list_networks
from unbraid.methods import objective
from unbraid.metrics import Score
from unbraid.store import RunFolder
from unbraid.training.interrupt import Interrupted

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SCORE = "kl/closed-form"
SMALL_KL = Claim("a small KL", find_mean("beta-vae", SCORE, high=100.0))
TINY = {"data": "sprites-small", "data.positions": 4, "network": "mlp", "z": 2, "batch": 16}
TINY |= {"encoder.hidden": (8,), "decoder.hidden": (8,)}


def build_facts(steps=20, **others):
    scales = {name: Scale({**TINY, "steps": steps, "seed": range(3)}) for name in ("small", "budget", "paper")}
    facts = {"metrics": (SCORE,), "claims": (SMALL_KL,), "notes": ("A note of the experiment.",), "scales": scales}
    return Experiment(series={"beta-vae": {"recipe": "beta-vae"}}, **facts | others)


def draw_nothing(results, make):
    return make()


@pytest.fixture
def moving(monkeypatch):
    """Snapshots that always leave a claim open."""
    monkeypatch.setattr(settling, "_compare_with_snapshots", lambda *given: ("inconclusive", "It moves", ""))


@pytest.fixture
def entry(monkeypatch):
    """An experiment of three runs of 20 steps."""
    entry = replace(experiment["chen2018/fig2"], name="mine/fig1", make=draw_nothing, facts=build_facts())
    monkeypatch.setattr(running, "find_experiments", lambda name: [name])
    monkeypatch.setattr(running, "experiment", {"mine/fig1": entry})
    return entry


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Runs that the tests share."""
    return tmp_path_factory.mktemp("half")


@pytest.fixture
def where(entry, root, tmp_path):
    return {"root": root, "out": tmp_path, "device": "cpu"}


@pytest.fixture
def folder(where):
    """A folder of results with runs of half the steps beside the whole ones."""
    reproduce("mine/fig1", **where)
    (half,) = reproduce("mine/fig1", length="half", **where)
    return half.folder


def change(folder, **facts):
    """Change the record of the runs of half the steps."""
    record = json.loads((folder / "half.json").read_text())
    (folder / "half.json").write_text(json.dumps({**record, **facts}))


@pytest.mark.parametrize(("length", "steps"), [(HALF, 10), (TWICE, 40)])
def test_they_have_as_many_steps_as_their_name_says_and_no_verdicts(where, length, steps):
    (other,) = reproduce("mine/fig1", length=length.name, **where, seeds=range(3))
    assert other.verdicts == ()
    assert {path.name for path in other.folder.iterdir()} == {length.runs, length.record}
    found = [RunFolder(path.parent).config.training.steps for path in where["root"].rglob("runs/*/config.yaml")]
    assert found.count(steps) == 3
    record = json.loads((other.folder / length.record).read_text())
    assert record["command"].startswith(f"unbraid reproduce mine/fig1 --scale small --seeds 0:3 --length {length.name}")
    assert (record["settings"]["beta-vae"]["steps"], record["seeds"], record["tries"]) == (str(steps), [0, 1, 2], 1)


def test_they_confirm_what_the_snapshots_leave_open(folder, where, moving):
    change(folder, notes=["One run failed."])
    (whole,) = reproduce("mine/fig1", **where)
    assert (whole.verdicts[0].verdict, settling.TOLD[HALF] in whole.verdicts[0].why) == ("holds", True)
    assert names((folder / "README.md").read_text(), "half.csv", "--length half", "One run failed.")


def test_runs_of_twice_the_steps_decide_before_those_of_half(folder, where, moving):
    reproduce("mine/fig1", length="twice", **where)
    (whole,) = reproduce("mine/fig1", **where)
    told = [settling.TOLD[length] in whole.verdicts[0].why for length in (HALF, TWICE)]
    assert (whole.verdicts[0].verdict, told) == ("holds", [False, True])
    assert names((folder / "README.md").read_text(), "half.csv", "twice.csv", "--length twice")


def test_results_can_be_judged_again_by_them(entry, folder, moving, monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    judge_again = importlib.import_module("judge_again")
    monkeypatch.setattr(judge_again, "experiment", {"mine/fig1": entry})
    out, half = folder.parents[1], {name: (folder / name).read_text() for name in ("half.csv", "half.json")}
    for name in half:
        (folder / name).unlink()

    def judge_again_and_read():
        judge_again.judge_again("mine/fig1", out)
        (verdict,) = json.loads((folder / "verdicts.json").read_text())["verdicts"]
        return verdict, (folder / "README.md").read_text()

    assert judge_again_and_read()[0]["verdict"] == "inconclusive"
    for name, text in half.items():
        (folder / name).write_text(text)
    for _ in range(2):
        verdict, page = judge_again_and_read()
        assert (verdict["verdict"], settling.TOLD[HALF] in verdict["why"]) == ("holds", True)
        assert page.count(other_lengths.STARTS_OF_NOTES[0]) == 1
        assert page.count("A note of the experiment.") == 1
    change(folder, networks={SCORE: ["abc"]})
    verdict, page = judge_again_and_read()
    assert verdict["verdict"] == "inconclusive"
    assert page.count(other_lengths.STARTS_OF_NOTES[1]) == 1
    record = json.loads((folder / "verdicts.json").read_text())
    (folder / "verdicts.json").write_text(json.dumps({**record, "networks": {SCORE: ["abc"]}}))
    verdict, page = judge_again_and_read()
    assert verdict["verdict"] == "holds"
    assert other_lengths.STARTS_OF_NOTES[1] not in page
    assert json.loads((folder / "verdicts.json").read_text())["networks"] == {SCORE: ["abc"]}


def test_scores_by_another_network_do_not_count(folder, where, moving):
    change(folder, networks={SCORE: ["abc"], "other/score": ["abc"]})
    (whole,) = reproduce("mine/fig1", **where)
    assert (whole.verdicts[0].verdict, settling.TOLD[HALF] in whole.verdicts[0].why) == ("inconclusive", False)
    assert names(whole.notes[-1], SCORE, "other/score", "network")


def test_runs_on_other_data_do_not_count(folder, where, moving):
    change(folder, notes=["sprites stand in for cars3d, whose files are not here."])
    (whole,) = reproduce("mine/fig1", **where)
    assert (whole.verdicts[0].verdict, settling.TOLD[HALF] in whole.verdicts[0].why) == ("inconclusive", False)
    assert names(whole.notes[-1], "half.csv", "data")


def test_the_weights_behind_scores_are_listed():
    def score(name, **details):
        made = member("a", 0, {name: 0.5}).scores[name]
        return replace(made, details=details)

    found = [
        {"x/y": score("x/y", network={"weights": weights}), "u/v": score("u/v"), "s/t": score("s/t", network={})}
        for weights in ("b", "a", "b")
    ]
    members = tuple(member("a", k, {})._replace(scores=scores) for k, scores in enumerate(found))
    assert list_networks(Results(members)) == {"x/y": ["a", "b"]}


def test_a_score_that_follows_from_another_one_keeps_its_network():
    score = Score("kept", "drawn", 0.5, 10, details={"network": {"weights": "abc"}, "chance": 0.1})
    made = derive("kept/drawn", "above-chance", lambda s: s.value - s.details["chance"])({"kept/drawn": score})
    assert list_networks(Results((member("a", 0, {})._replace(scores={"above": made}),))) == {"above": ["abc"]}


def test_more_of_them_are_a_further_try_and_fewer_are_refused(folder, where):
    for seeds, tries in ((3, 1), (4, 2), (4, 2)):
        reproduce("mine/fig1", length="half", seeds=seeds, **where)
        assert json.loads((folder / "half.json").read_text())["tries"] == tries
    facts = build_facts()
    assert other_lengths.read_other_lengths(folder, facts, "small")[0].results.looks == {SMALL_KL.text: 2}
    with pytest.raises(UsageError, match=naming("half.csv", 3, "--seeds 4")):
        reproduce("mine/fig1", length="half", **where)


def test_a_part_does_not_replace_them(folder, where):
    with pytest.raises(UsageError, match=naming("--out")):
        reproduce("mine/fig1", length="half", seeds=range(7), **where)


def test_they_do_not_go_beside_results_of_a_larger_scale(folder, where):
    for name in ("half.json", "verdicts.json"):
        record = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps({**record, "scale": "budget"}))
        with pytest.raises(UsageError, match=naming("budget", "--out")):
            reproduce("mine/fig1", length="half", **where)
        (folder / name).write_text(json.dumps(record))


def test_those_of_another_scale_do_not_count(folder, where, moving):
    change(folder, scale="paper")
    assert other_lengths.read_other_lengths(folder, build_facts(), "small") == []
    (whole,) = reproduce("mine/fig1", **where)
    assert settling.TOLD[HALF] not in whole.verdicts[0].why


@pytest.mark.parametrize("missing", ["half.csv", "half.json"])
def test_a_file_alone_does_not_count(folder, missing):
    (folder / missing).unlink()
    assert other_lengths.read_other_lengths(folder, build_facts(), "small") == []


def test_an_interruption_leaves_no_record_beside_other_scores(folder, where, monkeypatch):
    write = other_lengths.atomic.write_text

    def stop(path, text):
        if path.name == "half.json":
            raise KeyboardInterrupt
        write(path, text)

    monkeypatch.setattr(other_lengths.atomic, "write_text", stop)
    with pytest.raises(Interrupted):
        reproduce("mine/fig1", length="half", seeds=4, **where)
    assert not (folder / "half.json").exists()


@pytest.mark.parametrize(
    ("steps", "changed", "words"),
    [
        (24, {}, ("steps", 10, 12)),
        (20, {"batch": 32}, ("batch", 16, 32)),
        (20, {"lr": 0.1}, ("lr", "none", 0.1)),
        (20, {"beta": [1, 4]}, ("beta", "none", "[1,4]")),
    ],
)
def test_other_settings_are_refused_by_name(folder, steps, changed, words):
    facts = build_facts(steps)
    scales = {name: replace(scale, settings={**scale.settings, **changed}) for name, scale in facts.scales.items()}
    with pytest.raises(UsageError, match=naming("half.csv", *words)):
        other_lengths.read_other_lengths(folder, replace(facts, scales=scales), "small")


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("half.json", lambda text: "{"),
        ("half.json", lambda text: "{}"),
        ("half.csv", lambda text: ""),
        ("half.csv", lambda text: text.rpartition("beta-vae")[0]),
        ("half.csv", lambda text: text.replace("finished,0", "finished,x")),
    ],
)
def test_damaged_files_are_refused_before_anything_is_trained(folder, where, monkeypatch, name, damage):
    monkeypatch.setattr(running, "_run_experiment", lambda *given: pytest.fail("trained"))
    (folder / name).write_text(damage((folder / name).read_text()))
    with pytest.raises(UsageError, match=naming(name)):
        reproduce("mine/fig1", **where)


def test_a_later_experiment_of_that_length_finds_snapshots(folder, where):
    found, _, _ = running._run_experiment(build_facts(10), "small", where["root"] / "mine", "cpu", None)
    assert not found.unchecked
    assert found.earlier is not None


@pytest.mark.parametrize("name", [name for name in experiment if experiment[name].facts.measure is None])
def test_every_setting_that_counts_steps_is_as_long(name):
    facts = experiment[name].facts
    for scale in facts.scales:
        if scale == "smoke":
            continue
        whole, half, twice = (
            facts.build_sweeps(scale),
            *(facts.with_length(scale, length).build_sweeps(scale) for length in LENGTHS.values()),
        )
        for series, settings in whole.items():
            defaults = {key: known.default for key, known in objective[settings["recipe"]].settings.items()}
            known = {**defaults, **settings}
            counted = [key for key in known if re.search(r"steps|anneal$|warm|ramp|delay", key) and known[key]]
            assert {key: known[key] // 2 for key in counted} == {key: half[series].get(key) for key in counted}
            assert {key: known[key] * 2 for key in counted} == {key: twice[series].get(key) for key in counted}
            others = {key: value for key, value in settings.items() if key not in counted}
            for each in (half, twice):
                assert others == {key: value for key, value in each[series].items() if key not in counted}


def test_a_papers_other_lengthss_leave_out_what_trains_nothing(monkeypatch):
    made = running.Reproduction("", "small", Path(), (), 0, 0, 0.0, ())
    monkeypatch.setattr(running, "_reproduce_one", lambda entry, *given: replace(made, name=entry.name))
    trained = [each.name for each in reproduce("esmaeili2018", length="half", out="nowhere")]
    assert "esmaeili2018/decomposition" not in trained
    assert "esmaeili2018/fig7" in trained


def test_several_lengths_and_schedules_of_parts_are_halved_too():
    given = {**TINY, "steps": [10, 21], "seed": range(3), "anneal": [0, 1, 10], "latents.c.anneal": 8, "patience": 4}
    facts = build_facts(scales={"small": Scale(given)})
    half = facts.with_length("small", HALF).build_sweeps("small")["beta-vae"]
    assert (half["steps"], half["anneal"], half["latents.c.anneal"]) == ([5, 10], [0, 1, 5], 4)
    assert half["patience"] == 4  # it counts measurements


def test_only_stated_steps_can_be_halved():
    with pytest.raises(UsageError, match=naming("beta-vae", "steps")):
        replace(build_facts(), scales={"small": Scale(TINY)}).with_length("small", HALF)
    with pytest.raises(UsageError, match=naming("esmaeili2018/decomposition")):
        reproduce("esmaeili2018/decomposition", length="half")


def test_an_unknown_length_is_told_with_the_known_ones():
    with pytest.raises(UsageError, match=naming("length", "hlaf", "half", "twice")):
        reproduce("chen2018/fig2", length="hlaf")
