"""The page of results, and the plan of runs that would settle what is open."""

import csv
import importlib
import json
import math
import re
import shutil
import signal
import sys
import tarfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from unbraid.experiments import experiment, judge, settling, writing
from unbraid.experiments.combining import count_seeds, find_series
from unbraid.papers.msvae2020.trade_off import SAME_C
from unbraid.report.tables import write_csv

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))  # scripts that import each other
run_papers, verdicts, judge_again, add_seeds, share_runs = map(
    importlib.import_module, ("run_papers", "verdicts", "judge_again", "add_seeds", "share_runs")
)
RESULTS = ROOT / "results"
PAGE = (RESULTS / "README.md").read_text("utf-8")


@pytest.fixture(scope="module")
def rows():
    return [row for name in experiment for row in verdicts.read_rows(name, RESULTS)]


def test_the_page_is_what_the_script_prints(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["verdicts.py", str(RESULTS)])
    verdicts.main()
    assert capsys.readouterr().out == PAGE


def test_it_opens_with_a_table_per_paper_and_ends_with_commands():
    headings = [line[3:] for line in PAGE.splitlines() if line.startswith("## ")]
    last = ["Reasons", "Not run yet", "Commands and hashes"]
    assert [heading.partition(":")[0] for heading in headings] == [*verdicts.TITLES, *last]
    tables, _, rest = PAGE.partition("## Reasons")
    assert tables.count("| claim | the paper says | we measured | verdict |") == len(verdicts.TITLES)
    assert max(len(line) for line in tables.splitlines()) < 450
    assert all(f"### {paper}" in rest for paper in verdicts.TITLES)


def test_a_claim_that_two_figures_show_is_one_row(rows):
    joined = verdicts.join_equal_rows([row for row in rows if row.experiment.startswith("msvae2020/")])
    (check,) = (row for row in joined if row.measured and row.claim == SAME_C)
    assert (check.experiment, check.places) == ("msvae2020/fig4", ("msvae2020/table1",))
    tables = [row for row in joined if row.experiment in ("msvae2020/table2", "msvae2020/table3")]
    assert len(tables) == 4, "other claims with the same result"
    waiting = [row for row in joined if row.verdict == verdicts.NOT_RUN]
    assert not any(row.places for row in waiting)
    assert sum(1 + len(row.places) for row in joined) == sum(row.experiment.startswith("msvae2020/") for row in rows)


def test_the_summary_has_the_counts_of_the_page_and_two_screens():
    words = (ROOT / "docs/papers.md").read_text("utf-8")
    counted = re.search(r"Of (\d+) claims (\d+) hold, (\d+) do not,\n(\d+) are open and (\d+) have not", words)
    found = dict.fromkeys(verdicts.WORDS, 0)
    by_paper = {paper: [] for paper in verdicts.TITLES}
    for name in experiment:
        by_paper[name.partition("/")[0]] += verdicts.read_rows(name, RESULTS)
    for each in by_paper.values():
        for row in verdicts.join_equal_rows(each):
            found[row.verdict] += 1
    order = ("holds", "does not hold", "inconclusive", verdicts.NOT_RUN)
    assert [int(number) for number in counted.groups()] == [sum(found.values()), *(found[word] for word in order)]
    assert len(words.splitlines()) <= 90
    assert max(map(len, words.splitlines())) <= 180


def test_numbers_of_papers_stand_beside_claims(rows):
    known = {f"{row.experiment}#{row.number}": row for row in rows}
    published = verdicts.read_protocol(RESULTS)["published"]
    assert published.keys() <= known.keys()
    assert all(known[key].wanted == text for key, text in published.items() if known[key].measured)


def test_what_is_open_or_refuted_has_a_reason(rows):
    for row in rows:
        if row.verdict in ("inconclusive", "does not hold"):
            assert row.reason, (row.experiment, row.claim)
        if row.verdict == "inconclusive":
            assert any(word in row.reason for word in ("minutes", "seeds")), row.reason


def test_no_verdict_of_a_wrong_experiment_stands(rows):
    protocol = verdicts.read_protocol(RESULTS)
    for key in protocol["withdrawn"]:
        name, _, number = key.partition("#")
        mine = [row for row in rows if row.experiment == name and (not number or row.number == int(number))]
        assert mine, key
        assert all(row.verdict == verdicts.NOT_RUN for row in mine), key


