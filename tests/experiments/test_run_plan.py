"""The plan of runs that would settle what is open, and the script that trains them."""

import math
import shutil
import signal
import sys
import tarfile
import time

import pytest

from tests.support.result_scripts import RESULTS, add_seeds, judge_again, run_papers, verdicts
from unbraid.experiments import experiment
from unbraid.experiments.combining import count_seeds, find_series
from unbraid.report.tables import write_csv


def test_the_plan_takes_the_most_claims_per_minute_and_counts_shared_runs_once(tmp_path):
    order, left, _ = run_papers.plan_tasks([], "budget", RESULTS, stand_ins=True)
    listed = [(task.name, claim) for task, _ in order for claim in task.claims]
    listed += [(row.experiment, row.claim) for row in left]
    assert sorted(listed) == sorted(
        (name, row.claim) for name in experiment for row in verdicts.find_open_claims(name, RESULTS)
    )
    first, cost = order[0]
    assert all(len(first.claims) / cost >= len(task.claims) / max(task.minutes(), 0.1) for task, _ in order)
    (tmp_path / "protocol.json").write_text((RESULTS / "protocol.json").read_text("utf-8"))
    order, left, _ = run_papers.plan_tasks([], "budget", tmp_path, stand_ins=True)  # nothing has been run
    assert (len(order), left) == (len(experiment), [])
    assert sum(minutes for _, minutes in order) < 0.8 * sum(task.minutes() for task, _ in order)


def test_the_plan_of_twice_the_steps_has_the_claims_that_still_move():
    order, left, _ = run_papers.plan_tasks([], "budget", RESULTS, stand_ins=True, twice=True)
    listed = [(task.name, claim) for task, _ in order for claim in task.claims]
    rows = {name: verdicts.find_open_claims(name, RESULTS) for name in experiment}
    moving = [(name, row) for name, each in rows.items() for row in each if verdicts.WAITS in row.reason]
    assert sorted([*listed, *((row.experiment, row.claim) for row in left)]) == sorted(
        (name, row.claim) for name, row in moving
    )
    for row in left:  # the page could not be judged again
        assert any(other.verdict == verdicts.NOT_RUN for other in rows[row.experiment])
    for task, _ in order:
        stored = judge_again.read_results(RESULTS / task.name / "runs.csv", task.name, "budget")
        claims = [claim for claim in experiment[task.name].facts.claims if claim.text in task.claims]
        assert task.seeds <= max(count_seeds(claim, stored) for claim in claims)
        assert set(task.series) == {name for claim in claims for name in find_series(claim, stored)}


