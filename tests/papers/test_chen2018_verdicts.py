"""Verdicts about the figures of chen2018, on results whose truth is known."""

import numpy as np
import pytest

from tests.support.results import BETAS, made_up, member, trade_off
from unbraid.experiments import Results, experiment, judge
from unbraid.metrics import Score
from unbraid.papers.chen2018.code_scores import HIGGINS_AT
from unbraid.papers.chen2018.setup import ELBO, MIG, TC, without_shape


def verdicts(name, results):
    return [judge(claim, results).verdict for claim in experiment[f"chen2018/{name}"].facts.claims]


def test_fig2_tells_a_better_from_an_equal_and_a_worse_trade_off():
    better, equal, worse = (trade_off(above, correlated=False) for above in (0.1, 0.0, -0.1))
    assert verdicts("fig2", better)[0] == "holds"
    assert verdicts("fig2", equal)[0] == "inconclusive"
    assert verdicts("fig2", worse)[0] == "does not hold"


def test_fig2_tells_whether_beta_vae_degrades():
    assert verdicts("fig2", trade_off(0.1, fall=0.1))[1] == "holds"
    assert verdicts("fig2", trade_off(0.1, fall=-0.1))[1] == "does not hold"
    assert verdicts("fig2", trade_off(0.1, fall=0.0, noise=0.05))[1] == "inconclusive"


def test_fig4_correlates_means_over_beta():
    strong = verdicts("fig4", trade_off(0.1, noise=0.005))
    assert strong[:2] == ["holds", "holds"]
    assert verdicts("fig4", trade_off(0.1, correlated=False))[0] in ("inconclusive", "does not hold")
    rising = {(s, b): {MIG: 0.1 * b, TC: b} for s in ("beta-vae", "beta-tcvae") for b in BETAS}
    assert verdicts("fig4", made_up(rising))[0] == "does not hold"


def test_fig4_compares_both_methods_at_equal_tc():
    """Their ranges of the ELBO do not overlap, so that a comparison at equal ELBO would say nothing."""
    for above, verdict in ((0.1, "holds"), (0.0, "inconclusive"), (-0.1, "does not hold")):
        means = {
            (name, beta): {MIG: 0.5 - 0.1 * tc + shift, ELBO: -5 * beta - start, TC: tc}
            for name, shift, start in (("beta-vae", 0.0, 40), ("beta-tcvae", above, 400))
            for beta, tc in zip(BETAS, (3.0, 2.0, 1.5, 1.0), strict=True)
        }
        assert verdicts("fig4", made_up(means))[2] == verdict


def test_fig2_compares_both_methods_above_beta_4_alone():
    assert verdicts("fig2", trade_off(0.1, correlated=False))[2] == "holds"
    assert verdicts("fig2", trade_off(-0.1, correlated=False))[2] == "does not hold"
    migs = {"beta-vae": (0.5, 0.5, 0.5, 0.1), "beta-tcvae": (0.1, 0.1, 0.1, 0.3)}
    late = {(s, b): {MIG: mig, ELBO: -40 - b, TC: 1.0} for s in migs for b, mig in zip(BETAS, migs[s], strict=True)}
    assert verdicts("fig2", made_up(late))[2] == "holds"


def total_correlations(vae, tcvae=(4.0, 3.0, 2.0, 1.0)):
    """TC of both methods over beta, with MIGs that do not matter."""
    by_series = {"beta-vae": vae, "beta-tcvae": tcvae}
    means = {(s, b): {MIG: 0.2, TC: tc} for s in by_series for b, tc in zip(BETAS, by_series[s], strict=True)}
    return made_up(means, noise=0.005)


@pytest.mark.parametrize(
    ("tcs", "verdict"),
    [
        ((4.0, 2.0, 1.05, 1.0), "holds"),
        ((4.0, 2.0, 1.0, 1.5), "holds"),  # it rises, so it has stopped falling
        ((4.0, 3.0, 2.0, 1.0), "does not hold"),
        ((4.0, 2.0, 1.15, 1.0), "inconclusive"),  # .15 is 5% of 3
    ],
)
def test_fig4_tells_a_tc_that_stops_from_one_that_still_falls(tcs, verdict):
    assert verdicts("fig4", total_correlations(tcs))[3] == verdict