def test_current_verdicts_are_about_claims_that_the_experiments_make():
    """A changed experiment is not current until it has been run again."""
    for path in RESULTS.glob("*/*/verdicts.json"):
        stored = json.loads(path.read_text("utf-8"))
        texts = {claim.text for claim in experiment[stored["experiment"]].facts.claims}
        rows = verdicts.read_rows(stored["experiment"], RESULTS)
        if all(row.status == "current" for row in rows):
            assert {verdict["claim"] for verdict in stored["verdicts"]} == texts, stored["experiment"]


def read_settings(page):
    """Settings in the column "here" of a page, by name; seeds are left out, since some were added later."""
    lines = [line for line in page.partition("## Settings")[2].splitlines() if line.startswith("| ")]
    head, _, *rows = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    assert head[:2] == ["setting", "here"]
    return {name: here for name, here, *_ in rows if here and name.rpartition(": ")[2] != "seed"}


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*/*/verdicts.json")), ids=lambda path: path.parent.name)
def test_current_pages_have_the_settings_of_the_code(path):
    """An experiment whose settings have changed is not current until it has been run again."""
    stored = json.loads(path.read_text("utf-8"))
    entry = experiment[stored["experiment"]]
    if all(row.status != "current" for row in verdicts.read_rows(entry.name, RESULTS)):
        pytest.skip("older or withdrawn, and said so")
    now = writing.format_markdown(writing._compare_settings(entry.facts, stored["scale"]))
    here, now = read_settings((path.parent / "README.md").read_text("utf-8")), read_settings(f"## Settings\n{now}")
    if not any(claim.trained for claim in entry.facts.claims):  # claims about what is there before the first step
        here.pop("steps", None), now.pop("steps", None)
    assert here == now


def test_stored_intervals_of_correlations_end_at_1():
    for path in RESULTS.glob("*/*/verdicts.json"):
        for verdict in json.loads(path.read_text("utf-8"))["verdicts"]:
            for piece in verdict["evidence"]:
                if piece["what"].startswith("correlation of") and " minus " not in piece["what"]:
                    assert -1 <= piece["low"] <= piece["high"] <= 1, (path, piece)


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


def test_pages_of_older_and_withdrawn_verdicts_say_so():
    said = {"older": "older than the experiment", "withdrawn": "withdrawn"}
    for name in experiment:
        page = RESULTS / name / "README.md"
        rows = verdicts.read_rows(name, RESULTS) if page.exists() else []
        for status in {row.status for row in rows} & set(said):
            assert said[status] in page.read_text("utf-8").partition("| claim |")[0], name


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


def test_the_plan_leaves_series_that_have_enough_seeds():
    claim = "its error is lower than that of as many parameters in a vanilla encoder (ours)"
    stored = judge_again.read_results(RESULTS / "split2020/fig4/runs.csv", "split2020/fig4", "budget")
    counts = {group.members[0].settings["recipe"]: group.finished for group in stored.settings}
    assert (counts["FactorVAE, wide"], counts["FactorVAE, split"]) == (10, 34)
    task = run_papers.build_addition("split2020/fig4", "budget", [claim], set(), 35, RESULTS)
    assert (task.series, task.seeds) == (("FactorVAE, wide",), range(10, 35))


def test_no_figure_lacks_stored_runs_of_its_series():
    """A claim may be right or wrong by the choice of its figure's runs."""
    stored = share_runs.read_stored(RESULTS)
    assert {name: found for name in stored if (found := share_runs.find_missing(name, stored))} == {}


OTHER = "split2020/fig4"


@pytest.fixture
def lacking(stored):
    """Results in which one figure has three changed runs and five seeds of each series, and the others all of them."""
    results, _ = stored
    for name in (OTHER, "split2020/fig5"):
        shutil.copytree(RESULTS / name, results / name)
    _, rows = add_seeds.read_rows(results / ADDED_TO)
    own = [row | {"mig/exact": "0.5"} if place < 3 else row for place, row in enumerate(rows) if int(row["seed"]) < 5]
    write_csv(results / ADDED_TO / "runs.csv", own)
    return results, own, rows


