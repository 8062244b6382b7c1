"""Verdicts on results whose truth is known, and the rules that make one inconclusive."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import norm, t

from tests.support.messages import names
from tests.support.results import made_up, member, trade_off
from unbraid.experiments import Claim, Evidence, Results, experiment, judge
from unbraid.experiments.claims import WideEvidence
from unbraid.experiments.combining import combine_verdicts, count_seeds, find_series, find_settings
from unbraid.experiments.evidence import compare_extremes, compare_means, compare_settings, exists, find_mean, find_one
from unbraid.experiments.judging import count_confirming_seeds, count_needed_seeds
from unbraid.experiments.statistics import Chance, Estimate, widen_for
from unbraid.papers.chen2018.setup import MIG


def evidence(start, end, **where):
    return Evidence("x", Estimate((start + end) / 2, float(start), float(end)), **where)


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (evidence(0.1, 0.2, low=0.0), "holds"),
        (evidence(-0.1, 0.2, low=0.0), "inconclusive"),
        (evidence(-0.2, -0.1, low=0.0), "does not hold"),
        (evidence(0.1, 0.2, high=0.0), "does not hold"),
        (evidence(-0.05, 0.05, low=-0.1, high=0.1), "holds"),
        (evidence(0.05, 0.15, low=-0.1, high=0.1), "inconclusive"),
        (evidence(0.15, 0.25, low=-0.1, high=0.1), "does not hold"),
        (evidence(math.nan, 0.2, low=0.0), "inconclusive"),
    ],
)
def test_an_interval_decides(found, verdict):
    assert found.verdict == verdict


@pytest.mark.parametrize(("share", "verdict"), [(0.66, "does not hold"), (0.67, "inconclusive")])
def test_a_difference_that_single_seeds_rarely_show_is_refuted(share, verdict):
    def found(chance, **where):
        return Evidence("x", Estimate(0.1, -0.9, 1.1, chance=chance), **where)

    seldom_above, seldom_below = Chance(0.5, 0.3, share), Chance(0.5, 1 - share, 0.7)
    assert found(seldom_above, low=0.0).verdict == verdict
    assert found(seldom_below, high=0.0).verdict == verdict
    assert found(None, low=0.0).verdict == "inconclusive"
    for other in ({"low": -0.1}, {"high": 0.5}, {"low": -0.9, "high": 0.9}, {"low": 0.1}):  # no claim about a sign
        assert found(seldom_above, **other).best_chance == 1.0


def test_all_evidence_must_hold():
    yes, no, open_ = evidence(1, 2, low=0.0), evidence(-2, -1, low=0.0), evidence(-1, 1, low=0.0)
    assert combine_verdicts([yes, yes]) == "holds"
    assert combine_verdicts([yes, open_]) == "inconclusive"
    assert combine_verdicts([yes, open_, no]) == "does not hold"
    assert combine_verdicts([]) == "inconclusive"


def difference(value, seeds, spread=1.0, **where):
    """Student's interval of a difference of two means over seeds."""
    freedom, error = 2 * (seeds - 1), spread * math.sqrt(2 / seeds)
    half = t.ppf(0.95, freedom) * error
    return Evidence("x", Estimate(value, value - half, value + half, freedom), **where)


@pytest.mark.parametrize("seeds", [3, 5, 10])
def test_needed_seeds_do_not_depend_on_the_seeds_so_far(seeds):
    """The next interval, half as wide as its distance from 0, takes (1.1 x 1.99 / .5)^2 x 2 seeds."""
    above = difference(0.5, seeds, low=0.0)
    assert count_needed_seeds([above], seeds) == 39
    assert count_needed_seeds([above, difference(5.0, seeds, low=0.0)], seeds) == 39
    later = difference(0.5, 39, low=0.0).estimate
    assert 1.1 * widen_for(2, later, math.inf).low - 0.1 * later.value > 0


