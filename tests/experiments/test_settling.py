"""Verdicts that wait until a claim's own estimate stops moving, and the snapshots that show whether it does."""

import math
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.support.messages import names, naming
from tests.support.results import made_up, member
from unbraid import sweep
from unbraid.errors import UsageError
from unbraid.experiments import Claim, Evidence, Results, Scale, experiment, judge, running, settling
from unbraid.experiments.base import Experiment
from unbraid.experiments.evidence import (
    combine,
    compare_at_each,
    compare_means,
    compare_on_average,
    compare_pairs,
    find_mean,
)
from unbraid.experiments.model_cache import ModelCache
from unbraid.experiments.results import MissingResultsError
from unbraid.experiments.statistics import Estimate
from unbraid.experiments.stored_runs import Source
from unbraid.store import load_tensors
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


def with_twice(gap, twice, before, **facts):
    """Runs whose gap is known at the end, with twice the steps, and at 4/5 of them."""
    return replace(results(gap, before), longer=results(twice), **facts)


def draw(gap, seeds=10, noise=0.0, seed=1):
    """Runs of two series whose means differ by exactly `gap`, with noise that differs between calls by `seed`."""
    rng = np.random.default_rng(seed)
    values = rng.standard_normal((2, seeds))
    values = 0.2 + noise * (values - values.mean(1, keepdims=True)) + [[0.0], [gap]]
    made = [member(n, k, {SCORE: v}) for n, row in zip("ab", values, strict=True) for k, v in enumerate(row)]
    return Results(tuple(made), "small")


def test_runs_of_twice_the_steps_settle_a_claim_that_they_confirm():
    assert judge(HIGHER, results(0.1, before=0.13)).verdict == "inconclusive"
    settled = judge(HIGHER, with_twice(0.1, twice=0.02, before=0.13))
    assert settled.verdict == "holds"
    assert settled.why.endswith(
        "Since 4/5 of training: -0.03. With twice the steps it holds: 0.0232 (0.00968..0.0366)."
    )
    shrinking = judge(HIGHER, with_twice(0.1, twice=0.005, before=0.13))
    assert shrinking.verdict == "inconclusive"
    assert names(shrinking.why, "would change the verdict (holds)", "With twice the steps it is open: 0.00816")


def test_opposite_verdicts_with_all_and_with_twice_the_steps_leave_a_claim_open():
    """Even if the pace of the last fifth had settled it."""
    for before in (0.1, 0.13):
        verdict = judge(HIGHER, with_twice(0.1, twice=-0.1, before=before))
        assert verdict.verdict == "inconclusive"
        assert names(verdict.why, "With twice the steps it does not hold")
    assert judge(HIGHER, with_twice(0.1, twice=0.005, before=0.1)).verdict == "holds"  # too few seeds are no opposite


def test_an_estimate_that_passes_through_its_range_refutes_nothing():
    equal = Claim("they are equal", compare_means("a", "b", SCORE, low=-0.05, high=0.05))
    assert judge(equal, replace(draw(-0.1), earlier=draw(-0.1))).verdict == "does not hold"
    assert judge(equal, replace(draw(-0.1), earlier=draw(-0.14))).verdict == "inconclusive"  # at +.1 later
    moving = replace(draw(-0.1), earlier=draw(-0.11))
    for later, verdict in ((0.1, "inconclusive"), (0.0, "inconclusive"), (-0.09, "does not hold")):
        assert judge(equal, replace(moving, longer=draw(later))).verdict == verdict


def test_a_small_difference_stays_refuted_if_twice_the_steps_do_not_show_it_either():
    small = replace(draw(0.01, seeds=60, noise=0.1), earlier=draw(-0.04, seeds=60, noise=0.1))
    assert judge(HIGHER, replace(small, earlier=None)).verdict == "does not hold"
    assert judge(HIGHER, small).verdict == "inconclusive"
    for later, verdict in ((0.01, "does not hold"), (0.05, "inconclusive"), (0.2, "inconclusive")):
        assert judge(HIGHER, replace(small, longer=draw(later, seeds=60, noise=0.1, seed=2))).verdict == verdict


def make_at(gap, *betas):
    return made_up({(name, beta): {SCORE: 0.2 + (gap if name == "b" else 0.0)} for name in "ab" for beta in betas})


@pytest.mark.parametrize("compare", [compare_at_each, compare_on_average])
def test_runs_of_twice_the_steps_need_all_settings_of_a_claim(compare):
    claim = Claim("b is above a", compare("a", "b", "beta", SCORE, low=0.0))
    moving = replace(make_at(0.1, 1, 4), earlier=make_at(0.13, 1, 4))
    for betas in ((2, 8), (1,), (4,)):
        verdict = judge(claim, replace(moving, longer=make_at(0.1, *betas)))
        assert verdict.verdict == "inconclusive"
        assert names(verdict.why, "With twice the steps there are runs", "lack mig/exact", "beta")
    assert judge(claim, replace(moving, longer=make_at(0.1, 1, 4))).verdict == "holds"