def change_rows(path, change):
    _, rows = add_seeds.read_rows(path)
    write_csv(path / "runs.csv", [change(row) for row in rows])


def test_runs_that_another_figure_has_are_added(lacking, capsys, monkeypatch):
    """They keep their seeds, and a run that is there stays as it is."""
    results, own, rows = lacking
    found = share_runs.read_stored(results)
    missing = share_runs.find_missing(ADDED_TO, found)
    assert {name: len(added) for name, added in missing.items()} == {OTHER: len(rows) - len(own)}
    assert (share_runs.find_missing(OTHER, found), share_runs.count_conflicts(ADDED_TO, found)) == ({}, 6)
    monkeypatch.setattr(sys, "argv", ["share_runs.py", "split2020", "--results", str(results), "--write"])
    share_runs.main()
    assert f"{ADDED_TO} lacks {len(rows) - len(own)} runs of {OTHER}" in capsys.readouterr().out
    _, after = add_seeds.read_rows(results / ADDED_TO)
    assert sorted(map(str, after)) == sorted(map(str, [*own, *(row for row in rows if int(row["seed"]) >= 5)]))
    assert f"were taken from {OTHER}, which" in (results / ADDED_TO / "README.md").read_text()
    share_runs.main()
    assert "No figure lacks runs that another one has." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "more"),
    [
        (lambda row: row | {"mig/exact": ""}, True),
        (lambda row: row | {"state": "failed"}, True),
        (lambda row: row, False),
    ],
)
def test_failed_runs_and_runs_without_a_score_are_not_shared(lacking, change, more):
    """Another figure has some of these runs, and gives them."""
    results, *_ = lacking
    change_rows(results / OTHER, change)
    missing = share_runs.find_missing(ADDED_TO, share_runs.read_stored(results))
    assert set(missing) == {"split2020/fig5" if more else OTHER}


def test_runs_of_another_scale_are_not_shared(lacking):
    results, *_ = lacking
    for name in (OTHER, "split2020/fig5"):
        path = results / name / "verdicts.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "scale": "paper"}))
    assert share_runs.find_missing(ADDED_TO, share_runs.read_stored(results)) == {}


def test_runs_with_other_settings_or_scores_by_a_classifier_are_not_shared():
    found = share_runs.read_stored(RESULTS)
    assert ADDED_TO in found
    assert not {"msvae2020/fig4", "esmaeili2018/fig7"} & set(found)  # distances and labels by a classifier
    sprites, cars = found[ADDED_TO].settings, found["split2020/fig6"].settings
    assert set(sprites) == set(cars)
    assert not set(sprites.values()) & set(cars.values())
    stages = share_runs.describe_settings("msvae2020/fig10", "budget")
    assert len({stages[name] for name in stages}) == len(stages)
    on_other_runs = share_runs.describe_settings("msvae2020/fig5", "budget")
    assert not set(stages.values()) & set(on_other_runs.values())


def test_the_page_says_what_runs_of_twice_the_steps_showed(monkeypatch):
    """An interval in its range that moves, with and without them, and one that crosses its bound."""
    name, claim = "split2020/fig3", experiment["split2020/fig3"].facts.claims[0].text
    moving = "; at this pace, as many steps again would change the verdict (holds)"
    inside = {"what": "x", "value": 1.0, "low": 0.5, "high": 1.5, "wanted": "above 0"}
    across = {**inside, "low": -0.5, "high": 2.5}
    for piece, why, words in (
        (inside, moving, verdicts.WAITS),
        (inside, f"{moving}. With twice the steps there are runs, but they lack a score", verdicts.WAITS),
        (inside, f"{moving}. With twice the steps it is open: 1", "runs of twice the steps do not confirm it"),
        (inside, f"; {settling.DISAGREEMENT}. With twice the steps it does not hold: 1", "do not confirm it"),
        (across, ". With twice the steps it holds: 1", "The interval crosses the bound"),
    ):
        verdict = {"claim": claim, "evidence": [piece], "why": why}
        reason, _ = verdicts._explain_open(verdict, name, piece, RESULTS, 1)
        assert words in reason


