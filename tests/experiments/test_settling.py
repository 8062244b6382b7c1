"""Verdicts that wait until a claim's own estimate stops moving, and the snapshots that show whether it does."""

import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.support.messages import names, naming
from tests.support.results import made_up, member
from unbraid import sweep
from unbraid.errors import UsageError
from unbraid.experiments import Claim, Results, Scale, experiment, judge, reproduce, running, settling
from unbraid.experiments.base import Evidence, Experiment
from unbraid.experiments.evidence import combine, compare_at_each, compare_means, compare_pairs, find_mean
from unbraid.experiments.statistics import Estimate
from unbraid.experiments.stored_runs import Source
from unbraid.methods import objective
from unbraid.store import RunFolder, load_tensors
from unbraid.training import Cadence

SCORE, OTHER = "mig/exact", "tc/exact"
HIGHER = Claim("b is above a", compare_means("a", "b", SCORE, low=0.0))


def results(gap, before=None, **facts):
    """Runs whose score is higher by `gap` in series b, and was higher by `before` at 4/5 of training."""

    def at(size):
        return made_up({("a", 1): {SCORE: 0.2, OTHER: 0.3}, ("b", 1): {SCORE: 0.2 + size, OTHER: 0.3}})

    now = at(gap)
    earlier = None if before is None else at(before)
    return Results(now.members, "small", earlier=earlier, **facts)


def test_a_steady_estimate_gets_its_verdict():
    verdict = judge(HIGHER, results(0.1, before=0.1))
    assert verdict.verdict == "holds"
    assert judge(HIGHER, results(-0.1, before=-0.1)).verdict == "does not hold"


def test_an_estimate_that_falls_too_fast_gets_none():
    assert judge(HIGHER, results(0.1, before=0.11)).verdict == "holds"  # 0.05 are left after as many steps again
    falling = judge(HIGHER, results(0.1, before=0.13))
    assert falling.verdict == "inconclusive"
    assert names(falling.why, "-0.03", "holds")


def test_a_claim_says_whether_its_estimates_moved_away_from_the_bound():
    rising = judge(HIGHER, results(0.1, before=0.01))
    assert rising.verdict == "holds"
    assert "away from the bound" in rising.why
    assert "away from the bound" not in judge(HIGHER, results(0.1, before=0.11)).why
    both = Claim("equal", compare_means("a", "b", SCORE, low=-0.5, high=0.5))
    assert "away from the bound" not in judge(both, results(0.1, before=0.05)).why  # towards one end of two


def test_a_moving_loss_or_another_score_does_not_matter():
    moving = results(0.1, before=0.1)
    lower = [m._replace(scores={**m.scores, OTHER: m.scores[SCORE]}) for m in moving.earlier.members]
    assert judge(HIGHER, Results(moving.members, "small", earlier=Results(tuple(lower)))).verdict == "holds"


@pytest.mark.parametrize(("refines", "drift"), [(True, "+0.01"), (False, "-0.04")])
def test_a_stage_is_compared_with_the_finished_run_that_it_refines(refines, drift):
    kept = compare_pairs("a", "b", ["seed"], (SCORE, SCORE), lambda d: d.mean(-1), "change", refines, high=0.5)
    now, earlier = (
        [member(name, seed, {SCORE: value}) for name, value in values.items() for seed in range(4)]
        for values in ({"a": 0.3, "b": 0.35}, {"a": 0.25, "b": 0.34})
    )
    verdict = judge(Claim("kept", kept), Results(tuple(now), "small", earlier=Results(tuple(earlier), "small")))
    assert names(verdict.why, drift)


def with_half(gap, half, before, **facts):
    """Runs whose gap is known at the end, with half of the steps, and at 4/5 of them."""
    return replace(results(gap, before), shorter=results(half), **facts)


def test_runs_of_half_the_steps_tell_more_than_a_rate_that_falls_to_zero():
    assert judge(HIGHER, results(0.1, before=0.13)).verdict == "inconclusive"
    settled = judge(HIGHER, with_half(0.1, half=0.12, before=0.13))  # 0.08 after twice the steps
    assert settled.verdict == "holds"
    assert names(settled.why, "half of the steps", "0.123")
    shrinking = judge(HIGHER, with_half(0.1, half=0.18, before=0.13))
    assert shrinking.verdict == "inconclusive"
    assert names(shrinking.why, "half of the steps", "would change the verdict (holds)")


