"""Commands that rank the runs of a sweep, and show the settings by which these differ."""

import json

import pytest

import unbraid as ub
from tests.support.command import unbraid
from tests.support.messages import names, naming
from tests.support.sweeps import sweep
from unbraid.errors import UsageError

SCORE = "elbo/closed-form"


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    return sweep(tmp_path_factory.mktemp("ranked"))


def values_of(swept):
    return {member.run: member.scores[SCORE].value for member in swept.members}


def test_runs_of_a_sweep_are_listed_with_their_settings(swept):
    head, *rows = unbraid("runs", swept.path).splitlines()
    assert [word for word in head.split() if word in ("beta", "seed")] == ["beta", "seed"]
    assert len(rows) == 4
    found = json.loads(unbraid("runs", swept.path, "--json"))
    assert sorted(tuple(row["settings"].values()) for row in found) == [(1, 0), (1, 1), (4, 0), (4, 1)]
    assert all("settings" not in row for row in json.loads(unbraid("runs", swept.path.parent, "--json")))


@pytest.mark.parametrize("order", ["descending", "ascending"])
def test_runs_are_sorted_by_a_score(swept, order):
    options = ["--ascending"] if order == "ascending" else []
    rows = json.loads(unbraid("runs", swept.path, "--sort", SCORE, *options, "--json"))
    found = [row["scores"][SCORE] for row in rows]
    assert found == sorted(values_of(swept).values(), reverse=order == "descending")
    assert next(iter(rows[0]["scores"])) == SCORE


def test_scores_of_other_settings_or_rows_are_not_ranked(swept):
    best = swept.best(SCORE)
    worst = min(values_of(swept), key=values_of(swept).get)
    record = {**best.scores[-1].as_record(), "value": 1e6}
    record["details"] = {**record["details"], "settings": {"samples": 3}}
    ub.load(swept.path / "runs" / worst, device="cpu").folder.append_line("scores", record)
    rows = json.loads(unbraid("runs", swept.path, "--sort", SCORE, "--json"))
    assert rows[0]["name"].endswith(best.path.name)
    assert swept.best(SCORE).path == best.path


def test_runs_without_the_score_come_last_and_an_unknown_score_is_told(swept):
    first = swept.runs[0]
    first.score("kl/closed-form")
    rows = json.loads(unbraid("runs", swept.path, "--sort", "kl/closed-form", "--json"))
    assert rows[0]["name"].endswith(first.path.name)
    assert ["kl/closed-form" in row["scores"] for row in rows] == [True, False, False, False]
    assert names(unbraid("runs", swept.path, "--sort", "mig", code=2), "mig", SCORE)
    assert names(unbraid("runs", swept.path, "--ascending", code=2), "--sort")


def test_the_best_run_is_that_with_the_highest_or_the_lowest_score(swept):
    values = values_of(swept)
    assert swept.best(SCORE).path.name == max(values, key=values.get)
    assert swept.best(SCORE, lowest=True).path.name == min(values, key=values.get)
    with pytest.raises(UsageError, match=naming("mig/exact", SCORE)):
        swept.best("mig/exact")


def test_scores_of_a_sweep_name_settings_and_end_with_a_ranking(swept):
    told = unbraid("evaluate", swept.path, "--metric", "udr/spearman", "--no-save", "--device", "cpu")
    assert all(f"(beta={beta}, seed={seed})" in told for beta in (1, 4) for seed in (0, 1))
    title, head, *rows = told[told.index("all 4 runs") :].splitlines()
    assert "udr/spearman" in title
    assert head.split() == ["run", "beta", "seed", "udr/spearman"]
    found = [float(row.split()[-1]) for row in rows[:4]]
    assert found == sorted(found, reverse=True)


def test_a_note_on_several_runs_is_printed_once(swept, monkeypatch):
    printed = []
    monkeypatch.setattr("unbraid.cli.evaluate.print_notes", printed.extend)
    unbraid("evaluate", swept.path, "--metric", "kl", "--metric", "cond", "--no-save")
    assert printed
    assert len(printed) == len(set(printed))