def test_pages_state_the_rule_of_today():
    for path in RESULTS.glob("*/*/README.md"):
        assert "half of the steps" not in (page := path.read_text("utf-8")), path
        assert "half the steps" not in page, path


def test_baselines_and_claims_about_models_ask_for_no_seeds_of_them():
    places = {"esmaeili2018/discrete": "k-means", "msvae2020/fig38": "moving C"}
    for name, word in places.items():
        (claim,) = [each.text for each in experiment[name].facts.claims if word in each.text]
        task = run_papers.build_addition(name, "budget", [claim], set(), 30, RESULTS)
        assert task is None or set(task.series) <= set(experiment[name].facts.series)


@pytest.fixture
def stored(tmp_path):
    """A committed result, and a folder with further seeds of one of its series."""
    results, more = tmp_path / "results", tmp_path / "more"
    for folder in (results / ADDED_TO, more):
        shutil.copytree(RESULTS / ADDED_TO, folder)
    with (more / "runs.csv").open(newline="") as handle:
        rows = [row for row in csv.DictReader(handle) if row["series"] == WIDE]
    write_csv(more / "runs.csv", [row | {"seed": str(int(row["seed"]) + 10)} for row in rows])
    return results, more


ADDED_TO, WIDE = "split2020/fig3", "FactorVAE, wide"


def test_added_seeds_are_judged_together_with_the_others(stored):
    results, more = stored
    before = json.loads((results / ADDED_TO / "verdicts.json").read_text())
    add_seeds.add_seeds(ADDED_TO, [more], results, ["Seed 20 was left out."])
    after = json.loads((results / ADDED_TO / "verdicts.json").read_text())
    assert after["runs"] == 2 * before["runs"]  # `more` says it has as many
    looks = [[each["looks"] for each in record["verdicts"]] for record in (before, after)]
    assert np.subtract(looks[1], looks[0]).tolist() == [0, 0, 1]  # the others do not read it
    columns, rows = add_seeds.read_rows(results / ADDED_TO)
    assert [row["seed"] for row in rows if row["series"] == WIDE] == [str(seed) for seed in range(20)]
    assert columns == add_seeds.read_rows(RESULTS / ADDED_TO)[0]
    page = (results / ADDED_TO / "README.md").read_text()
    assert f"- Runs of seeds 10 to 19 of {WIDE} were added" in page
    assert "\n- Seed 20 was left out.\n" in page
    assert f"| {WIDE} | 20 |" in page
    figures = [folder / ADDED_TO / "figure.png" for folder in (results, RESULTS)]
    assert figures[0].read_bytes() != figures[1].read_bytes()  # drawn anew, with all runs
    with pytest.raises(SystemExit, match=f"seed 10 of {WIDE} already"):
        add_seeds.add_seeds(ADDED_TO, [more], results)


def test_seeds_of_some_values_are_added(tmp_path):
    """They are a look at the claim whose evidence they change; others read only the seeds that all settings have."""
    name, results, more = "esmaeili2018/discrete", tmp_path / "results", tmp_path / "more"
    for folder in (results / name, more):
        shutil.copytree(RESULTS / name, folder)
    page = (more / "README.md").read_text()
    for key, axis, value in (("beta", "[1.0,4.0,8.0]", "[4.0]"), ("gamma", "[1.0,3.0,8.0]", "[3.0]")):
        (more / "README.md").write_text(page := page.replace(f"MNIST: {key} | {axis}", f"MNIST: {key} | {value}"))
    _, rows = add_seeds.read_rows(results / name)
    first = [row for row in rows if int(row["seed"]) < 5]
    write_csv(results / name / "runs.csv", first)
    swept = [row for row in first if row["series"] == "HFVAE, MNIST"]
    chosen = [row for row in swept if (row["beta"], row["gamma"]) == ("4.0", "3.0")]
    write_csv(more / "runs.csv", [row | {"seed": str(int(row["seed"]) + 5)} for row in chosen])
    before = json.loads((results / name / "verdicts.json").read_text())
    add_seeds.add_seeds(name, [more], results)
    after = json.loads((results / name / "verdicts.json").read_text())
    looks = [[each.get("looks", 1) for each in record["verdicts"]] for record in (before, after)]
    recovery = [int(each["claim"].startswith("labels are recovered")) for each in before["verdicts"]]
    assert np.subtract(looks[1], looks[0]).tolist() == recovery
    assert sum(recovery) == 1
    assert "| HFVAE, MNIST | 4.0 | 3.0 | 10 |" in (results / name / "README.md").read_text()
    (more / "README.md").write_text(page.replace("MNIST: beta | [4.0]", "MNIST: beta | [5.0]"))
    with pytest.raises(SystemExit, match=re.escape("MNIST: beta is [5.0] in")):
        add_seeds.add_seeds(name, [more], results)


