"""Runs of twice the steps: training them, their files, and when they count beside whole runs."""

import importlib
import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import typer

from tests.support.messages import names, naming
from tests.support.results import member
from unbraid.cli import app
from unbraid.errors import UsageError
from unbraid.experiments import Claim, Results, Scale, experiment, longer_runs, reproduce, running, settling
from unbraid.experiments.base import Experiment
from unbraid.experiments.evidence import find_mean
from unbraid.experiments.results import MissingResultsError, derive
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
CONFIRMED = f"{settling.WITH_TWICE} it holds"


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
    return tmp_path_factory.mktemp("twice")


@pytest.fixture
def where(entry, root, tmp_path):
    return {"root": root, "out": tmp_path, "device": "cpu"}


@pytest.fixture
def folder(where):
    """A folder of results with runs of twice the steps beside the whole ones."""
    reproduce("mine/fig1", **where)
    (longer,) = reproduce("mine/fig1", twice=True, **where)
    return longer.folder


def change(folder, **facts):
    """Change the record of the runs of twice the steps."""
    record = json.loads((folder / "twice.json").read_text())
    (folder / "twice.json").write_text(json.dumps({**record, **facts}))


def test_they_have_twice_the_steps_and_no_verdicts(where):
    (longer,) = reproduce("mine/fig1", twice=True, **where, seeds=range(3))
    assert longer.verdicts == ()
    assert {path.name for path in longer.folder.iterdir()} == {"twice.csv", "twice.json"}
    steps = [RunFolder(path.parent).config.training.steps for path in where["root"].rglob("runs/*/config.yaml")]
    assert steps.count(40) == 3
    record = json.loads((longer.folder / "twice.json").read_text())
    assert record["command"].startswith("unbraid reproduce mine/fig1 --scale small --seeds 0:3 --twice")
    assert (record["settings"]["beta-vae"]["steps"], record["seeds"], record["tries"]) == ("40", [0, 1, 2], 1)


def test_they_confirm_what_the_snapshots_leave_open(folder, where, moving):
    change(folder, notes=["One run failed."])
    (whole,) = reproduce("mine/fig1", **where)
    assert (whole.verdicts[0].verdict, CONFIRMED in whole.verdicts[0].why) == ("holds", True)
    assert names((folder / "README.md").read_text(), "twice.csv", "--twice", "One run failed.")


def test_the_command_line_trains_them_and_says_what_comes_next(where, monkeypatch, capsys):
    monkeypatch.setattr("unbraid.cli.reproduce.check_experiment", lambda name: None)
    words = ["reproduce", "mine/fig1", "--root", where["root"], "--out", where["out"], "--device", "cpu", "--twice"]
    typer.main.get_command(app)(list(map(str, words)), standalone_mode=False)
    assert names(capsys.readouterr().out, "Scores:", "Next", "the whole runs")
    assert (where["out"] / "mine/fig1/twice.csv").exists()
    assert not (where["out"] / "mine/fig1/verdicts.json").exists()