def test_half_lengths_do_not_reopen_what_the_snapshots_settled():
    verdict = judge(HIGHER, with_half(0.1, half=0.18, before=0.1))
    assert verdict.verdict == "holds"
    assert "half of the steps" not in verdict.why


def test_half_lengths_at_other_settings_tell_nothing():
    at = compare_at_each("a", "b", "beta", SCORE, low=0.0)
    whole, earlier, shorter = (
        made_up({("a", beta): {SCORE: 0.2}, ("b", beta): {SCORE: 0.2 + gap}})
        for beta, gap in ((1, 0.1), (1, 0.13), (2, 0.1))
    )
    verdict = judge(Claim("b is above a", at), replace(whole, earlier=earlier, shorter=shorter))
    assert verdict.verdict == "inconclusive"
    assert "half of the steps" not in verdict.why
    same = judge(Claim("b is above a", at), replace(whole, earlier=earlier, shorter=whole))
    assert same.verdict == "holds"


def test_half_lengths_have_the_level_of_the_look():
    once, again = (judge(HIGHER, with_half(0.1, 0.12, 0.13, looks={HIGHER.text: k})).why for k in (1, 4))
    assert once.partition("With half")[2] != again.partition("With half")[2]


def test_the_noise_of_both_lengths_counts():
    now = results(0.1, before=0.13)
    found = now.group_scores("b", None, SCORE)[None].mean() - now.group_scores("a", None, SCORE)[None].mean()

    def half(spread):
        at = {"a": (0.2 - spread, 0.2, 0.2 + spread), "b": (0.2 + found - spread, 0.2 + found, 0.2 + found + spread)}
        made = [member(name, k, {SCORE: value}) for name, values in at.items() for k, value in enumerate(values)]
        return replace(now, shorter=Results(tuple(made), "small"))

    assert judge(HIGHER, half(0.005)).verdict == "holds"
    assert judge(HIGHER, half(0.1)).verdict == "inconclusive"


def test_an_estimate_without_width_gets_that_of_the_half_length():
    exact, wide = Evidence("x", Estimate(0.5, 0.5, 0.5), low=0.0), Evidence("x", Estimate(0.4, -1.0, 1.8), low=0.0)
    moved = settling._double_steps(exact, wide).estimate
    assert moved[:3] == pytest.approx((0.6, 0.6 - 1.4, 0.6 + 1.4))


SMALL_GAP = {("a", 1): {SCORE: 0.2}, ("b", 1): {SCORE: 0.23}}


@pytest.mark.parametrize("shorter", [made_up(SMALL_GAP, seeds=2), made_up({("a", 1): {SCORE: 0.2}})])
def test_runs_of_half_the_steps_without_seeds_or_series_leave_it_to_the_snapshots(shorter):
    verdict = judge(HIGHER, replace(results(0.1, before=0.1), shorter=shorter))
    assert verdict.verdict == "holds"
    assert "4/5" in verdict.why


def test_claims_that_do_not_depend_on_training_need_not_settle():
    before_training = Claim("it is so", HIGHER.evidence, trained=False)
    assert judge(before_training, results(0.1, before=0.2)).verdict == "holds"


def test_without_snapshots_there_is_no_verdict():
    runs = [m.run for m in results(0.1).members]
    verdict = judge(HIGHER, results(0.1, unchecked=frozenset(runs[:3])))
    assert verdict.verdict == "inconclusive"
    assert names(verdict.why, 3, 20)
    assert judge(HIGHER, results(0.1, unchecked=frozenset(runs[:2]))).verdict == "holds"
    lost = results(0.1, before=0.1)
    empty = Results(tuple(m._replace(scores={}) for m in lost.earlier.members))
    assert judge(HIGHER, Results(lost.members, "small", earlier=empty)).verdict == "inconclusive"


def test_several_estimates_refute_a_claim_less_easily_than_one():
    """One of many intervals lies outside by chance."""
    found = made_up({("a", 1): {SCORE: 0.2}, ("b", 1): {SCORE: 0.283}}, seeds=10)
    alone = Claim("above", compare_means("a", "b", SCORE, low=0.1))
    assert judge(alone, found).verdict == "does not hold"
    many = Claim("above, and more", combine(alone.evidence, *[find_mean("a", SCORE, low=0.1)] * 9))
    assert judge(many, found).verdict == "inconclusive"


TINY = {
    "data": "sprites-small",
    "data.positions": 4,
    "network": "mlp",
    "encoder.hidden": (8,),
    "decoder.hidden": (8,),
    "z": 2,
    "batch": 16,
}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("settling")