def test_folders_that_are_added_together_are_one_look(stored, tmp_path):
    results, more = stored
    before = json.loads((results / ADDED_TO / "verdicts.json").read_text())
    shutil.copytree(more, tmp_path / "others")
    _, rows = add_seeds.read_rows(more)
    split = [row | {"series": "VAE, wide", "seed": str(100 + place)} for place, row in enumerate(rows)]
    write_csv(tmp_path / "others" / "runs.csv", split)
    add_seeds.add_seeds(ADDED_TO, [more, tmp_path / "others"], results)
    after = json.loads((results / ADDED_TO / "verdicts.json").read_text())
    assert after["verdicts"][2]["looks"] == before["verdicts"][2]["looks"] + 1  # it reads both series
    page = (results / ADDED_TO / "README.md").read_text()
    assert f"- Runs of seeds 10 to 19 of {WIDE} were added" in page
    assert "- Runs of seeds 100 to 109 of VAE, wide were added" in page


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        ("README.md", "| batch | 64 |", "| batch | 128 |", "batch is 128"),
        ("README.md", "| batch | 64 |", "| VAE: batch | 128 |", "VAE: batch is 128"),
        ("verdicts.json", '"scale": "budget"', '"scale": "small"', "scale small"),
        ("runs.csv", "VAE,", "VEA,", "no series FactorVEA"),
        ("runs.csv", "state,mig", "state,mag", "mag/exact"),
    ],
)
def test_seeds_of_another_experiment_are_refused(stored, file, old, new, said):
    results, more = stored
    text = (more / file).read_text()
    assert old in text
    (more / file).write_text(text.replace(old, new))
    with pytest.raises(SystemExit, match=said):
        add_seeds.add_seeds(ADDED_TO, [more], results)
    for name in ("runs.csv", "verdicts.json", "README.md"):
        assert (results / ADDED_TO / name).read_bytes() == (RESULTS / ADDED_TO / name).read_bytes()


def test_scores_by_another_classifier_are_not_added(stored):
    results, more = stored
    for folder, weights in ((results / ADDED_TO, "a"), (more, "b")):
        record = json.loads((folder / "verdicts.json").read_text())
        (folder / "verdicts.json").write_text(json.dumps({**record, "networks": {"mig/exact": [weights]}}))
    with pytest.raises(SystemExit, match="mig/exact was measured by another classifier"):
        add_seeds.add_seeds(ADDED_TO, [more], results)
    with pytest.raises(SystemExit, match="no score mig/exat to leave out"):
        add_seeds.add_seeds(ADDED_TO, [more], results, without=["mig/exact", "mig/exat"])
    before = json.loads((results / ADDED_TO / "verdicts.json").read_text())
    add_seeds.add_seeds(ADDED_TO, [more], results, without=["mig/exact"])
    after = json.loads((results / ADDED_TO / "verdicts.json").read_text())
    assert [each["looks"] for each in after["verdicts"]] == [each.get("looks", 1) for each in before["verdicts"]]
    _, rows = add_seeds.read_rows(results / ADDED_TO)
    of_added = [row for row in rows if row["series"] == WIDE and int(row["seed"]) >= 10]
    assert of_added and all(row["kl/closed-form"] and row["kl/closed-form at 4/5"] for row in of_added)
    assert not any(row["mig/exact"] or row["mig/exact at 4/5"] for row in of_added)
    assert "These runs have no mig/exact: theirs came from" in (results / ADDED_TO / "README.md").read_text()


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