@pytest.fixture
def judge_again(entry, monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    script = importlib.import_module("judge_again")
    monkeypatch.setattr(script, "experiment", {"mine/fig1": entry})
    return script


def test_results_can_be_judged_again_by_them(judge_again, folder, moving, tmp_path_factory):
    out, elsewhere = folder.parents[1], tmp_path_factory.mktemp("elsewhere")
    for name in ("twice.csv", "twice.json"):
        (folder / name).rename(elsewhere / name)

    def judge_and_read():
        judge_again.judge_again("mine/fig1", out)
        (verdict,) = json.loads((folder / "verdicts.json").read_text())["verdicts"]
        return verdict, (folder / "README.md").read_text()

    assert judge_and_read()[0]["verdict"] == "inconclusive"
    judge_again.add_longer_runs("mine/fig1", elsewhere, out)
    assert json.loads((folder / "verdicts.json").read_text())["verdicts"][0]["verdict"] == "holds"
    for _ in range(2):
        verdict, page = judge_and_read()
        assert (verdict["verdict"], CONFIRMED in verdict["why"]) == ("holds", True)
        assert page.count(longer_runs.STARTS_OF_NOTES[0]) == 1
        assert page.count("A note of the experiment.") == 1


def test_runs_from_another_folder_are_a_further_try_if_there_are_more(judge_again, folder, where, tmp_path):
    out = folder.parents[1]

    def train(seeds):
        (more,) = reproduce("mine/fig1", twice=True, seeds=seeds, **{**where, "out": tmp_path / f"more-{seeds}"})
        return more.folder

    for seeds, tries in ((3, 1), (4, 2), (4, 2)):
        judge_again.add_longer_runs("mine/fig1", train(seeds), out)
        assert json.loads((folder / "twice.json").read_text())["tries"] == tries
    with pytest.raises(SystemExit, match=naming("lacks, such as beta-vae, 3")):
        judge_again.add_longer_runs("mine/fig1", train(3), out)
    with pytest.raises(SystemExit, match=naming("no runs of twice the steps")):
        judge_again.add_longer_runs("mine/fig1", tmp_path, out)
    five = train(5)
    change(five, tries=7)  # it was tried elsewhere, too
    judge_again.add_longer_runs("mine/fig1", five, out)
    assert json.loads((folder / "twice.json").read_text())["tries"] == 7


@pytest.mark.parametrize("there", [True, False])
def test_results_that_cannot_be_judged_again_keep_their_files(judge_again, folder, where, monkeypatch, tmp_path, there):
    (more,) = reproduce("mine/fig1", twice=True, seeds=4, **{**where, "out": tmp_path / "more"})
    if not there:
        (folder / "twice.json").unlink()
        (folder / "twice.csv").unlink()
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    unknown = Claim("it needs models", lambda results: (_ for _ in ()).throw(MissingResultsError("no models")))
    facts = replace(build_facts(), claims=(unknown,))
    monkeypatch.setattr(judge_again, "experiment", {"mine/fig1": replace(experiment["chen2018/fig2"], facts=facts)})
    with pytest.raises(SystemExit, match="cannot be judged"):
        judge_again.add_longer_runs("mine/fig1", more.folder, folder.parents[1])
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nope/fig1"], "no experiment"),
        (["mine/fig1", "mine/fig1", "--twice", "x"], "one experiment"),
        (["mine/fig1", "--out", "nowhere"], "there is no nowhere"),
        (["mine/fig1", "--twice", "{damaged}"], "twice.json is damaged"),
    ],
)
def test_wrong_arguments_are_explained(judge_again, folder, monkeypatch, capsys, tmp_path, words, said):
    (tmp_path / "twice.json").write_text("{")
    (tmp_path / "twice.csv").write_text("")
    places = [] if "--out" in words else ["--out", str(folder.parents[1])]
    words = [word.format(damaged=tmp_path) for word in words]
    monkeypatch.setattr(sys, "argv", ["judge_again.py", *words, *places])
    with pytest.raises(SystemExit) as exited:
        judge_again.main()
    assert said in f"{exited.value}{capsys.readouterr().err}"


def test_runs_on_other_data_do_not_count(folder, where, moving):
    change(folder, notes=["sprites stand in for cars3d, whose files are not here."])
    (whole,) = reproduce("mine/fig1", **where)
    assert (whole.verdicts[0].verdict, CONFIRMED in whole.verdicts[0].why) == ("inconclusive", False)
    assert names(whole.notes[-1], "twice.csv", "data")


def test_stand_ins_are_the_same_for_whatever_reason(folder):
    longer = longer_runs.read_longer_runs(folder, build_facts(), "small")
    longer = replace(longer, record={**longer.record, "notes": ["sprites stand in for cars3d, which is missing."]})
    for note, counts in (
        ("sprites stand in for cars3d, of which there are no runs.", True),
        ("sprites stand in for celeba, which is missing.", False),
    ):
        found, _ = longer_runs.attach_longer_runs(Results(()), longer, [note])
        assert (found.longer is not None) == counts


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
        reproduce("mine/fig1", twice=True, seeds=seeds, **where)
        assert json.loads((folder / "twice.json").read_text())["tries"] == tries
    assert longer_runs.read_longer_runs(folder, build_facts(), "small").results.looks == {SMALL_KL.text: 2}
    with pytest.raises(UsageError, match=naming("twice.csv", 3, "--seeds 4")):
        reproduce("mine/fig1", twice=True, **where)
    change(folder, settings={"vae": {}}, seeds=[0])
    with pytest.raises(UsageError, match=naming("twice.csv", "vae", "--series")):
        longer_runs.refuse_fewer_runs(folder, build_facts(), "small")