def test_seeds_that_show_that_a_difference_is_too_small():
    """At a share of one half, the next interval ends at Phi(1.1 x c x sqrt(10 / n)); Phi(.4307) is two thirds."""
    none = difference(0.0, 10, low=0.0)
    half = 0.6
    chance = Chance(0.5, float(norm.cdf(-half)), float(norm.cdf(half)))
    known = replace(none, estimate=none.estimate._replace(spread=math.sqrt(2), chance=chance))
    needed = count_needed_seeds([known], 10)

    def end(seeds):
        return 1.1 * half * math.sqrt(10 / seeds) * t.ppf(0.975, 2 * (seeds - 1)) / t.ppf(0.95, 18)

    assert end(needed) < norm.ppf(2 / 3) < end(needed - 1)


def test_seeds_are_asked_for_where_they_are_missing():
    """A difference of 10 and 40 seeds needs as many as one of 10 and 10, not a fourth more of the sixteenth part."""
    few = difference(0.3, 10, low=0.0)
    many = replace(few, estimate=few.estimate.stretch(math.sqrt(0.1 + 0.025) / math.sqrt(0.2)))
    few, many = (replace(e, estimate=e.estimate._replace(spread=math.sqrt(2))) for e in (few, many))
    assert count_needed_seeds([many], 10) == count_needed_seeds([few], 10)


def test_no_number_of_seeds_settles_an_effect_on_the_bound():
    assert count_needed_seeds([difference(0.0, 10, low=0.0)], 10) == math.inf
    assert count_needed_seeds([difference(0.15, 10, low=-0.1, high=0.16)], 10) == math.inf


@pytest.mark.parametrize(("several", "needed"), [(1, 39), (2, 65), (5, 117), (10, 175)])
def test_to_refute_a_claim_takes_more_seeds_if_it_has_several_estimates(several, needed):
    outside, inside = difference(-0.5, 10, low=0.0), difference(5.0, 10, low=0.0)
    assert count_needed_seeds([outside] + [inside] * (several - 1), 10) == needed
    assert count_needed_seeds([difference(-5.0, 10, low=0.0)] + [outside] * several, 10) == 11  # the first one does it


def test_an_interval_that_ends_at_the_range_of_its_score_is_not_taken_for_a_narrow_one():
    cut = Evidence("x", Estimate(0.2, -0.9, 1.0), high=0.0)
    assert count_needed_seeds([cut], 10) == count_needed_seeds([Evidence("x", Estimate(0.2, -0.9, 1.3), high=0.0)], 10)


def test_an_open_claim_says_how_many_seeds_would_settle_it():
    rng = np.random.default_rng(0)
    drawn = rng.normal(0.3, 1.0, 20)
    results = Results(tuple(member("a", seed, {"elbo/sampled": value}) for seed, value in enumerate(drawn)))
    found = judge(Claim("above 0", find_mean("a", "elbo/sampled", low=0.0), trained=False), results)
    assert found.verdict == "inconclusive"
    assert f"about {count_needed_seeds(found.evidence, 20)} seeds would settle it (--seeds)." in found.why
    held = judge(Claim("above -1", find_mean("a", "elbo/sampled", low=-1.0), trained=False), results)
    assert (held.verdict, "--seeds" in held.why) == ("holds", False)


def test_a_second_look_has_wider_intervals():
    """With 20 seeds, Student's quantile of .975 is 1.21 times that of .95."""
    results = made_up({("a", 1): {SCORE: 0.0}}, seeds=20)
    first, second = (judge(ABOVE, replace(results, looks={ABOVE.text: looks})).evidence[0].estimate for looks in (1, 2))
    assert second.value == first.value
    assert (second.high - second.low) / (first.high - first.low) == pytest.approx(2.093 / 1.729, rel=1e-3)
    once, twice = (count_needed_seeds([evidence(-0.1, 0.3, low=0.0)], 10, looks) for looks in (1, 2))
    assert once > twice  # the same interval at the second look means a smaller spread


SCORE = "elbo/sampled"
ABOVE = Claim("above 0", find_mean("a", SCORE, low=0.0), trained=False)


def two_series(gap, earlier_gap):
    """Results of 60 seeds of two series, the second higher by `gap` on average, and by `earlier_gap` before."""
    rng = np.random.default_rng(0)
    first, second = (values - values.mean() for values in rng.standard_normal((2, 60)))

    def members(by):
        drawn = (("a", first), ("b", second + by))
        return tuple(member(name, seed, {SCORE: x}) for name, values in drawn for seed, x in enumerate(values))

    return Results(members(gap), earlier=Results(members(earlier_gap)))


