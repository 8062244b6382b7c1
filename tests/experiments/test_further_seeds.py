"""Runs of further seeds are added to committed results, and judged together with theirs."""

import json
import re
import shutil
import sys
from contextlib import nullcontext

import numpy as np
import pytest

from tests.support.result_scripts import RESULTS, add_seeds, run_papers, share_runs, verdicts
from unbraid.report.tables import write_csv

ADDED_TO, WIDE = "split2020/fig3", "FactorVAE, wide"
OTHER = "split2020/fig4"


@pytest.fixture
def stored(tmp_path):
    """A committed result with ten seeds of one of its series, and a folder with ten further ones."""
    results, more = tmp_path / "results", tmp_path / "more"
    for folder in (results / ADDED_TO, more):
        shutil.copytree(RESULTS / ADDED_TO, folder)
    _, rows = add_seeds.read_rows(RESULTS / ADDED_TO)
    fewer = [row for row in rows if row["series"] != WIDE or int(row["seed"]) < 10]
    write_csv(results / ADDED_TO / "runs.csv", fewer)
    further = [row | {"seed": str(int(row["seed"]) + 10)} for row in fewer if row["series"] == WIDE]
    write_csv(more / "runs.csv", further)
    return results, more


def read_files(results):
    """Return the files of the committed result that further seeds would change."""
    return {name: (results / ADDED_TO / name).read_bytes() for name in ("runs.csv", "verdicts.json", "README.md")}


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


def test_a_shared_setting_may_be_given_to_the_series_instead(stored):
    """A page of further seeds has it in the column of scale `paper` only, as pages of `--only` do."""
    results, more = stored
    page, shared = (more / "README.md").read_text(), "| batch | 64 | 64 |  |"
    assert shared in page
    for value, fits in ((128, False), (64, True)):
        own = f"| batch |  | 64 |  |\n| {WIDE}: batch | {value} |  |  |"
        (more / "README.md").write_text(page.replace(shared, own))
        with nullcontext() if fits else pytest.raises(SystemExit, match=f"{WIDE}: batch is 128"):
            add_seeds.add_seeds(ADDED_TO, [more], results)
    _, rows = add_seeds.read_rows(results / ADDED_TO)
    assert sum(row["series"] == WIDE for row in rows) == 20


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
    before = read_files(results)
    text = (more / file).read_text()
    assert old in text
    (more / file).write_text(text.replace(old, new))
    with pytest.raises(SystemExit, match=said):
        add_seeds.add_seeds(ADDED_TO, [more], results)
    assert read_files(results) == before


def name_networks(folder, networks):
    record = json.loads((folder / "verdicts.json").read_text())
    (folder / "verdicts.json").write_text(json.dumps({**record, "networks": networks}))


@pytest.mark.parametrize(
    ("known", "new", "said"),
    [
        (["a"], ["b"], "measured"),
        (["a", "b"], ["c"], "measured"),
        (None, ["b"], "may have measured"),
        (["a"], None, "may have measured"),
    ],
)
def test_scores_by_another_network_or_an_unknown_one_are_not_added(stored, known, new, said):
    results, more = stored
    for folder, networks in ((results / ADDED_TO, known), (more, new)):
        name_networks(folder, {"mig/exact": networks} if networks else {})
    before = read_files(results)
    with pytest.raises(SystemExit, match=f"Another network {said} mig/exact in .*--without mig/exact"):
        add_seeds.add_seeds(ADDED_TO, [more], results)
    assert read_files(results) == before


def test_scores_by_a_network_of_the_stored_runs_are_added(stored):
    results, more = stored
    name_networks(results / ADDED_TO, {"mig/exact": ["a", "b"]})
    name_networks(more, {"mig/exact": ["b"], "recall/classifier": ["c"]})
    add_seeds.add_seeds(ADDED_TO, [more], results)
    record = json.loads((results / ADDED_TO / "verdicts.json").read_text())
    assert record["networks"] == {"mig/exact": ["a", "b"], "recall/classifier": ["c"]}


def test_runs_are_added_without_a_score(stored):
    """They are no seeds and no look of the claims that read it, and the plan asks for those that these lack."""
    results, more = stored
    for unknown in ("mig/exat", "seed", "series"):
        with pytest.raises(SystemExit, match=f"no score {unknown} to leave out"):
            add_seeds.add_seeds(ADDED_TO, [more], results, without=["mig/exact", unknown])
    before = json.loads((results / ADDED_TO / "verdicts.json").read_text())
    (of_wide,) = [each for each in before["verdicts"] if "wide" in str(each["evidence"])]

    def plan_more():
        task = run_papers.build_addition(ADDED_TO, "budget", [of_wide["claim"]], set(), 25, results)
        return verdicts._count_seeds(ADDED_TO, of_wide, results)[0], task.series, task.seeds

    assert plan_more() == (10, (WIDE,), range(10, 25))
    add_seeds.add_seeds(ADDED_TO, [more], results, without=["mig/exact"])
    after = json.loads((results / ADDED_TO / "verdicts.json").read_text())
    assert [each["looks"] for each in after["verdicts"]] == [each.get("looks", 1) for each in before["verdicts"]]
    _, rows = add_seeds.read_rows(results / ADDED_TO)
    of_added = [row for row in rows if row["series"] == WIDE and int(row["seed"]) >= 10]
    assert of_added and all(row["kl/closed-form"] and row["kl/closed-form at 4/5"] for row in of_added)
    assert not any(row["mig/exact"] or row["mig/exact at 4/5"] for row in of_added)
    assert "These runs have no mig/exact: theirs may be" in (results / ADDED_TO / "README.md").read_text()
    assert plan_more() == (10, (WIDE,), range(20, 35))


def test_no_figure_lacks_stored_runs_of_its_series():
    """A claim may be right or wrong by the choice of its figure's runs."""
    stored = share_runs.read_stored(RESULTS)
    assert {name: found for name in stored if (found := share_runs.find_missing(name, stored))} == {}


@pytest.fixture
def lacking(stored):
    """Results in which one figure has three changed runs and five seeds of each series, and the others all of them."""
    results, _ = stored
    for name in (OTHER, "split2020/fig5"):
        shutil.copytree(RESULTS / name, results / name)
    _, rows = add_seeds.read_rows(RESULTS / ADDED_TO)
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