def test_a_part_does_not_replace_them(folder, where):
    with pytest.raises(UsageError, match=naming("--out")):
        reproduce("mine/fig1", twice=True, seeds=range(7), **where)


def test_they_do_not_go_beside_results_of_a_larger_scale(folder, where):
    for name in ("twice.json", "verdicts.json"):
        record = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps({**record, "scale": "budget"}))
        with pytest.raises(UsageError, match=naming("budget", "--out")):
            reproduce("mine/fig1", twice=True, **where)
        (folder / name).write_text(json.dumps(record))


def test_those_of_another_scale_neither_count_nor_are_a_try(folder, where, moving):
    change(folder, scale="paper")
    assert longer_runs.read_longer_runs(folder, build_facts(), "small") is None
    (whole,) = reproduce("mine/fig1", **where)
    assert settling.WITH_TWICE not in whole.verdicts[0].why
    change(folder, scale="smoke", rows=1)
    reproduce("mine/fig1", twice=True, **where)
    assert json.loads((folder / "twice.json").read_text())["tries"] == 1


@pytest.mark.parametrize("missing", ["twice.csv", "twice.json"])
def test_a_file_alone_does_not_count(folder, missing):
    (folder / missing).unlink()
    assert longer_runs.read_longer_runs(folder, build_facts(), "small") is None


def test_an_interruption_leaves_no_record_beside_other_scores(folder, where, monkeypatch):
    write = longer_runs.atomic.write_text

    def stop(path, text):
        if path.name == "twice.json":
            raise KeyboardInterrupt
        write(path, text)

    monkeypatch.setattr(longer_runs.atomic, "write_text", stop)
    with pytest.raises(Interrupted):
        reproduce("mine/fig1", twice=True, seeds=4, **where)
    assert not (folder / "twice.json").exists()


@pytest.mark.parametrize(
    ("steps", "changed", "words"),
    [
        (24, {}, ("steps", 40, 48)),
        (20, {"batch": 32}, ("batch", 16, 32)),
        (20, {"lr": 0.1}, ("lr", "none", 0.1)),
        (20, {"beta": [1, 4]}, ("beta", "none", "[1,4]")),
    ],
)
def test_other_settings_are_refused_by_name(folder, steps, changed, words):
    facts = build_facts(steps)
    scales = {name: replace(scale, settings={**scale.settings, **changed}) for name, scale in facts.scales.items()}
    with pytest.raises(UsageError, match=naming("twice.csv", *words)):
        longer_runs.read_longer_runs(folder, replace(facts, scales=scales), "small")


def replace_field(**fields):
    return lambda text: json.dumps({**json.loads(text), **fields})


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("twice.json", lambda text: "{"),
        ("twice.json", lambda text: "{}"),
        ("twice.json", lambda text: "[]"),
        ("twice.json", replace_field(settings=[])),
        ("twice.json", replace_field(settings={"beta-vae": 3})),
        ("twice.json", replace_field(notes=None)),
        ("twice.json", replace_field(notes=[3])),
        ("twice.json", replace_field(minutes="x")),
        ("twice.json", replace_field(tries="x")),
        ("twice.json", replace_field(seeds=["a"])),
        ("twice.csv", lambda text: ""),
        ("twice.csv", lambda text: text.rpartition("beta-vae")[0]),
        ("twice.csv", lambda text: text.replace("finished,0", "finished,x")),
        ("twice.csv", lambda text: text + "x" * 200_000),
    ],
)
def test_damaged_files_are_refused_before_anything_is_trained(folder, where, monkeypatch, name, damage):
    monkeypatch.setattr(running, "_run_experiment", lambda *given: pytest.fail("trained"))
    (folder / name).write_text(damage((folder / name).read_text()))
    for twice in (False, True):
        with pytest.raises(UsageError, match=naming(name, "delete", "--twice")):
            reproduce("mine/fig1", twice=twice, **where)


