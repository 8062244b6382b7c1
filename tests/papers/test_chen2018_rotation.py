"""A rotated perfect code: lengths are kept, and the scores move as they must."""

import numpy as np
import pytest

from unbraid.papers.chen2018.rotation import rotate, score_rotated_codes


def test_a_rotation_keeps_lengths_and_other_latents():
    code = np.random.default_rng(0).standard_normal((50, 4))
    turned = rotate(code, [1, 3], 45)
    assert np.linalg.norm(turned, axis=1) == pytest.approx(np.linalg.norm(code, axis=1))
    assert (turned[:, [0, 2]] == code[:, [0, 2]]).all()
    assert turned[:, 1] == pytest.approx((code[:, 1] - code[:, 3]) / np.sqrt(2))
    assert rotate(turned, [1, 3], -45) == pytest.approx(code)


def test_a_perfect_code_is_perfect_and_only_equal_spreads_confuse_the_higgins_score():
    members = score_rotated_codes({"sizes": (6, 7, 8, 9), "angle": [0, 45], "seed": [0], "points": 1000})
    scores = {(m.settings["recipe"], m.settings["angle"]): {k: s.value for k, s in m.scores.items()} for m in members}
    for series in ("different spreads", "equal spreads"):
        assert list(scores[series, 0].values()) == pytest.approx([1.0] * 3)
        assert scores[series, 45]["mig/histogram-mean"] < 0.7
    assert scores["different spreads", 45]["betavae/logistic"] > 0.98
    assert scores["equal spreads", 45]["betavae/logistic"] == pytest.approx(0.75, abs=0.05)