def test_fig4_on_faces_wants_the_lower_tc_of_beta_vae_at_high_beta():
    assert verdicts("fig4-faces", total_correlations((4.0, 3.0, 2.0, 0.5)))[3] == "holds"
    assert verdicts("fig4-faces", total_correlations((4.0, 3.0, 2.0, 1.5)))[3] == "does not hold"


def variants(first, second, mig=0.0, elbo=0.0, **facts):
    means = {(first, b): {MIG: 0.3, ELBO: -60.0} for b in BETAS}
    means |= {(second, b): {MIG: 0.3 + mig, ELBO: -60.0 + elbo} for b in BETAS}
    return made_up(means, **facts)


@pytest.mark.parametrize(("name", "series"), [("figS1", ("MWS", "MSS")), ("figS2", ("alpha 1", "alpha 0"))])
def test_equal_means_within_bounds_not_merely_undetected(name, series):
    assert verdicts(name, variants(*series)) == ["holds"]
    assert verdicts(name, variants(*series, mig=0.2)) == ["does not hold"]
    assert verdicts(name, variants(*series, elbo=-10)) == ["does not hold"]
    assert verdicts(name, variants(*series, noise=1.0)) == ["inconclusive"]


def test_small_batches_must_keep_two_thirds():
    def batches(*migs):
        names = ("full batch", "batch / 4", "batch / 16")
        return made_up({(name, 6): {MIG: mig} for name, mig in zip(names, migs, strict=True)})

    assert verdicts("figS15", batches(0.3, 0.3, 0.28)) == ["holds"]
    assert verdicts("figS15", batches(0.3, 0.3, 0.2)) == ["inconclusive"]
    assert verdicts("figS15", batches(0.3, 0.3, 0.1)) == ["does not hold"]


def models(curves):
    """VAEs with Higgins scores at L = 1, 4, 16."""
    sizes = (1, 4, 16)
    given = [{f"{HIGGINS_AT}{size}": score for size, score in zip(sizes, curve, strict=True)} for curve in curves]
    members = []
    for seed, scores in enumerate(given):
        one = member("vae", seed, dict.fromkeys(["a/b"], 0.0))
        made = {name: one.scores["a/b"].__class__("betavae", "logistic", float(v), 1) for name, v in scores.items()}
        members.append(one._replace(scores=made))
    return Results(tuple(members), "small")


def test_higgins_rises_saturates_closes_the_gap_and_reorders():
    rng = np.random.default_rng(0)
    low = rng.uniform(0.3, 0.6, 20)
    saturating = np.stack([low, 0.9 + rng.uniform(0, 0.02, 20), 0.91 + rng.uniform(0, 0.02, 20)], -1)
    assert verdicts("figS5", models(saturating)) == ["holds", "holds", "holds", "holds"]
    steady = np.stack([low, 0.1 + low, 0.3 + low + 0.2 * (low - 0.45)], -1)
    assert verdicts("figS5", models(steady)) == ["holds", "does not hold", "does not hold", "does not hold"]
    assert verdicts("figS5", models(np.stack([low, low, low - 0.2], -1)))[0] == "does not hold"


def test_the_identity_of_a_face_and_the_shape_of_a_sprite_are_noise_to_mig():
    for noise in ("identity", "shape"):
        gaps = {noise: 0.9, "azimuth": 0.2, "elevation": 0.4}
        whole = Score("mig", "exact", 0.5, 10, details={"gaps": gaps, "ceiling": 1.0})
        assert without_shape({"mig/exact": whole}).value == pytest.approx(0.3)


def test_figure_5_on_faces_fixes_the_light():
    facts = experiment["chen2018/fig5-faces"].facts
    for scale in ("budget", "paper"):
        assert {settings["data.lighting"] for settings in facts.build_sweeps(scale).values()} == {5}