def test_a_small_difference_moves_away_from_no_bound():
    higher = Claim("b is above a", compare_means("a", "b", SCORE, low=0.0))
    small = judge(higher, two_series(0.01, 0.009))
    assert small.verdict == "does not hold"
    assert "two of three should" in small.why
    assert "away from the bound" not in small.why


def test_a_difference_of_the_other_sign_is_not_called_small():
    higher = Claim("b is above a", compare_means("a", "b", SCORE, low=0.0))
    lower = judge(higher, two_series(-1.0, -0.99))
    assert lower.verdict == "does not hold"
    assert lower.evidence[0].best_chance < 2 / 3
    assert "two of three" not in lower.why
    assert "away from the bound" in lower.why


def test_seeds_that_decide_are_those_of_the_series_that_a_claim_reads():
    few, many = (made_up({(name, 1): {SCORE: mean}}, seeds=n) for name, mean, n in (("b", 0.0, 4), ("a", 0.001, 30)))
    results = Results((*few.members, *many.members))
    assert find_series(ABOVE, results) == ["a"]
    assert (count_seeds(ABOVE, results), results.seeds) == (30, 4)
    difference = Claim("above 0", compare_means("b", "a", SCORE, low=0.0))
    assert find_series(difference, results) == ["b", "a"]
    assert count_seeds(difference, results) == 4


def test_seeds_that_decide_are_those_of_the_settings_that_a_claim_reads():
    """A claim about the best setting reads those that it does not choose, too; baselines have no such setting."""
    means = {("b", beta): {SCORE: float(beta)} for beta in (1, 4, 10)}
    few, many = made_up({("b", 1): means["b", 1]}, seeds=3), made_up(means, seeds=3)
    more = made_up({key: means[key] for key in (("b", 4), ("b", 10))}, seeds=8)
    results = Results((*few.members, *more.members))

    def read(find):
        return [dict(setting)["beta"] for setting in find_settings(Claim("b", find), results)]

    ends = compare_settings("b", "beta", 4, 10, SCORE, low=0.0)
    assert read(ends) == ["4", "10"]
    assert (count_seeds(Claim("b rises", ends), results), results.seeds) == (8, 3)
    best = find_one("best", lambda r: r.group_scores("b", "beta", SCORE), find_highest_mean, low=0.0)
    assert read(best) == ["1", "4", "10"]
    assert count_seeds(Claim("b", best), many) == 3


def find_highest_mean(cells):
    return np.stack([rows[..., 0].mean(-1) for rows in cells.values()]).max(0)


def test_no_verdict_from_smoke_few_seeds_or_unsettled_runs():
    claim = Claim("beta-TCVAE is better", lambda results: [evidence(1, 2, low=0.0)])
    sound = trade_off(0.1)
    assert judge(claim, sound).verdict == "holds"
    runs = [m.run for m in sound.members]
    for weak, facts in (
        (Results(sound.members, "smoke"), ["smoke"]),
        (Results(sound.members[:-8], "small"), [2]),
        (Results(sound.members, "small", frozenset(runs[:9])), [9, 80]),
    ):
        verdict = judge(claim, weak)
        assert verdict.verdict == "inconclusive"
        assert names(verdict.why, *facts)
        assert verdict.evidence, "the numbers are there all the same"
    assert judge(claim, Results(sound.members, "small", frozenset(runs[:8]))).verdict == "holds"
    before = Claim("the data are so", claim.evidence, trained=False)
    assert judge(before, Results(sound.members, "small", frozenset(runs))).verdict == "holds"
    assert judge(before, Results(sound.members, "smoke")).verdict == "inconclusive"


def test_diverged_runs_count_for_nothing():
    sound = trade_off(0.1)
    lost = tuple(m._replace(state="diverged") if m.settings["seed"] > 1 else m for m in sound.members)
    assert Results(lost).seeds == 2
    none = tuple(m._replace(state="diverged") for m in sound.members)
    verdict = judge(experiment["chen2018/fig2"].facts.claims[0], Results(none))
    assert verdict.verdict == "inconclusive"
    assert names(verdict.why, "beta-vae", "elbo/closed-form", "mig/exact", "shape")


