"""msvae2020, figures 21 to 31: what is made of a score, and verdicts on results whose truth is known."""

import pytest

from unbraid.experiments import Results, judge
from unbraid.experiments.base import experiment
from unbraid.metrics import Score
from unbraid.papers.msvae2020 import identity
from unbraid.report.tables import Member


def kept(value, chance, **moved):
    details = {
        "chance": chance,
        "moved": moved,
        "factor": "car",
        "network": {"accuracy": {"car": 0.75}, "held_out_rows": 40},
    }
    return {identity.KEPT: Score("kept", "drawn", value, 100, details=details)}


def test_scores_that_are_made_of_another():
    found = kept(0.6, 0.2, c0=0.1, c1=0.3)
    assert identity.score_above_chance(found).value == pytest.approx(0.5)
    assert identity.mean_change(found).value == pytest.approx(0.2)
    assert (identity.classifier_accuracy(found).value, identity.classifier_accuracy(found).samples) == (0.75, 40)
    assert identity.score_above_chance(kept(1.0, 1.0)).value == 0.0  # one identity, whatever is drawn


def verdicts(name, values, moved=0.1):
    change = Score("a", "b", moved, 1)
    made = [
        Member(
            f"{series}-{seed}",
            {"recipe": series, "seed": seed},
            "finished",
            "",
            {identity.ABOVE_CHANCE: score, identity.CHANGE: change},
        )
        for series, value in values.items()
        for seed in range(4)
        for score in [Score("a", "b", value + 0.01 * seed, 1)]
    ]
    return [judge(claim, Results(tuple(made))).verdict for claim in experiment[f"msvae2020/{name}"].facts.claims]


def test_verdicts_ask_whether_ms_gan_keeps_identity_more_often():
    better = {identity.MS: 0.6, identity.CGAN: 0.3, identity.INFO: 0.2}
    assert verdicts("fig21", better) == ["holds"]
    assert verdicts("fig29", better) == ["holds", "holds"]
    worse = {identity.MS: 0.25, identity.CGAN: 0.5, identity.INFO: 0.1}
    assert verdicts("fig21", worse) == ["does not hold"]
    assert verdicts("fig29", worse) == ["holds", "does not hold"]
    assert verdicts("fig21", {**better, identity.CGAN: 0.6}) == ["inconclusive"]
    still = verdicts("fig21", better, moved=0.001) + verdicts("fig29", better, moved=0.001)
    assert still == ["does not hold"] * 3  # C moves nothing, so identity is easily kept