def test_an_interval_beyond_its_bound_that_still_moves_needs_steps_not_seeds():
    piece = {"what": "MIG", "value": -0.03, "low": -0.04, "high": -0.02, "wanted": "above 0"}
    moves = "Since 4/5 of training: +0.005; at this pace, as many steps again would change the verdict (does not hold)."
    claim = experiment["msvae2020/fig29"].facts.claims[1].text
    verdict = {"claim": claim, "why": moves, "evidence": [piece]}
    reason, seeds = verdicts._explain_open(verdict, "msvae2020/fig29", piece, RESULTS, 1)
    assert reason.startswith("The interval lies outside of the range, but still moves: about ")
    assert math.isnan(seeds)
    crossing = piece | {"high": 0.01}
    reason, _ = verdicts._explain_open(verdict, "msvae2020/fig29", crossing, RESULTS, 1)
    assert "crosses the bound" in reason
    small = verdict | {"why": f"46% of all choices have this sign, 66% at most; two of three should. {moves}"}
    reason, _ = verdicts._explain_open(small, "msvae2020/fig29", crossing, RESULTS, 1)
    assert reason.startswith("The difference is too small to be seen, but still moves: about ")


def test_seeds_of_results_without_runs_are_those_of_the_series_that_a_claim_names(tmp_path):
    folder = tmp_path / "chen2018/fig3"
    folder.mkdir(parents=True)
    rows = [("VAE", "", 10), ("beta-VAE", "", 8), ("FactorVAE", 4, 3), ("FactorVAE", 79, 5), ("beta-TCVAE", "", 10)]
    write_csv(folder / "table.csv", [dict(zip(("series", "gamma", "runs"), row, strict=True)) for row in rows])

    def count(what):
        return verdicts._count_seeds("chen2018/fig3", {"claim": "", "evidence": [{"what": what}]}, tmp_path)

    assert count("median MIG, beta-VAE minus FactorVAE at its best gamma (79)") == (3, "3 to 8")
    assert count("share of beta-TCVAE runs with MIG below 0.3") == (10, "10")
    assert count("a statistic of all runs") == (3, "3 to 10")


def test_scores_read_again_keep_the_range_of_their_metric(tmp_path):
    """Columns are named by the experiment; the range comes from the metric behind a name, or from the experiment."""
    columns = {"series": "unseen pairs", "seed": 0, "state": "finished", "KL(c)": 0.1, "shape, x2 from x1": 0.9}
    write_csv(tmp_path / "runs.csv", [{**columns, "elbo/closed-form": -3.0}])
    results = judge_again.read_results(tmp_path / "runs.csv", "daunhawer2019/fig3", "budget")
    assert results.find_bounds("KL(c)") == (0, math.inf)
    assert results.find_bounds("shape, x2 from x1") == (0, 1)
    assert results.find_bounds("elbo/closed-form") == (-math.inf, math.inf)
    columns = {"series": "standard prior", "seed": 0, "state": "finished", "identity/elbo": 0.1}
    write_csv(tmp_path / "runs.csv", [columns])
    results = judge_again.read_results(tmp_path / "runs.csv", "esmaeili2018/decomposition", "budget")
    assert results.find_bounds("identity/elbo") == (0, math.inf)


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*/*/runs.csv")), ids=lambda path: path.parent.name)
def test_stored_verdicts_follow_from_the_stored_scores_of_runs(path):
    stored = json.loads((path.parent / "verdicts.json").read_text("utf-8"))
    name = stored["experiment"]
    results = replace(
        judge_again.read_results(path, name, stored["scale"]),
        looks=writing.read_looks(stored, experiment[name].facts.claims),
    )
    standing = {row.claim for row in verdicts.read_rows(name, RESULTS) if row.status != "withdrawn"}
    made = [judge(claim, results).as_record() for claim in experiment[name].facts.claims if claim.text in standing]
    kept = [each for each in stored["verdicts"] if each["claim"] in standing]
    assert [(each["claim"], each["verdict"]) for each in made] == [(each["claim"], each["verdict"]) for each in kept]
    ends = [
        [[piece[key] for key in ("value", "low", "high")] for v in each for piece in v["evidence"]]
        for each in (made, kept)
    ]
    np.testing.assert_allclose(*(np.array(each, dtype=float) for each in ends), rtol=1e-6, atol=1e-9)