def facts(steps, **others):
    scales = {name: Scale({**TINY, "steps": steps, "seed": range(3)}) for name in ("small", "paper")}
    return Experiment(series={"beta-vae": {"recipe": "beta-vae"}}, scales=scales, metrics=("kl/closed-form",), **others)


def test_runs_keep_a_snapshot_that_is_scored_like_a_run(place):
    found, runs, _ = running._run_experiment(facts(20), "small", place, "cpu", None)
    assert found.earlier is not None
    assert not found.unchecked
    for now, then in zip(found.members, found.earlier.members, strict=True):
        assert now.scores.keys() == then.scores.keys() != set()
        assert now.scores["kl/closed-form"].value != then.scores["kl/closed-form"].value
    assert runs[0].snapshot.status["step"] == 16
    assert [line["step"] for line in runs[0].snapshot.read_lines("history")][-1] <= 16
    again, _, _ = running._run_experiment(facts(20), "small", place, "cpu", None)
    assert again.earlier.members == found.earlier.members
    assert len(runs[0].snapshot.read_lines("scores")) == 1, "a stored score is not measured again"


def draw_nothing(results, make):
    return make()


def test_half_of_the_steps_are_trained_stored_and_used(place, monkeypatch):
    claims = (Claim("a small KL", find_mean("beta-vae", "kl/closed-form", high=100.0)),)
    entry = replace(experiment["chen2018/fig2"], name="mine/fig1", make=draw_nothing, facts=facts(20, claims=claims))
    monkeypatch.setattr(running, "find_experiments", lambda name: [name])
    monkeypatch.setattr(running, "experiment", {"mine/fig1": entry})
    where = {"root": place / "halves", "out": place / "pages", "device": "cpu"}
    (half,) = reproduce("mine/fig1", half=True, **where)
    assert half.verdicts == ()
    stored = {path.name for path in half.folder.iterdir()}
    assert stored == {"half.csv", "half.json"}
    configs = [RunFolder(path.parent).config for path in (place / "halves").rglob("runs/*/config.yaml")]
    assert [config.training.steps for config in configs] == [10, 10, 10]
    monkeypatch.setattr(settling, "_compare_with_snapshots", lambda *given: ("inconclusive", "It moves"))
    (whole,) = reproduce("mine/fig1", **where)
    assert names(whole.verdicts[0].why, "half of the steps")
    assert names((whole.folder / "README.md").read_text(), "half.csv", "--half")
    with pytest.raises(UsageError, match=naming("--out")):
        reproduce("mine/fig1", half=True, seeds=range(5, 7), **where)
    scores, record = ((half.folder / name).read_text() for name in ("half.csv", "half.json"))
    for name, text in [
        ("half.json", "{"),
        ("half.json", "{}"),
        ("half.json", record.replace(": 10", ": 7")),
        ("half.csv", ""),
        ("half.csv", scores.rpartition("beta-vae")[0]),
        ("half.csv", scores.replace("finished,0", "finished,x")),
    ]:
        (half.folder / name).write_text(text)
        with pytest.raises(UsageError, match=naming(name)):
            reproduce("mine/fig1", **where)
        (half.folder / "half.csv").write_text(scores)
        (half.folder / "half.json").write_text(record)