def test_the_plan_says_which_claims_wait_for_files(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("UNBRAID_DATA", str(tmp_path))
    shutil.copy(RESULTS / "protocol.json", tmp_path)  # without results every claim is open
    assert not run_papers.plan_tasks(["split2020"], "budget", tmp_path, stand_ins=True).without_data
    plan = run_papers.plan_tasks(["split2020"], "budget", tmp_path, stand_ins=False)
    waiting = {task.name: task for task in plan.without_data}
    assert set(waiting) == {f"split2020/fig{number}" for number in (6, 7, 8, 10)}
    assert not set(waiting) & {task.name for task, _ in plan.order}
    run_papers.print_plan(plan, 30.0)
    count = sum(len(task.claims) for task in waiting.values())
    assert capsys.readouterr().out.endswith(
        f"{count} more wait for files (UNBRAID_DATA names their folder; --stand-ins runs without):\n"
        f"  cars3d: {', '.join(waiting)}\n"
    )


def test_the_plan_asks_for_the_seeds_that_open_claims_need(tmp_path):
    def row(number, verdict="inconclusive", status="current", **known):
        return verdicts.Row("split2020/fig3", number, f"claim {number}", "", "", verdict, status, "", **known)

    few, many, never = row(0, seeds=12), row(1, seeds=900), row(2, seeds=math.inf)

    def choose(*rows):
        return run_papers.choose_task("split2020/fig3", "budget", rows, set(), tmp_path)

    task = choose(few, many, never)
    assert (task.claims, task.seeds, task.series) == (["claim 0"], 12, ())  # no runs are stored
    at_budget = run_papers.build_task("split2020/fig3", "budget", [], set())
    assert task.minutes() == pytest.approx(1.2 * at_budget.minutes(), rel=0.1)
    fresh = [row(number, verdicts.NOT_RUN, "absent") for number in (3, 4)]
    task = choose(many, *fresh)
    assert (task.claims, task.seeds) == (["claim 3", "claim 4"], None)
    assert choose(never, row(5)).claims == []
    shutil.copy(RESULTS / "protocol.json", tmp_path)  # without results every claim is open
    order, *_ = run_papers.plan_tasks(["split2020/fig7@25"], "budget", tmp_path, stand_ins=True)
    assert [(task.name, task.seeds) for task, _ in order] == [("split2020/fig7", 25)]


def test_the_plan_adds_seeds_to_the_series_that_an_open_claim_reads():
    claim = "the split encoder raises the MIG of FactorVAE"
    task = run_papers.build_addition("split2020/fig3", "budget", [claim], set(), 60, RESULTS)
    assert task.series == ("FactorVAE", "FactorVAE, split")
    assert task.seeds == range(34, 60)
    assert task.minutes() < 0.5 * run_papers.build_task("split2020/fig3", "budget", [claim], set(), 60).minutes()


def test_the_plan_leaves_series_that_have_enough_seeds(tmp_path):
    name, wide = "split2020/fig4", "FactorVAE, wide"
    claim = "its error is lower than that of as many parameters in a vanilla encoder (ours)"
    _, rows = add_seeds.read_rows(RESULTS / name)
    (tmp_path / name).mkdir(parents=True)
    write_csv(tmp_path / name / "runs.csv", [row for row in rows if row["series"] != wide or int(row["seed"]) < 10])
    stored = judge_again.read_results(tmp_path / name / "runs.csv", name, "budget")
    counts = {group.members[0].settings["recipe"]: group.finished for group in stored.settings}
    assert (counts[wide], counts["FactorVAE, split"]) == (10, 34)
    task = run_papers.build_addition(name, "budget", [claim], set(), 35, tmp_path)
    assert (task.series, task.seeds) == ((wide,), range(10, 35))


def test_baselines_and_claims_about_models_ask_for_no_seeds_of_them():
    places = {"esmaeili2018/discrete": "k-means", "msvae2020/fig38": "moving C"}
    for name, word in places.items():
        (claim,) = [each.text for each in experiment[name].facts.claims if word in each.text]
        task = run_papers.build_addition(name, "budget", [claim], set(), 30, RESULTS)
        assert task is None or set(task.series) <= set(experiment[name].facts.series)


def test_runs_within_its_minutes_and_prints_a_table(tmp_path, capsys, monkeypatch):
    (tmp_path / "protocol.json").write_text((RESULTS / "protocol.json").read_text("utf-8"))
    places = ["--results", tmp_path, "--root", tmp_path / "runs", "--out", tmp_path / "out", "--device", "cpu"]
    words = ["msvae2020/lemma1", "msvae2020/table2", "--scale", "smoke", *map(str, places)]
    monkeypatch.setattr(sys, "argv", ["run_papers.py", *words])
    run_papers.main()
    printed = capsys.readouterr().out
    assert "5 open claims" in printed
    assert printed.count("inconclusive") == 5
    assert (tmp_path / "out/msvae2020/lemma1/verdicts.json").exists()
    monkeypatch.setattr(sys, "argv", ["run_papers.py", "chen2018/fig2", "--plan", "--results", str(tmp_path)])
    run_papers.main()
    assert "3 open claims" in capsys.readouterr().out


@pytest.mark.usefixtures("coarse_figures")
def test_runs_that_left_without_weights_are_not_trained_again(tmp_path, capsys, monkeypatch):
    (tmp_path / "protocol.json").write_text((RESULTS / "protocol.json").read_text("utf-8"))

    def call(place, *words):
        places = ["--root", tmp_path / place, "--out", tmp_path / "out", "--keep", tmp_path / f"{place}.tgz"]
        given = ["run_papers.py", "chen2018/figS5", "--scale", "smoke", "--device", "cpu", "--results", tmp_path]
        monkeypatch.setattr(sys, "argv", [*map(str, (*given, *places, *words))])
        run_papers.main()
        return capsys.readouterr().out

    assert call("first").count("inconclusive") == 4
    with tarfile.open(tmp_path / "first.tgz") as archive:
        archive.extractall(tmp_path / "earlier", filter="data")
    assert not list((tmp_path / "earlier").rglob("*.safetensors"))
    assert call("second", "--runs", tmp_path / "earlier").count("inconclusive") == 4
    page = (tmp_path / "out/chen2018/figS5/README.md").read_text("utf-8")
    assert "earlier" in page


@pytest.mark.parametrize("handler", [signal.default_int_handler, signal.SIG_IGN])
def test_stops_when_the_minutes_are_over(handler):
    before = signal.signal(signal.SIGINT, handler)
    try:
        with pytest.raises(KeyboardInterrupt), run_papers.stop_after(0.05):
            time.sleep(5.0)
        assert signal.getsignal(signal.SIGINT) is handler
    finally:
        signal.signal(signal.SIGINT, before)
