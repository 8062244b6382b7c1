"""Claims of chen2018's figures 3, 5 and S12 to S14 on results whose truth is known."""

import numpy as np
import pytest

from tests.support.messages import names
from tests.support.results import member
from unbraid.experiments import Results, judge
from unbraid.experiments.base import experiment
from unbraid.metrics import Score
from unbraid.papers.chen2018.biased import POSITIONS, list_splits
from unbraid.papers.chen2018.disagreement import (
    DCI,
    FAR_APART,
    HIGGINS,
    INFLATED,
    SAMPLED,
    confirmed_gap,
    find_controversial,
    rank_gaps,
    share_of_best,
)
from unbraid.papers.chen2018.methods import MIG, choose_gamma

SPLITS = list_splits("budget")


def with_scores(series, seed, scores, **settings):
    made = {name: Score("any", "protocol", float(value), 1) for name, value in scores.items()}
    return member(series, seed, {}, **settings)._replace(scores=made)


def five(factor, seeds=11, **others):
    """Runs of all five methods around known medians; FactorVAE by gamma."""
    rng = np.random.default_rng(0)
    middles = {"VAE": 0.2, "beta-VAE": 0.3, "InfoGAN": 0.02, "beta-TCVAE": 0.45, **others}
    spread = 0.01
    made = [
        with_scores(name, seed, {MIG: middle + spread * rng.standard_normal()})
        for name, middle in middles.items()
        for seed in range(seeds)
    ]
    made += [
        with_scores("FactorVAE", seed, {MIG: middle + spread * rng.standard_normal()}, gamma=gamma)
        for gamma, middle in factor.items()
        for seed in range(seeds)
    ]
    return Results(tuple(made), "small")


def verdicts(name, results):
    return [judge(claim, results).verdict for claim in experiment[f"chen2018/{name}"].facts.claims]


def test_fig3_compares_with_the_best_gamma():
    weak = five({4: 0.05, 19: 0.2, 79: 0.1})
    assert choose_gamma(weak.group_scores("FactorVAE", "gamma", MIG)) == 19
    assert verdicts("fig3", weak)[:3] == ["holds", "holds", "holds"]
    assert verdicts("fig3", five({4: 0.05, 19: 0.6, 79: 0.1}))[:3] == ["does not hold", "holds", "does not hold"]
    assert verdicts("fig3", five({4: 0.1}, InfoGAN=0.25))[1] == "does not hold"
    assert verdicts("fig3", five({4: 0.1}, **{"beta-VAE": 0.5}))[0] == "does not hold"


def test_fig3_choosing_among_equal_gammas_favours_nobody():
    tied = five(dict.fromkeys((4, 19, 79), 0.3))
    assert verdicts("fig3", tied)[2] == "inconclusive"


def test_fig3_half_of_the_runs():
    made = [with_scores("beta-TCVAE", seed, {MIG: 0.1 if seed % 2 else 0.5}) for seed in range(40)]
    others = five({4: 0.1}).members
    assert (
        verdicts("fig3", Results((*made, *(m for m in others if m.settings["recipe"] != "beta-TCVAE"))))[3] == "holds"
    )
    assert verdicts("fig3", five({4: 0.1}))[3] == "does not hold"


def test_fig5_judges_each_case_alone():
    rng = np.random.default_rng(0)
    middles = {"beta-VAE": 0.3, "InfoGAN": 0.1, "beta-TCVAE": 0.5}
    made = [
        with_scores(name, seed, {POSITIONS: rng.normal(0.2 if case == "D" else middle, 0.01)}, split=rule)
        for name, middle in middles.items()
        for case, rule in SPLITS.items()
        for seed in range(10)
    ]
    found = verdicts("fig5", Results(tuple(made)))
    assert found[:3] == ["holds"] * 3
    assert found[3] != "holds"
    some = [m for m in made if m.settings["split"] == SPLITS["A"]]
    assert verdicts("fig5", Results(tuple(some))) == ["holds", *["inconclusive"] * 3]


def models(pairs, dci=None):
    """Models with MIG and the Higgins score; DCI follows MIG unless it is given."""
    made = []
    for k, (a, b) in enumerate(pairs):
        scores = {MIG: a, HIGGINS: b, SAMPLED: b, INFLATED: b, DCI: a if dci is None else dci[k]}
        made.append(with_scores("beta-vae", k, scores, beta=1))
    return Results(tuple(made))


