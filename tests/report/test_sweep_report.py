"""Tables and page of a sweep, from members made by hand."""

import re
import sys
from dataclasses import replace

import numpy as np
import pytest

from unbraid.metrics import Score
from unbraid.metrics.score import DERIVED
from unbraid.report import tables
from unbraid.report.sweep_page import choose_mig, render


def member(recipe, beta, seed, mig, tc, state="finished"):
    scores = {
        "mig/exact": Score("mig", "exact", mig, 10, (mig - 0.1, mig + 0.1)),
        "tc/exact": Score("tc", "exact", tc, 10),
        "elbo/closed-form": Score("elbo", "closed-form", -10.0 * beta - seed, 10),
    }
    settings = {"recipe": recipe, "data": "sprites", "beta": beta, "seed": seed, "encoder.hidden": [16, 16]}
    return tables.Member(f"{recipe}-{beta}-{seed}", settings, state, "", scores if state == "finished" else {})


MEMBERS = [member(r, b, s, 0.1 * b + 0.01 * s**2, 5.0 - b - 0.1 * s) for r in "pq" for b in (4, 1) for s in range(4)]
BROKEN = [*MEMBERS, member("q", 1, 4, 0.0, 0.0, "diverged")]


def test_table_has_what_varies_and_every_score():
    rows = tables.build_member_rows(BROKEN)
    assert list(rows[0])[:6] == ["recipe", "beta", "seed", "run", "status", "trouble"]
    assert rows[0]["mig/exact"] == pytest.approx(0.4)
    assert (rows[0]["mig/exact low"], rows[0]["mig/exact high"]) == (pytest.approx(0.3), pytest.approx(0.5))
    assert rows[-1]["status"] == "diverged"
    assert rows[-1]["mig/exact"] is None


def test_summary_equals_what_is_computed_by_hand():
    rows = {(row["recipe"], row["beta"], row["score"]): row for row in tables.build_summary_rows(BROKEN)}
    row = rows["q", 1, "mig/exact"]
    values = np.array([0.1, 0.11, 0.14, 0.19])
    assert (row["count"], row["diverged"]) == (4, 1)
    assert row["median"] == pytest.approx(0.125)
    assert row["mean"] == pytest.approx(0.135)
    assert (row["min"], row["max"]) == (pytest.approx(0.1), pytest.approx(0.19))
    reach = 2.353363 * values.std(ddof=1) / 2  # Student's 95% quantile with 3 degrees of freedom
    assert (row["low"], row["high"]) == (pytest.approx(0.135 - reach), pytest.approx(0.135 + reach))
    assert [row["beta"] for row in tables.build_summary_rows(BROKEN) if row["score"] == "tc/exact"] == [1, 4, 1, 4]


def test_the_interval_of_a_mean_stays_in_the_range_of_its_metric():
    """mig/exact lies between 0 and 1; tc/exact states no range, and neither does a score that is derived from one."""
    members = [member("p", 1, seed, value, value) for seed, value in enumerate((0.0, 0.02, 1.0))]
    rows = {row["score"]: row for row in tables.build_summary_rows(members)}
    assert (rows["mig/exact"]["low"], rows["mig/exact"]["high"]) == (0, 1)
    assert rows["tc/exact"]["low"] < 0 and rows["tc/exact"]["high"] > 1
    derived = [m._replace(scores={"x": replace(m.scores["mig/exact"], details={DERIVED: "y"})}) for m in members]
    (row,) = tables.build_summary_rows(derived)
    assert row["low"] == rows["tc/exact"]["low"]


def test_one_seed_has_no_interval():
    row = tables.build_summary_rows([member("p", 1, 0, 0.5, 1.0)])[0]
    assert (row["count"], row["low"], row["high"]) == (1, None, None)


def test_correlation_is_numpys_and_its_interval_holds_it():
    x, y = np.random.default_rng(0).normal(size=(2, 30))
    found, (low, high) = tables.correlate(x.tolist(), (x + y).tolist())
    assert found == pytest.approx(np.corrcoef(x, x + y)[0, 1])
    assert low < found < high
    assert tables.correlate([1.0, 2.0], [1.0, 2.0]) is None
    assert tables.correlate([1.0, 1.0, 1.0], [1.0, 2.0, 3.0]) is None