@pytest.mark.parametrize("name", [name for name in experiment if experiment[name].facts.measure is None])
def test_every_setting_that_counts_steps_is_halved(name):
    facts = experiment[name].facts
    for scale in facts.scales:
        if scale == "smoke":
            continue
        whole, half = facts.build_sweeps(scale), facts.with_half_steps(scale).build_sweeps(scale)
        for series, settings in whole.items():
            defaults = {key: known.default for key, known in objective[settings["recipe"]].settings.items()}
            known = {**defaults, **settings}
            counted = [key for key in known if re.search(r"steps|anneal$|warm|ramp|delay", key) and known[key]]
            assert {key: known[key] // 2 for key in counted} == {key: half[series].get(key) for key in counted}
            others = {key: value for key, value in settings.items() if key not in counted}
            assert others == {key: value for key, value in half[series].items() if key not in counted}


def test_a_papers_half_lengths_leave_out_what_trains_nothing(monkeypatch):
    made = running.Reproduction("", "small", Path(), (), 0, 0, 0.0, ())
    monkeypatch.setattr(running, "_reproduce_one", lambda entry, *given: replace(made, name=entry.name))
    trained = [each.name for each in reproduce("esmaeili2018", half=True, out="nowhere")]
    assert "esmaeili2018/decomposition" not in trained
    assert "esmaeili2018/fig7" in trained


def test_only_stated_steps_can_be_halved():
    with pytest.raises(UsageError, match=naming("beta-vae", "steps")):
        replace(facts(20), scales={"small": Scale(TINY)}).with_half_steps("small")
    with pytest.raises(UsageError, match=naming("esmaeili2018/decomposition")):
        reproduce("esmaeili2018/decomposition", half=True)


def test_runs_as_long_as_the_papers_need_no_snapshot(place):
    own, _, _ = running._run_experiment(facts(20, own_steps=("beta-vae",)), "small", place, "cpu", None)
    assert own.earlier is None
    assert not own.unchecked


ROWS_OF_DSPRITES = 3 * 6 * 40 * 32 * 32
STATED_EPOCHS = {
    ("chen2018", "vae", "dsprites"): 50,
    ("chen2018", "beta-vae", "dsprites"): 50,
    ("chen2018", "beta-tcvae", "dsprites"): 50,
    ("chen2018", "factor-vae", "dsprites"): 100,
    ("daunhawer2019", "partitioned-mvae", "sprites-pairs"): 0.8 * 100,
    ("daunhawer2019", "mvae", "sprites-pairs"): 0.8 * 100,
}
"""Epochs of dSprites's 737,280 rows: chen2018's code has 50 of them, twice as many for FactorVAE (section 6.1.2);
daunhawer2019 has 100 of four fifths."""


@pytest.mark.parametrize("name", experiment)
def test_only_series_with_stated_steps_need_not_settle(name):
    """Steps that we chose, such as InfoGAN's or those on 3D faces, may be too few."""
    facts = experiment[name].facts
    for series, settings in facts.build_sweeps("paper").items():
        if series in facts.own_steps:
            epochs = STATED_EPOCHS.get((name.partition("/")[0], settings["recipe"], str(settings["data"])))
            assert epochs is not None, series
            assert settings["steps"] * settings["batch"] == epochs * ROWS_OF_DSPRITES


def test_taken_runs_without_snapshot_are_counted(place, tmp_path):
    sweep(
        "beta-vae",
        root=tmp_path,
        name="old",
        device="cpu",
        metrics=["kl"],
        report=False,
        steps=20,
        seed=range(3),
        **{key.replace(".", "_"): value for key, value in TINY.items()},
    )
    source = Source.open(tmp_path / "old")
    found, _, _ = running._run_experiment(facts(20), "small", tmp_path, "cpu", source)
    assert found.earlier is None
    assert found.unchecked == {m.run for m in found.members}


def test_taken_runs_need_no_weights_of_their_snapshots(place, tmp_path):
    found, runs, _ = running._run_experiment(facts(20), "small", place, "cpu", None)
    study = shutil.copytree(runs[0].path.parents[1], tmp_path / "study")
    for weights in study.rglob("*.safetensors"):
        weights.unlink()
    taken, _, _ = running._run_experiment(facts(20), "small", tmp_path, "cpu", Source.open(study))
    assert not taken.unchecked
    assert [m.scores for m in taken.earlier.members] == [m.scores for m in found.earlier.members]


def test_a_snapshot_changes_no_weight(place):
    """An MS-VAE recentres its codes when weights are kept, which must not reach the training."""
    how = {"root": place, "device": "cpu", "metrics": [], "report": False}
    first = sweep("vae", name="first", steps=4, **how, **{k.replace(".", "_"): v for k, v in TINY.items()})
    weights = []
    for name, cadence in (("plain", None), ("kept", Cadence(snapshot=0.5))):
        settings = {"steps": 6, "batch": 8, "encoder_channels": 2, "decoder_channels": 2, "z": 2}
        refined = sweep("ms-vae", refines=[str(first.runs[0].path)], name=name, cadence=cadence, **how, **settings)
        weights.append(load_tensors(refined.runs[0].folder.model_path)[0])
    assert all(torch.equal(weights[0][key], weights[1][key]) for key in weights[0])
    assert refined.runs[0].folder.snapshot.finished
    kept = load_tensors(refined.runs[0].folder.snapshot.model_path)[0]
    assert any(not torch.equal(kept[key], weights[0][key]) for key in kept)


@pytest.mark.parametrize("share", [0.0, 1.0, -1.0, np.nan])
def test_a_snapshot_lies_inside_training(share):
    with pytest.raises(UsageError, match=naming("snapshot", share)):
        Cadence(snapshot=share)