def test_the_most_controversial_model_is_far_lower_by_mig():
    order = np.arange(100) / 100
    pairs = np.stack([order, order + 0.001], -1)
    pairs[7] = [0.07, 0.805]  # eighth by MIG, above 81 of all by Higgins
    assert rank_gaps(pairs).argmax() == 7
    assert rank_gaps(pairs).max() == pytest.approx(0.80 - 0.07, abs=0.011)
    found = models(pairs)
    assert find_controversial(found)[0][0].settings["seed"] == 7
    assert names(find_controversial(found)[0][1], "7%", "MIG", "80%", "Higgins")
    assert verdicts("figS12", models(np.stack([order, order], -1)))[:2] == ["does not hold", "holds"]
    assert verdicts("figS13", models(np.stack([order, 1 - order], -1))) == ["holds"]
    assert verdicts("figS14", models(np.stack([order, 1 - order], -1))) == ["holds"]
    assert verdicts("figS12", models(np.stack([order, 1 - order], -1)))[1] == "does not hold"


def test_gaps_are_those_of_any_two_scores_that_correlate_so():
    """Noise of a protocol alone does not keep its gap by the other; noise of a model does, which both protocols see."""
    rng = np.random.default_rng(0)
    true, of_model = rng.normal(size=(1000, 42, 1)), 0.7 * rng.normal(size=(1000, 42, 1))
    of_protocol = rng.normal(size=(1000, 42, 2))
    apart = confirmed_gap(np.concatenate([true, true + 0.7 * of_protocol], -1), 5)
    alike = confirmed_gap(np.concatenate([true, true + of_model + 0.1 * of_protocol], -1), 5)
    assert (apart > FAR_APART).mean() < 0.05
    assert alike.mean() == pytest.approx(0.31, abs=0.01)  # ranks correlate by .80; the results have .79 and .32


def test_the_best_models_by_both_scores():
    order = np.arange(40) / 40
    half = np.where(order < 0.875, order, -order)  # five of the best ten by MIG are the worst
    scores = np.stack([np.stack([order, order, other], -1) for other in (order, 1 - order, half)])
    assert share_of_best(scores).tolist() == [1.0, 0.0, 0.5]


def test_figure_s14_needs_a_score_that_did_not_choose_the_models():
    """By MIG the chosen models are low because they were chosen so: independent random scores would always pass."""
    rng, found = np.random.default_rng(0), []
    for _ in range(30):
        found += verdicts("figS14", models(rng.random((40, 2)), rng.random(40)))
    assert found.count("inconclusive") >= 0.8 * len(found)
    order = np.arange(40) / 40
    assert verdicts("figS14", models(np.stack([order, 1 - order], -1), order)) == ["holds"]
    assert verdicts("figS14", models(np.stack([order, 1 - order], -1), 1 - order)) == ["does not hold"]


def test_more_seeds_are_not_suggested_where_they_do_not_narrow_the_interval():
    rng = np.random.default_rng(1)
    for name, place in (("figS12", 0), ("figS13", 0), ("figS14", 0)):
        claim = experiment[f"chen2018/{name}"].facts.claims[place]
        true = rng.random(40)
        found = judge(claim, models(np.stack([true, true + 0.2 * rng.normal(size=40)], -1), rng.random(40)))
        assert found.verdict == "inconclusive"
        assert "no number of them is foreseen" in found.why


def test_figure_s12_compares_scores_above_their_chance():
    score = Score("betavae", "logistic-sampled", 0.25, 10, details={"accuracy": dict.fromkeys("abcd", 0.25)})
    assert experiment["chen2018/figS12"].facts.derived[INFLATED]({SAMPLED: score}).value == 0.0
    at_chance = models(np.zeros((40, 2)) + 0.01 * np.random.default_rng(0).standard_normal((40, 2)))
    assert verdicts("figS12", at_chance)[2] == "inconclusive"


def test_cases_of_figure_5_train_on_as_many_rows():
    for name in ("fig5", "fig5-faces"):
        for scale in experiment[f"chen2018/{name}"].facts.scales.values():
            assert len({rule.rpartition(":")[2] for rule in scale.settings["split"]}) == 1
    assert all(rule.endswith(":9216") for rule in SPLITS.values())
