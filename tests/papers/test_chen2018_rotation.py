"""A rotated perfect code: lengths are kept, and the scores move as they must."""

from statistics import NormalDist

import numpy as np
import pytest

from tests.support.results import member
from unbraid.experiments import Results, experiment, judge
from unbraid.metrics import betavae
from unbraid.papers.chen2018.code_scores import DESIGNS, rotate, score_rotated_codes


def test_a_rotation_keeps_lengths_and_other_latents():
    code = np.random.default_rng(0).standard_normal((50, 4))
    turned = rotate(code, [1, 3], 45)
    assert np.linalg.norm(turned, axis=1) == pytest.approx(np.linalg.norm(code, axis=1))
    assert (turned[:, [0, 2]] == code[:, [0, 2]]).all()
    assert turned[:, 1] == pytest.approx((code[:, 1] - code[:, 3]) / np.sqrt(2))
    assert rotate(turned, [1, 3], -45) == pytest.approx(code)


def test_a_perfect_code_is_perfect_and_equal_spreads_confuse_the_higgins_score():
    members = score_rotated_codes({"sizes": (5, 6, 7, 8), "angle": [0, 45], "seed": [0], "points": 400})
    scores = {(m.settings["recipe"], m.settings["angle"]): {k: s.value for k, s in m.scores.items()} for m in members}
    for series in DESIGNS:
        assert list(scores[series, 0].values()) == pytest.approx([1.0] * 3)
        assert scores[series, 45]["mig/histogram-mean"] < 0.75
    assert scores["spread 2, 1 plane", 45]["betavae/logistic"] > 0.98
    assert scores["spread 1, 1 plane", 45]["betavae/logistic"] == pytest.approx(0.75, abs=0.05)
    assert scores["spread 1, 2 planes", 45]["betavae/logistic"] == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize(("spread", "pairs"), [(1.5, 64), (2, 64), (3, 64), (3, 256), (3, 1024), (10, 64)])
def test_the_higgins_score_of_two_rotated_planes_follows_its_closed_form(spread, pairs):
    """The narrow factors of both planes are confused, the more the wider the others, until there are many pairs."""
    factors = np.indices((10, 10, 10, 10)).reshape(4, -1).T
    code = (factors - factors.mean(0)) / factors.std(0) * [spread, 1, spread, 1]
    turned = rotate(rotate(code, [0, 1], 45), [2, 3], 45)
    normal = NormalDist().cdf
    wide, narrow = normal(np.sqrt(2 * pairs) * (spread - 1) / (spread + 1)), normal(np.sqrt(pairs) / (2 * spread**2))
    score = betavae(turned, factors, batch=pairs, train=2_000, test=2_000)
    assert score.value == pytest.approx(wide * (1 + narrow) / 2, abs=0.03)
    accuracies = list(score.details["accuracy"].values())
    assert min(accuracies[::2]) > wide - 0.03  # the wide factors
    assert np.mean(accuracies[1::2]) == pytest.approx(wide * narrow, abs=0.05)


@pytest.mark.parametrize("spread", [1, 1.25, 1.5, 3])
def test_the_higgins_score_of_one_rotated_plane_follows_its_closed_form(spread):
    """The wide and the narrow factor of the plane are confused where they are alike; the others are found."""
    factors = np.indices((10, 10, 10, 10)).reshape(4, -1).T
    code = (factors - factors.mean(0)) / factors.std(0) * [spread, 1, 1, 1]
    score = betavae(rotate(code, [0, 1], 45), factors, train=2_000, test=2_000)
    wide = NormalDist().cdf(np.sqrt(2 * 64) * (spread - 1) / (spread + 1))
    assert score.value == pytest.approx((1 + wide) / 2, abs=0.03)


def test_claims_are_judged_over_the_whole_design():
    """A choice of the design in which the Higgins score passes would let the claim hold."""
    claims = experiment["chen2018/table1"].facts.claims
    members = [
        member(series, seed, {"betavae/logistic": 0.76 if angle and "spread 1," in series else 1.0}, angle=angle)
        for series in DESIGNS
        for angle in (0, 45)
        for seed in range(3)
    ]
    assert [judge(claim, Results(tuple(members))).verdict for claim in claims[2:]] == ["does not hold", "holds"]