@pytest.mark.parametrize("compare", [compare_at_each, compare_on_average])
def test_a_score_that_longer_runs_lack_at_one_setting_is_not_overlooked(compare):
    claim = Claim("b is above a", compare("a", "b", "beta", SCORE, low=0.0))
    moving = replace(make_at(0.1, 1, 4), earlier=make_at(0.13, 1, 4))
    lacking = tuple(m._replace(scores={}) if m.settings["beta"] == 4 else m for m in make_at(0.1, 1, 4).members)
    verdict = judge(claim, replace(moving, longer=Results(lacking)))
    assert verdict.verdict == "inconclusive"
    assert names(verdict.why, "lack mig/exact of", "beta 4")
    one = replace(moving, earlier=Results(lacking))
    assert judge(claim, one).verdict == "inconclusive"


def test_scores_that_a_claim_does_not_read_may_be_missing():
    whole = results(0.1, before=0.1)
    lacking = tuple(m._replace(scores={SCORE: m.scores[SCORE]}) for m in whole.earlier.members)
    assert OTHER in whole.members[0].scores
    assert judge(HIGHER, replace(whole, earlier=Results(lacking))).verdict == "holds"
    moving = replace(results(0.1, before=0.13), longer=Results(lacking))
    assert judge(HIGHER, moving).verdict == "holds"
    of_other = Results((*whole.members, *(member("Aa", k, {SCORE: 0.5}) for k in range(4))), "small")
    unread = replace(of_other, earlier=whole.earlier, longer=whole)
    assert judge(HIGHER, unread).verdict == "holds"
    without = tuple(m._replace(scores={}) if m.settings["recipe"] == "a" else m for m in whole.earlier.members)
    assert names(judge(HIGHER, replace(of_other, earlier=Results(without))).why, "no finished run of a has mig/exact")


def test_evidence_that_longer_runs_cannot_give_is_not_compared():
    """As with one estimate for each of several things, of which one is gone, or one that is unknown."""

    def find(found):
        pieces = [Evidence(name, Estimate(1.0, 0.5, 1.5), low=0.0) for name in "xy"]
        return pieces if found.earlier is not None else pieces[:1]

    def find_unknown(found):
        ends = (0.5, 1.5) if found.earlier is not None else (math.nan, math.nan)
        return [Evidence("x", Estimate(found.members[0].scores[SCORE].value, *ends), low=0.0)]

    whole = replace(draw(0.1), earlier=draw(0.1), longer=draw(0.1))
    for each in (find, find_unknown):
        claim = Claim("it is so", lambda found, each=each: (HIGHER.evidence(found), each(found))[1])
        told = settling.find_longer_evidence(claim, whole, claim.evidence(whole))
        assert told == ((), "they do not have all of its estimates")


def test_too_few_longer_runs_leave_it_to_the_snapshots_and_say_so():
    moving = replace(draw(0.1), earlier=draw(0.13))
    for longer, words in (
        (draw(0.1, seeds=2), "with 2 seeds of a setting; 3 are needed"),
        (Results(tuple(member(n, k, {OTHER: 0.2}) for n in "ab" for k in range(3))), "they lack mig/exact of a"),
        (Results(tuple(m for m in draw(0.1).members if m.settings["recipe"] == "a")), "they lack mig/exact of b"),
    ):
        verdict = judge(HIGHER, replace(moving, longer=longer))
        assert verdict.verdict == "inconclusive"
        assert names(verdict.why, "4/5", "With twice the steps there are runs", words)
    failed = Results(tuple(m._replace(state="failed") for m in draw(0.1).members))
    assert judge(HIGHER, replace(moving, longer=failed)).verdict == "inconclusive"


def test_longer_runs_of_series_that_a_claim_does_not_read_are_not_mentioned():
    moving = results(0.1, before=0.13)
    other = Results(tuple(member("c", k, {SCORE: 0.5}) for k in range(10)))
    both = replace(moving, members=(*moving.members, *other.members))
    assert settling.WITH_TWICE not in judge(HIGHER, replace(both, longer=other)).why
    assert judge(HIGHER, replace(both, longer=results(0.1))).verdict == "holds"


def test_longer_runs_have_the_level_of_all_looks_at_either_length():
    widths = []
    for looks, tries in ((1, 1), (2, 1), (1, 2), (2, 3), (4, 1)):
        longer = replace(draw(0.1, seed=2, noise=0.05), looks={HIGHER.text: tries})
        whole = replace(draw(0.1, noise=0.05), looks={HIGHER.text: looks}, longer=longer)
        (found,), _ = settling.find_longer_evidence(HIGHER, whole, HIGHER.evidence(whole))
        widths.append(found.estimate.high - found.estimate.low)
    assert widths[0] < widths[1] == widths[2] < widths[3] == widths[4]


def test_longer_runs_say_nothing_of_what_is_read_from_models():
    def read_models(found):
        if found.models is None:
            raise MissingResultsError("no models")
        return HIGHER.evidence(found)

    claim = Claim("b is above a", read_models)
    whole = replace(results(0.1, before=0.13), models=ModelCache({}, torch.device("cpu")), longer=results(0.1))
    assert settling.find_longer_evidence(claim, whole, HIGHER.evidence(whole)) == ((), "no models")


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
