"""The page of results, and the pages of experiments, follow from what is stored."""

import json
import math
import re
import sys

import numpy as np
import pytest

from tests.support.result_scripts import RESULTS, ROOT, judge_again, verdicts
from unbraid.experiments import experiment, judge, settling, writing
from unbraid.papers.msvae2020.trade_off import SAME_C
from unbraid.report.tables import write_csv

PAGE = (RESULTS / "README.md").read_text("utf-8")
READS_HISTORIES = "training converges faster on means than on samples"
"""The one claim whose evidence is not in the scores of its runs but in their histories."""


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


def test_pages_of_older_and_withdrawn_verdicts_say_so():
    said = {"older": "older than the experiment", "withdrawn": "withdrawn"}
    for name in experiment:
        page = RESULTS / name / "README.md"
        rows = verdicts.read_rows(name, RESULTS) if page.exists() else []
        for status in {row.status for row in rows} & set(said):
            assert said[status] in page.read_text("utf-8").partition("| claim |")[0], name


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
    results, _ = judge_again.read_judged(name, stored, path.parent)
    standing = {row.claim for row in verdicts.read_rows(name, RESULTS) if row.status != "withdrawn"}
    standing -= {READS_HISTORIES}
    made = [judge(claim, results).as_record() for claim in experiment[name].facts.claims if claim.text in standing]
    kept = [each for each in stored["verdicts"] if each["claim"] in standing]
    assert [(each["claim"], each["verdict"]) for each in made] == [(each["claim"], each["verdict"]) for each in kept]
    ends = [
        [[piece[key] for key in ("value", "low", "high")] for v in each for piece in v["evidence"]]
        for each in (made, kept)
    ]
    np.testing.assert_allclose(*(np.array(each, dtype=float) for each in ends), rtol=1e-6, atol=1e-9)