def test_parquet_where_pyarrow_is(tmp_path, monkeypatch):
    rows = [{"clip": "none", "mig": 0.5}, {"clip": 1.0, "mig": None}]
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "pyarrow", None)
        assert not tables.write_parquet(tmp_path / "table.parquet", rows)
    parquet = pytest.importorskip("pyarrow.parquet")
    assert tables.write_parquet(tmp_path / "table.parquet", rows)
    assert parquet.read_table(tmp_path / "table.parquet").to_pylist() == [
        {"clip": "none", "mig": 0.5}, {"clip": "1.0", "mig": None}]  # fmt: skip


def test_page_has_every_figure_and_run():
    page = render("one", "format: 1", BROKEN)
    assert all(name in page for name in ("mig/exact", "tc/exact", "elbo/closed-form"))
    assert page.count("<svg") == 3 + 2  # three scores against beta, the trade-off, the runs
    assert all(f'href="runs/{each.run}/"' in page for each in BROKEN)
    assert 'class="state diverged"' in page
    assert page.count("<script") == 1  # the one that sorts
    assert "http" not in page.replace("http://www.w3.org", "")
    assert page == render("one", "format: 1", BROKEN)


def test_runs_link_to_reports_that_exist_and_the_best_is_marked():
    names = [each.run for each in BROKEN]
    page = render("one", "format: 1", BROKEN, names[:1])
    assert f'href="runs/{names[0]}/report.html"' in page
    assert f'href="runs/{names[1]}/"' in page
    known = [each for each in BROKEN if each.state == "finished" and "mig/exact" in each.scores]
    best = max(known, key=lambda each: each.scores["mig/exact"].value).run
    assert page.count('<tr class="best">') == 1
    assert best in page.partition('<tr class="best">')[2].partition("</tr>")[0]


def test_page_of_few_or_no_scores():
    for few in (member("p", 1, 0, 0.0, 0.0, "waiting"), member("p", 1, 0, 0.5, 1.0)):
        page = render("one", "", [few])
        assert f'href="runs/{few.run}/"' in page
        assert "nan" not in page


def less(member, score):
    return member._replace(scores={name: made for name, made in member.scores.items() if name != score})


def with_histograms(members):
    made = Score("mig", "histogram-mean", 0.5, 10)
    return [each._replace(scores={**each.scores, made.name: made}) for each in members]


def test_figures_show_the_mig_that_every_finished_run_has():
    complete = with_histograms(MEMBERS)
    assert choose_mig(complete) == "mig/exact"
    assert choose_mig([*complete[1:], less(complete[0], "mig/exact")]) == "mig/histogram-mean"
    assert choose_mig([*complete, BROKEN[-1]]) == "mig/exact", "a diverged run has no score, and needs none"
    assert choose_mig([less(each, "mig/exact") for each in MEMBERS]) is None
    page = render("one", "", [less(complete[0], "mig/exact"), *complete[1:]])
    assert page.count("mig/histogram-mean") > page.count("mig/exact")


def test_runs_without_a_score_are_counted_wherever_they_are_missing():
    page = " ".join(render("one", "", [less(BROKEN[0], "mig/exact"), *BROKEN[1:]]).split())
    assert page.count("1 of 16") == 2
    assert page.count("3 of 4") == 1
    assert not re.search(r"\d of 16|\d of 4\b", render("one", "", BROKEN))
    members = [less(BROKEN[0], "mig/exact"), *BROKEN[1:]]
    rows = tables.build_median_rows(members, tables.list_scores(members))
    assert [row["median mig/exact"].endswith(" (3 of 4)") for row in rows] == [False, True, False, False]
    assert [row["runs"] for row in rows] == ["4", "4", "4 of 5", "4"]


def test_a_setting_that_diverged_as_a_whole_has_rows_in_the_summary():
    others = [member("q", 9, 0, 0.0, 0.0, "diverged"), member("q", 7, 0, 0.0, 0.0, "waiting")]
    rows = tables.build_summary_rows([*MEMBERS, *others])
    lost = [row for row in rows if row["beta"] == 9]
    assert [(row["score"], row["count"], row["diverged"], row["mean"]) for row in lost] == [
        (name, 0, 1, None) for name in ("mig/exact", "tc/exact", "elbo/closed-form")]  # fmt: skip
    assert not [row for row in rows if row["beta"] == 7]
    assert all(row.keys() == rows[0].keys() for row in rows)
    (alone,) = tables.build_summary_rows([member("q", 9, 0, 0.0, 0.0, "diverged")])
    assert (alone["score"], alone["count"], alone["diverged"]) == (None, 0, 1)
