"""The commands that score, compare and report: output, settings and rows."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

import unbraid as ub
from tests.cli.shared import NARROW, SMALL, TINY, is_one_error
from tests.support.command import unbraid
from tests.support.messages import names
from tests.support.sweeps import sweep
from unbraid.cli.printing import print_rows
from unbraid.errors import UsageError
from unbraid.run import compare_runs


def test_evaluate_prints_names_with_protocols(folder):
    table = unbraid("evaluate", folder, "--metric", "mig", "--device", "cpu")
    assert all(name in table for name in ("mig/exact", "mig/histogram-mean", "mig/histogram-sampled"))
    records = json.loads(unbraid("evaluate", folder, "--metric", "tc/exact", "--json", "--device", "cpu"))
    assert records[0]["metric"] == "tc"
    assert records[0]["protocol"] == "exact"
    names = [json.loads(line)["metric"] for line in (folder / "scores.jsonl").read_text().splitlines()]
    assert names.count("mig") == 4
    assert names.count("tc") == 1


def test_compare_prints_differences(folder):
    how = ("--metric", "mig/histogram-mean", "--resamples", "3", "--device", "cpu", "--json")
    (found,) = json.loads(unbraid("compare", folder, folder, *how))
    assert found["score"] == "mig/histogram-mean"
    assert found["difference"] == 0
    assert names(unbraid("compare", folder, "beta=1", code=2), "two runs")


def test_compare_shows_the_bound_beside_mig(folder, tmp_path):
    how = ("--resamples", "2", "--device", "cpu", "--json")
    found = json.loads(unbraid("compare", folder, folder, *how))
    assert {each["score"].partition("/")[0] for each in found} == {"mig", "elbo"}
    for seed, likelihood in ((0, "bernoulli"), (1, "bernoulli"), (0, "gaussian")):
        name = f"{likelihood}{seed}"
        settings = [*SMALL, f"likelihood={likelihood}", f"seed={seed}", "--name", name, "--device", "cpu"]
        unbraid("train", "vae", *settings, cwd=tmp_path)
    one, other, gaussian = (tmp_path / "runs" / name for name in ("bernoulli0", "bernoulli1", "gaussian0"))
    bound = next(each for each in json.loads(unbraid("compare", one, other, *how)) if "elbo" in each["score"])
    values = [ub.load(each, device="cpu").score("elbo/closed-form", save=False)[0] for each in (one, other)]
    assert [bound["first"], bound["second"]] == pytest.approx([score.value for score in values])
    assert bound["interval"][0] < bound["difference"] < bound["interval"][1]
    widths = [score.interval[1] - score.interval[0] for score in values]
    assert bound["interval"][1] - bound["interval"][0] < min(widths)  # rows are paired
    first, second = (ub.load(each, device="cpu") for each in (one, gaussian))
    assert {each.score.partition("/")[0] for each in compare_runs(first, second, resamples=2)} == {"mig"}
    assert names(first.notes[0], "elbo", "likelihoods")


def test_settings_that_no_run_of_a_sweep_has_are_told_with_those_it_has(tmp_path):
    swept = sweep(tmp_path, beta=[1, 4], seed=0, metrics=[], report=False)
    assert names(unbraid("compare", swept.path, "beta=1", "betta=4", code=2), "betta=4", "Did you mean 'beta'")
    assert names(unbraid("compare", swept.path, "beta=1", "beta=10", code=2), "beta=10", "1, 4")


def test_numbers_out_of_range_name_their_option(folder):
    assert names(unbraid("traverse", folder, "--row", 99999, "--device", "cpu", code=2), "--row", 0, 99999)
    assert names(unbraid("sample", folder, "-n", 0, "--device", "cpu", code=2), "-n", 1)


def test_misspelt_settings_of_metrics_are_refused(folder):
    told = unbraid("evaluate", folder, "bin=3", "--metric", "mig", "--device", "cpu", code=2)
    assert names(told, "bin", "bins")
    assert names(unbraid("evaluate", folder, "--metric", "migg", "--device", "cpu", code=2), "migg", "mig")


@pytest.mark.parametrize(
    ("metric", "setting", "facts"),
    [
        ("mig", "bins=0", ["bins", 2, 0]),
        ("mig", "bins=few", ["bins", "few"]),
        ("mig", "factors=[posZ]", ["posZ", "posY"]),
        ("full", "factors=[posZ]", ["posZ", "posY"]),
    ],
)
def test_wrong_settings_are_refused_whichever_protocols_have_them(folder, metric, setting, facts):
    told = unbraid("evaluate", folder, setting, "--metric", metric, "--device", "cpu", code=2)
    assert names(told, *facts)
    assert is_one_error(told)


def test_records_hold_their_whole_protocol(folder):
    record = json.loads(
        unbraid("evaluate", folder, "bins=7", "--metric", "mig/histogram-mean", "--json", "--device", "cpu")
    )
    assert record[0]["details"]["settings"]["bins"] == 7
    assert record[0]["details"]["rows"] == "all"


def test_headers_of_a_wide_table_break_between_words(capsys):
    scores = ("mig/histogram-mean", "mig/histogram-sampled", "elbo/closed-form", "reconstruction/nats")
    row = {f"median {score} {k}": 0.5 for k in range(2) for score in scores}
    print_rows([row], as_json=False)
    wide = capsys.readouterr().out
    assert wide.count("histogram-sampled") == wide.count("reconstruction/") == 2
    print_rows([{"median mig/exact": 0.5}], as_json=False)
    assert "median mig/exact" in capsys.readouterr().out


def test_report_is_written(folder):
    path = unbraid("report", folder, "--device", "cpu").strip()
    assert Path(path).read_text().startswith("<!doctype html>")


@pytest.mark.parametrize("scored", [False, True])
def test_report_of_a_folder_that_cannot_be_written_goes_elsewhere(folder, tmp_path, monkeypatch, scored):
    copy = shutil.copytree(folder, tmp_path / "run", ignore=shutil.ignore_patterns("report.html", "scores.jsonl"))
    if scored:
        unbraid("evaluate", copy, "--metric", "kl/closed-form", "--device", "cpu")
    before = {path.name: path.read_bytes() for path in copy.iterdir()}
    monkeypatch.setattr("os.access", lambda path, mode: mode != os.W_OK or not Path(path).is_relative_to(copy))
    told = unbraid("report", copy, "--device", "cpu", code=1)
    assert names(told, copy, "--out")
    assert "--no-save" not in told
    page = tmp_path / "page.html"
    assert unbraid("report", copy, "-o", page, "--device", "cpu").strip() == str(page)
    assert ("kl/closed-form" if scored else "mig/exact") in page.read_text()
    assert {path.name: path.read_bytes() for path in copy.iterdir()} == before
    assert names(unbraid("report", copy, "-o", copy / "config.yaml", code=2), "config.yaml")


def test_report_of_a_sweep_goes_elsewhere(tmp_path):
    swept = sweep(tmp_path, beta=4, metrics=[], report=False)
    before = sorted(path.name for path in swept.path.iterdir())
    unbraid("report", swept.path, "-o", tmp_path / "page.html")
    assert "<!doctype html>" in (tmp_path / "page.html").read_text()
    assert sorted(path.name for path in swept.path.iterdir()) == before


def test_ctrl_c_outside_training_is_told(folder, monkeypatch):
    def interrupted(*given, **others):
        raise KeyboardInterrupt

    monkeypatch.setattr("unbraid.open_run.load", interrupted)
    assert unbraid("evaluate", folder, code=130).count("\n") == 1


def test_scores_that_data_do_not_allow_are_noted_and_the_others_kept(tmp_path):
    unbraid("train", "vae", *SMALL, "split=posX:3", "--name", "one", "--device", "cpu", cwd=tmp_path)
    table = unbraid("evaluate", "runs/one", "--device", "cpu", cwd=tmp_path)
    assert "tc/exact" in table
    assert "mig" not in table
    allowed = unbraid(
        "evaluate", "runs/one", "factors=[posY,scale]", "--metric", "mig", "--device", "cpu", cwd=tmp_path
    )
    assert "mig/exact" in allowed


def test_a_real_factor_names_the_scores_that_can_cut_it_into_bins(tmp_path):
    rows = np.random.default_rng(0).standard_normal((150, 4)).round(6)
    np.savetxt(tmp_path / "rows.csv", rows, delimiter=",", header="a,b,c,real", comments="")
    settings = {"data_factors": ["real"], "z": 2, "network": "mlp", "steps": 2, "batch": 16, "device": "cpu"}
    run = ub.train("vae", data=str(tmp_path / "rows.csv"), root=tmp_path, **settings)
    run.score("mig", "units", save=False)
    (note,) = run.notes
    assert names(note, "mig/exact", "factor_bins=20", "mig/histogram-mean and mig/histogram-sampled have this setting")
    with pytest.raises(UsageError, match="factor_bins=20"):
        run.score("mig/exact", save=False)
    scores = run.score("mig", "units", save=False, factor_bins=20)
    assert {"mig/histogram-mean", "mig/histogram-sampled"} < {score.name for score in scores}
    (note,) = run.notes
    assert names(note, "mig/exact", "real", "discrete factors")
    assert "factor_bins" not in note
    with pytest.raises(UsageError, match=r"discrete factors\.$"):
        run.score("mig/exact", "mig/histogram-mean", save=False, factor_bins=20)


def test_several_runs_are_scored_together_and_compared(tmp_path):
    for seed in (0, 1, 2):
        unbraid("train", "vae", *TINY, *NARROW, f"seed={seed}", "--name", f"s{seed}", "--device", "cpu", cwd=tmp_path)
    table = unbraid("evaluate", "runs/s0", "runs/s1", "runs/s2", "--metric", "udr", "--device", "cpu", cwd=tmp_path)
    blocks, _, ranking = table.partition("all 3 runs")
    assert blocks.count("udr/spearman") == blocks.count("udr/lasso") == 3
    assert all(f"s{seed} " in ranking for seed in (0, 1, 2))
    records = json.loads(
        unbraid("evaluate", "runs/s0", "runs/s1", "--metric", "units", "--json", "--device", "cpu", cwd=tmp_path)
    )
    assert list(records) == ["runs/s0", "runs/s1"]
    alone = unbraid("evaluate", "runs/s0", "--metric", "udr", "--device", "cpu", cwd=tmp_path, code=2)
    assert "unbraid evaluate RUN RUN" in alone
    unbraid("train", "vae", *TINY, *NARROW, "data.scales=3", "--name", "other", "--device", "cpu", cwd=tmp_path)
    told = unbraid("evaluate", "runs/s0", "runs/other", "--metric", "udr", "--device", "cpu", cwd=tmp_path, code=2)
    assert names(told, "data")


def test_random_rows_and_published_protocols(folder):
    table = unbraid("evaluate", folder, "--metric", "mig/exact", "--rows", "100", "--device", "cpu")
    assert names(table, 100)
    record = json.loads(
        unbraid("evaluate", folder, "--metric", "mig/exact", "--rows", "100", "--json", "--device", "cpu")
    )[0]
    assert record["samples"] == 100
    assert names(record["details"]["rows"], 100)
    assert names(unbraid("evaluate", folder, "--rows", "1", "--device", "cpu", code=2), "rows", 2)
    assert names(unbraid("evaluate", "bins=3", code=2), "run")
    told = unbraid("evaluate", folder, "--metric", "frechet/inception", "--device", "cpu", code=2)
    assert "weights" in told
