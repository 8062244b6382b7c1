"""daunhawer2019: its claims on results whose truth is known, and models that are compared at equal size."""

import numpy as np
import pytest

from unbraid.config import Choice
from unbraid.data import load
from unbraid.experiments import Results, judge
from unbraid.experiments.base import experiment
from unbraid.experiments.run_matching import matches_settings
from unbraid.experiments.statistics import estimate
from unbraid.metrics import Score
from unbraid.models import build
from unbraid.papers.daunhawer2019.diversity import ENTROPY, MVAE, PARTITIONED, SHARE
from unbraid.papers.daunhawer2019.many import METHODS, PARTITIONS, SERIES, given_all_others
from unbraid.papers.daunhawer2019.over_beta import MIN_FALL, last_below_best
from unbraid.papers.daunhawer2019.setup import BETA, BETAS, IMAGES, KL_2, PAIRS, STEPS, TC, X1_FROM_X2, X2_FROM_X1
from unbraid.report.tables import Member
from unbraid.training import configure

ACCURACY = (0.5, 0.6, 0.8, 0.95, 0.97, 0.95, 0.9, 0.6, 0.4)
CORRELATION = (6.0, 5.0, 4.0, 1.0, 0.5, 0.3, 0.2, 0.1, 0.0)
DIVERGENCE = (20.0, 18.0, 15.0, 12.0, 9.0, 7.0, 4.0, 1.5, 0.02)


def runs(series, noise=0.01, seeds=3, **scores):
    """Runs of a series by score and beta_2, each with a little noise over seeds."""
    rng = np.random.default_rng(0)
    made = []
    for place, beta in enumerate(BETAS if any(np.ndim(v) for v in scores.values()) else [1.0]):
        for seed in range(seeds):
            values = {
                k: float(np.ravel(v)[place if np.ndim(v) else 0] + noise * rng.standard_normal())
                for k, v in scores.items()
            }
            own = {name: Score("some", "score", value, 100) for name, value in values.items()}
            made.append(
                Member(f"{series}-{beta}-{seed}", {"recipe": series, BETA: beta, "seed": seed}, "finished", "", own)
            )
    return made


def verdicts(name, members):
    return [judge(claim, Results(tuple(members))).verdict for claim in experiment[f"daunhawer2019/{name}"].facts.claims]


def over_beta(series=PAIRS, **changes):
    own = {X2_FROM_X1: ACCURACY, X1_FROM_X2: ACCURACY, TC: CORRELATION, KL_2: DIVERGENCE, **changes}
    return runs(series, **own)


def test_figure_3_holds_where_accuracy_is_best_at_low_tc_and_the_end_is_collapse():
    assert verdicts("fig3", over_beta()) == ["holds"] * 4
    at_high = tuple(np.linspace(0.9, 0.4, 9))  # best where TC is highest
    assert verdicts("fig3", over_beta(**{X2_FROM_X1: at_high}))[:2] == ["does not hold", "holds"]
    assert verdicts("fig3", over_beta(**{X1_FROM_X2: at_high}))[:2] == ["holds", "does not hold"]
    informative = (*DIVERGENCE[:-1], 3.0)  # a low TC with something in s2 is no collapse
    assert verdicts("fig3", over_beta(**{KL_2: informative}))[2] == "does not hold"
    entangled_end = (*CORRELATION[:-1], 8.0)
    assert verdicts("fig3", over_beta(**{TC: entangled_end}))[2] == "does not hold"
    flat = (0.9,) * 9  # the best of nine is above the last by noise alone
    assert verdicts("fig3", over_beta(**{X2_FROM_X1: flat}))[3] == "does not hold"
    assert verdicts("fig3-images", over_beta(IMAGES)) == ["holds"]
    assert verdicts("fig3-images", over_beta(IMAGES, **{X2_FROM_X1: at_high})) == ["does not hold"]


@pytest.mark.parametrize("name", ["fig3", "fig3-subset"])
@pytest.mark.parametrize("accuracy", [X2_FROM_X1, X1_FROM_X2])
def test_the_interval_of_a_correlation_ends_at_1(name, accuracy):
    """Three seeds with the correlations 1, 1 and -1: Student's interval reaches from -1.6 to 2.3."""
    members = []
    for seed, sign in enumerate((1.0, 1.0, -1.0)):
        for beta, tc in zip(BETAS, CORRELATION, strict=True):
            values = {X2_FROM_X1: 0.5, X1_FROM_X2: 0.5, TC: tc, KL_2: 5.0, accuracy: 0.5 + 0.05 * sign * tc}
            scores = {score: Score("some", "score", value, 100) for score, value in values.items()}
            settings = {"recipe": PAIRS, BETA: beta, "seed": seed}
            members.append(Member(f"{beta}-{seed}", settings, "finished", "", scores))
    claim = experiment[f"daunhawer2019/{name}"].facts.claims[accuracy == X1_FROM_X2]
    (found,) = claim.evidence(Results(tuple(members)))
    assert found.estimate[:3] == pytest.approx((1 / 3, -1.0, 1.0))


def compared(mine, theirs):
    return runs(PARTITIONED, **mine) + runs(MVAE, **theirs)