def test_records_are_plain():
    import json

    record = judge(experiment["chen2018/fig2"].facts.claims[0], trade_off(0.1, seeds=1)).as_record()
    assert record["evidence"][0]["low"] is None
    assert json.loads(json.dumps(record, allow_nan=False)) == record


@pytest.mark.parametrize("name", experiment)
def test_every_experiment_explains_itself_at_all_scales(name):
    facts = experiment[name].facts
    assert experiment[name].summary.endswith(".")
    assert facts.claims
    assert set(facts.scales) == {"smoke", "small", "budget", "paper"}
    assert facts.scores
    assert bool(facts.series) != bool(facts.measure)
    for scale in ("small", "budget", "paper"):
        assert len(facts.scales[scale].settings["seed"]) >= 3


def test_a_share_that_moved_far_can_still_be_stretched():
    """Beyond eight deviations a share is 1 in double precision, and its quantile infinite."""
    for deviations in (-50.0, 50.0):
        moved = Chance(0.5, 0.4, 0.6).move(deviations).stretch(2.0)
        assert all(math.isfinite(end) for end in moved)
        assert (moved.high < 2 / 3) == (deviations < 0)


@pytest.mark.parametrize("looks", [1, 3])
@pytest.mark.parametrize(("margin", "least"), [(1.1, 100), (1.5, 54), (3.0, 14), (20.0, 5)])
def test_fewer_seeds_confirm_a_large_effect(margin, least, looks):
    """The interval of n seeds at the same look ends above 0 if n > 100 (1.1 / margin)^2, but 5 is the least."""
    large = Evidence("x", Estimate(1.0, 1 - 1 / margin, 1 + 1 / margin, 1e6), low=0.0)
    assert count_confirming_seeds([large], 100, looks) == least
    spread = 1.25 * 10 / margin / norm.ppf(1 - 0.05 / looks)  # that of 100 seeds would be 1.25 times the error
    of_unequal_cells = replace(large, estimate=large.estimate._replace(spread=spread))
    expected = min(100, max(5, math.ceil(100 * (1.1 * 1.25 / margin) ** 2)))
    assert count_confirming_seeds([of_unequal_cells], 100, looks) == pytest.approx(expected, abs=1)
    wide = WideEvidence("x", large.estimate, low=0.0)
    assert count_confirming_seeds([wide], 100, looks) == 100
    assert count_confirming_seeds([large], 3, looks) == 3


def test_no_seeds_are_foreseen_for_maxima_and_for_shares_of_0():
    runs = [member(name, seed, {MIG: 0.1 + 0.01 * seed}) for name in "ab" for seed in range(10)]
    highest = compare_extremes("a", "b", None, [MIG], lambda s: s[..., 0].max(-1), "highest", low=0.0)
    for limit, foreseen in ((0.5, False), (0.15, True)):
        (found,) = exists("a", MIG, lambda mig, limit=limit: mig > limit, "it")(Results(tuple(runs)))
        assert found.narrows == foreseen
    verdict = judge(Claim("", highest), Results(tuple(runs), "small"))
    assert names(verdict.why, "no number of them is foreseen")


def test_runs_without_a_score_that_a_claim_reads_are_no_seeds_of_it():
    """A score of a setting that is not chosen is read, too."""
    runs = [member("a", seed, {SCORE: at + seed / 100, MIG: 0.5}, beta=at) for at in (1, 2) for seed in range(5)]
    best = Claim("", find_one("best", lambda r: r.group_scores("a", "beta", SCORE), find_highest_mean, low=0.0))
    assert judge(best, Results(tuple(runs))).verdict == "holds"
    lacking = [
        m._replace(scores={MIG: m.scores[MIG]}) if (m.settings["beta"], m.settings["seed"]) >= (1, 2) else m
        for m in runs[:5]
    ]
    results = Results((*lacking, *runs[5:]))
    assert results.seeds == 5
    assert count_seeds(best, results) == 2
    verdict = judge(best, results)
    assert (verdict.verdict, names(verdict.why, "one has 2")) == ("inconclusive", True)
    of_mig = Claim("", find_one("MIG", lambda r: r.group_scores("a", "beta", MIG), find_highest_mean, low=0.0))
    assert count_seeds(of_mig, results) == 5