def test_a_damaged_file_of_a_later_experiment_stops_a_paper_at_once(folder, where, entry, monkeypatch):
    monkeypatch.setattr(running, "_run_experiment", lambda *given: pytest.fail("trained"))
    monkeypatch.setattr(running, "find_experiments", lambda name: ["mine/fig0", "mine/fig1"])
    monkeypatch.setattr(running, "experiment", dict.fromkeys(("mine/fig0", "mine/fig1"), entry))
    (folder / "twice.json").write_text("{")
    with pytest.raises(UsageError, match=naming("mine/fig1", "twice.json")):
        reproduce("mine", **where)


def test_a_part_of_an_experiment_is_judged_beside_longer_runs_of_all(folder, where, entry, monkeypatch):
    """They are compared with the settings of the whole experiment."""
    two = replace(entry.facts, series={"beta-vae": {"recipe": "beta-vae"}, "vae": {"recipe": "vae"}})
    monkeypatch.setattr(running, "experiment", {"mine/fig1": replace(entry, facts=two)})
    reproduce("mine/fig1", twice=True, seeds=4, **where)
    record = json.loads((folder / "twice.json").read_text())
    assert set(record["settings"]) == {"beta-vae", "vae"}
    (folder / "verdicts.json").unlink()  # of the whole experiment
    (part,) = reproduce("mine/fig1", series=["beta-vae"], **where)
    assert part.runs == 3


def test_a_later_experiment_of_that_length_finds_snapshots(folder, where):
    found, _, _ = running._run_experiment(build_facts(40), "small", where["root"] / "mine", "cpu", None)
    assert not found.unchecked
    assert found.earlier is not None


@pytest.mark.parametrize("name", [name for name in experiment if experiment[name].facts.measure is None])
def test_every_setting_that_counts_steps_is_doubled(name):
    facts = experiment[name].facts
    for scale in facts.scales:
        if scale == "smoke":
            continue
        whole, twice = facts.build_sweeps(scale), facts.with_twice_the_steps(scale).build_sweeps(scale)
        for series, settings in whole.items():
            defaults = {key: known.default for key, known in objective[settings["recipe"]].settings.items()}
            known = {**defaults, **settings}
            counted = [key for key in known if re.search(r"steps|anneal$|warm|ramp|delay", key) and known[key]]
            assert {key: known[key] * 2 for key in counted} == {key: twice[series].get(key) for key in counted}
            others = {key: value for key, value in settings.items() if key not in counted}
            assert others == {key: value for key, value in twice[series].items() if key not in counted}


def test_a_papers_longer_runs_leave_out_what_trains_nothing(monkeypatch):
    made = running.Reproduction("", "small", Path(), (), 0, 0, 0.0, ())
    monkeypatch.setattr(running, "_reproduce_one", lambda entry, *given: replace(made, name=entry.name))
    trained = [each.name for each in reproduce("esmaeili2018", twice=True, out="nowhere")]
    assert "esmaeili2018/decomposition" not in trained
    assert "esmaeili2018/fig7" in trained


def test_several_lengths_and_schedules_of_parts_are_doubled_too():
    given = {**TINY, "steps": [10, 21], "seed": range(3), "anneal": [0, 1, 10], "latents.c.anneal": 8, "patience": 4}
    facts = build_facts(scales={"small": Scale(given)})
    twice = facts.with_twice_the_steps("small").build_sweeps("small")["beta-vae"]
    assert (twice["steps"], twice["anneal"], twice["latents.c.anneal"]) == ([20, 42], [0, 2, 20], 16)
    assert twice["patience"] == 4  # it counts measurements


def test_only_stated_steps_can_be_doubled():
    with pytest.raises(UsageError, match=naming("beta-vae", "steps")):
        replace(build_facts(), scales={"small": Scale(TINY)}).with_twice_the_steps("small")
    with pytest.raises(UsageError, match=naming("esmaeili2018/decomposition")):
        reproduce("esmaeili2018/decomposition", twice=True)
