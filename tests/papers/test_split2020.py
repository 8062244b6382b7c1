"""split2020: its claims on results whose truth is known, its lemmas, and which runs belong to which series."""

from dataclasses import replace

import numpy as np
import pytest

from tests.support.results import made_up, member
from unbraid.config import Choice
from unbraid.data import load
from unbraid.experiments import Results, judge
from unbraid.experiments.base import experiment
from unbraid.experiments.run_matching import matches_settings
from unbraid.papers.split2020.lemmas import score_lemmas, sum_over_grid
from unbraid.papers.split2020.setup import ERROR, FACTOR, KL, MIG
from unbraid.training import configure


def verdicts(name, results):
    return [judge(claim, results).verdict for claim in experiment[f"split2020/{name}"].facts.claims]


def results(**changes):
    """Ten runs of each series: all of them alike but for what `changes` says."""
    vanilla = {MIG: 0.3, KL: 20.0, ERROR: 30.0, FACTOR: 0.5}
    means = {}
    for model in ("VAE", "FactorVAE", "beta-VAE"):
        for encoder in ("", "split", "wide", "shared", "correlated noise"):
            own = changes.get(f"{model} {encoder}".strip().replace("-", "").replace(" ", "_"), {})
            means[f"{model}, {encoder}" if encoder else model, 0] = {**vanilla, **own}
    return made_up(means)


def test_encoders_are_compared_with_the_vanilla_one_and_with_the_wide_one():
    gain = results(VAE_split={MIG: 0.5}, FactorVAE_split={MIG: 0.5})
    assert verdicts("fig3", gain) == ["holds", "holds", "holds"]
    merely_more = results(**{f"{m}_{e}": {MIG: 0.5} for m in ("VAE", "FactorVAE") for e in ("split", "wide")})
    assert verdicts("fig3", merely_more)[:2] == ["holds", "holds"]
    assert verdicts("fig3", merely_more)[2] != "holds"
    assert verdicts("fig6", gain)[:2] == ["does not hold", "holds"]
    assert verdicts("fig2", results(VAE_shared={MIG: 0.1}, FactorVAE_shared={MIG: 0.5}))[1::2] == [
        "holds",
        "does not hold",
    ]


def test_errors_and_kl():
    as_told = results(VAE_split={ERROR: 25.0, KL: 19.0}, FactorVAE_split={ERROR: 25.0, KL: 21.0})
    assert verdicts("fig4", as_told) == ["holds"] * 4
    assert verdicts("fig7", as_told) == ["holds", "does not hold"]
    assert verdicts("fig11", results(betaVAE_split={MIG: 0.4, KL: 21.0, ERROR: 29.0})) == ["holds"] * 4


def test_reconstructions_are_those_of_all_runs_and_traversals_those_of_the_best():
    means = {"VAE": (30.0, 0.2), "VAE, split": (40.0, 0.2), "FactorVAE": (30.0, 0.5), "FactorVAE, split": (20.0, 0.8)}
    made = [
        member(series, seed, {MIG: best if seed == 3 else 0.1, ERROR: error + seed})
        for series, (error, best) in means.items()
        for seed in range(10)
    ]
    errors, traversals = (judge(claim, Results(tuple(made))) for claim in experiment["split2020/fig8"].facts.claims)
    assert [round(each.estimate.value) for each in errors.evidence] == [10, -10]
    assert errors.verdict == "does not hold"
    assert [each.estimate.value for each in traversals.evidence] == [pytest.approx(0.3)]


def test_lemmas_hold_on_exact_models_and_a_wrong_one_would_be_seen():
    made = score_lemmas({"points": 5, "nodes": 60, "grid": 401, "seed": [0]})
    for one in made:
        assert one.scores["lemma1/deviation"].value < 1e-5
        assert one.scores["lemma2/deviation"].value < 1e-5
    independent, correlated = (one.scores["lemma2/by-information"].value for one in made)
    assert independent < 0 < correlated
    grid = sum_over_grid(
        np.zeros((1, 4)), 0.9, 401
    )  # one point: no information, and a Gaussian's own total correlation
    assert grid.conditional == pytest.approx(0, abs=1e-9)
    assert grid.inner == pytest.approx(-0.5 * np.log(1 - 0.9**2), abs=1e-9)
    claim = experiment["split2020/lemma1"].facts.claims[0]
    assert judge(claim, Results(tuple(made * 3))).verdict == "holds"
    wrong = replace(made[0].scores["lemma1/deviation"], value=1e-3)
    broken = [one._replace(scores={**one.scores, "lemma1/deviation": wrong}) for one in made * 3]
    assert judge(claim, Results(tuple(broken))).verdict == "does not hold"


def test_series_are_told_apart_by_encoder_latents_and_prior():
    facts = experiment["split2020/fig2"].facts
    asked = facts.build_sweeps("smoke")
    data = load("sprites", {"scales": 2, "orientations": 2, "positions": 2})
    settings = {"scales": 2, "orientations": 2, "positions": 2}
    for own, wanted in asked.items():
        given = {k: v for k, v in wanted.items() if k not in ("recipe", "data", "seed") and not k.startswith("data.")}
        choice = Choice("sprites", settings)
        config = configure(wanted["recipe"], choice, data, {**given, "seed": 0})
        assert [name for name in asked if matches_settings(config, asked[name])] == [own]
    flow = experiment["chen2018/figS3"].facts.build_sweeps("smoke")
    plain = {k: v for k, v in flow["flow prior"].items() if k.partition(".")[0] not in ("recipe", "data", "seed")}
    small = load("sprites", {"size": 16, "scales": 3, "orientations": 4, "positions": 4})
    choice = Choice("sprites", {"size": 16, "scales": 3, "orientations": 4, "positions": 4})
    config = configure("beta-tcvae", choice, small, {**plain, "beta": 1, "seed": 0})
    assert matches_settings(config, flow["flow prior"])
    assert not matches_settings(config, flow["Gaussian prior"])


@pytest.mark.parametrize("name", ["chen2018/figS2", "esmaeili2018/fig6"])
def test_a_series_that_names_no_weight_has_the_usual_one(name):
    """So that runs of its contrast are not taken for it."""
    asked = experiment[name].facts.build_sweeps("smoke")
    for own, wanted in asked.items():
        sizes = {k.removeprefix("data."): v for k, v in wanted.items() if k.startswith("data.")}
        data = load(wanted["data"], sizes)
        given = {k: v for k, v in wanted.items() if k not in ("recipe", "data") and not k.startswith("data.")}
        one = {k: v[0] if isinstance(v, (list, range)) else v for k, v in given.items()}
        config = configure(wanted["recipe"], Choice(wanted["data"], sizes), data, one)
        assert [each for each in asked if matches_settings(config, asked[each])] == [own]


def test_settings_of_encoders_by_modality_tell_runs_apart():
    small = {"size": 16, "orientations": 3, "positions": 3}
    asked = {"encoder": "mlp", "encoder.hidden": (8,), "encoder.m2.hidden": (4,), "c": 5, "s": 5}
    config = configure("mvae", Choice("sprites-pairs", small), load("sprites-pairs", small), {**asked, "seed": 0})
    assert matches_settings(config, asked)
    assert matches_settings(config, {**asked, "encoder.hidden": [(8,), (16,)], "encoder.m1": "mlp"})
    for other in ({"encoder.hidden": (4,)}, {"encoder.m2.hidden": (8,)}, {"encoder.m1": "conv-small"}):
        assert not matches_settings(config, {**asked, **other})
    assert not matches_settings(config, {k: v for k, v in asked.items() if k != "encoder.m2.hidden"})