def test_the_best_of_nine_is_not_above_the_last_by_chance():
    """Runs that either work or collapse, whatever beta_2 is; the plain maximum is fooled much more often."""

    def plainly(cells):
        means = np.stack([rows[..., 0].mean(-1) for rows in cells.values()], -1)
        return means[..., -1] - means.max(-1)

    rng, fooled = np.random.default_rng(0), []
    for _ in range(200):
        cells = {beta: np.where(rng.random((3, 1)) < 0.5, 0.95, 0.34) for beta in BETAS}
        fooled.append(
            [estimate(cells, last_below_best).high < -MIN_FALL, estimate(cells, plainly, smooth=False).high < -MIN_FALL]
        )
    assert np.mean(fooled, 0)[0] < 0.1
    assert np.mean(fooled, 0)[1] > 0.2
    clear = {beta: np.full((3, 1), 0.95 if beta < 100 else 0.4) for beta in BETAS}
    assert estimate(clear, last_below_best).high < -MIN_FALL


def test_figure_6_wants_both_coherent_and_only_one_diverse():
    diverse = {X1_FROM_X2: 0.97, ENTROPY: 2.0, SHARE: 0.8}
    same = {X1_FROM_X2: 0.96, ENTROPY: 0.3, SHARE: 0.1}
    assert verdicts("fig6", compared(diverse, same)) == ["holds"] * 3
    assert verdicts("fig6", compared(same, diverse)) == ["holds", "does not hold", "does not hold"]
    assert verdicts("fig6", compared(diverse, diverse | {ENTROPY: 1.8}))[1:] == ["holds", "does not hold"]
    assert verdicts("fig6", compared(diverse, same | {X1_FROM_X2: 0.6}))[0] == "does not hold"


def test_models_of_figure_6_have_equally_many_parameters_and_are_told_apart():
    facts = experiment["daunhawer2019/fig6"].facts
    small = {"orientations": 2, "positions": 2}
    data, counts = load("sprites-pairs", small), []
    for name, asked in facts.build_sweeps("paper").items():
        own = {k: v for k, v in asked.items() if k not in ("recipe", "data", "seed")}
        config = configure(asked["recipe"], Choice("sprites-pairs", small), data, {**own, "seed": 0})
        counts.append(sum(weight.numel() for weight in build(config, data.layout).parameters()))
        fitting = [each for each, settings in facts.build_sweeps("paper").items() if matches_settings(config, settings)]
        assert fitting == [name]
        assert not matches_settings(config, {**asked, "network": "mlp"})
        assert not matches_settings(config, {**asked, "c": 4})
    assert counts[0] == counts[1]
    assert 0 <= 100 * 0.8 * 737_280 - STEPS * 256 < 256


def test_all_others_are_the_largest_set():
    scores = {f"given {k}": Score("coherence", "classifier", k / 10, 10, part=f"given-{k}") for k in (1, 2, 3, 4)}
    assert given_all_others(scores).value == 0.4


def test_many_compares_models_with_the_same_latents():
    """With private latents for one method alone, a difference may be due to these."""
    for partition in PARTITIONS.values():
        chosen = [s for s in SERIES.values() if all(s.get(key) == value for key, value in partition.items())]
        assert [s["recipe"] for s in chosen] == [*METHODS, *METHODS]
    claims = [claim.text for claim in experiment["daunhawer2019/many"].facts.claims]
    assert sum("of the same latents" in text for text in claims) == 12
    assert {"cross/frechet", "cross/spread"} <= set(experiment["daunhawer2019/many"].facts.scores)


def test_tied_accuracies_settle_nothing_and_a_trend_does():
    """Accuracies of 1.000 and .999 have a highest one, which says nothing about TC."""
    rng = np.random.default_rng(0)
    tied = tuple(0.999 + 0.001 * rng.random(9))
    assert verdicts("fig3", over_beta(**{X2_FROM_X1: tied, TC: tuple(rng.permutation(CORRELATION))}))[0] != "holds"
    falling = tuple(1.0 - 0.05 * np.array(CORRELATION))
    assert verdicts("fig3", over_beta(**{X2_FROM_X1: falling}))[0] == "holds"
    collapsed = (0.02,) * 9
    assert verdicts("fig3", over_beta(**{KL_2: collapsed}))[0] == "inconclusive"
    assert verdicts("fig3-subset", over_beta()) == ["holds", "holds"]
    subset = experiment["daunhawer2019/fig3-subset"].facts.build_sweeps("budget")[PAIRS]
    assert (subset["reconstruct"], subset["beta_subsets"]) == ("subset", 1.0)


def test_only_the_kl_of_c_is_annealed():
    for name in ("fig3", "fig6", "many"):
        for settings in experiment[f"daunhawer2019/{name}"].facts.build_sweeps("budget").values():
            assert (settings["anneal"], settings["annealed"]) == (2_000, "c")


def test_reconstructions_are_held_against_the_noise_that_nobody_can_know():
    limit = 2 * 64**2 * 0.3250829734  # nats of two images whose pixels are flipped with probability .1
    claim = experiment["daunhawer2019/fig4"].facts.claims[0]
    for lost, word in ((0.0, "holds"), (0.02, "does not hold")):
        members = runs(PAIRS, **{"reconstruction/nats": limit + lost * 2 * 64**2})
        assert judge(claim, Results(tuple(members), "budget")).verdict == word


def test_figures_of_pictures_share_their_runs_and_have_enough_seeds():
    for scale, seeds in {"smoke": 1, "small": 3, "budget": 10, "paper": 10}.items():
        swept = experiment["daunhawer2019/fig2"].facts.build_sweeps(scale)
        assert swept[PAIRS][BETA] == 1.0 and len(swept[PAIRS]["seed"]) == seeds
        for name in ("fig4", "fig5", "fig7"):
            assert experiment[f"daunhawer2019/{name}"].facts.build_sweeps(scale) == swept
