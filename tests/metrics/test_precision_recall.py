"""Improved precision and recall: against the definition written out, and where the answer is known."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from tests.support.messages import naming
from unbraid.errors import DataError, UsageError
from unbraid.metrics.generative.features import base
from unbraid.metrics.generative.precision_recall import Regions, find_members, precision_recall
from unbraid.metrics.intervals import draw_halves


def slow_members(points, centres, k):
    """Equations 1 and 2 of kynkaanniemi2019: which points lie within reach of a centre's k-th neighbour."""
    reach = []
    for i, centre in enumerate(centres):
        others = sorted(np.linalg.norm(centre - other) for j, other in enumerate(centres) if j != i)
        reach.append(others[k - 1])
    return [any(np.linalg.norm(p - c) <= r for c, r in zip(centres, reach, strict=True)) for p in points]


def slow_share(points, centres, k):
    return sum(slow_members(points, centres, k)) / len(points)


def values(real, made, **options):
    return {score.part: score.value for score in precision_recall(real, made, **options)}


@given(st.integers(0, 10_000), st.integers(6, 20), st.integers(6, 20), st.integers(1, 6), st.integers(1, 4))
@settings(max_examples=15)
def test_it_is_the_papers_definition(seed, n, m, d, k):
    rng = np.random.default_rng(seed)
    real, made = rng.standard_normal((n, d)), 1.5 * rng.standard_normal((m, d)) + 0.5
    found = values(real, made, k=k)
    assert found == {"precision": slow_share(made, real, k), "recall": slow_share(real, made, k)}
    assert values(made, real, k=k) == {"precision": found["recall"], "recall": found["precision"]}
    more = values(real, made, k=k + 1)
    assert all(more[part] >= found[part] for part in found), "larger balls hold no less"


@pytest.mark.parametrize(("n", "m", "k"), [(25, 40, 1), (40, 25, 2), (60, 61, 3)])
@pytest.mark.parametrize("scale", [1.0, 0.01])
def test_regions_of_halves_are_those_of_their_rows_alone(monkeypatch, n, m, k, scale):
    monkeypatch.setitem(base.MAX_PAIRS_IN_MEMORY, "cpu", 400)  # several blocks
    rng = np.random.default_rng(n)
    real, made = rng.standard_normal((n, 2)), scale * rng.standard_normal((m, 2))
    halves = draw_halves([n, m], 20, rng)
    regions = [Regions.around(torch.tensor(x), k, [of[place] for of in halves]) for place, x in enumerate((real, made))]
    (_, by_real), (_, by_made) = find_members(*regions)
    for number, (of_real, of_made) in enumerate(halves):
        assert by_real[number].tolist() == slow_members(made, real[of_real], k)
        assert by_made[number].tolist() == slow_members(real, made[of_made], k)


def test_intervals_cover_the_mean_over_draws():
    rng = np.random.default_rng(0)

    def pair():
        return rng.standard_normal((200, 4)), 1.2 * rng.standard_normal((150, 4)) + 0.3

    found = np.array([list(values(*pair(), resamples=0).values()) for _ in range(300)])
    reach = np.array([[np.diff(score.interval)[0] / 2 for score in precision_recall(*pair())] for _ in range(30)])
    covered = (abs(found - found.mean(0)) <= reach[:, None]).mean((0, 1))
    assert all((covered > 0.92) & (covered < 0.98)), covered


def test_pieces_and_tensors_change_nothing(monkeypatch):
    rng = np.random.default_rng(0)
    real, made = rng.standard_normal((50, 4)), rng.standard_normal((41, 4)) + 0.5
    whole = values(real, made)
    monkeypatch.setitem(base.MAX_PAIRS_IN_MEMORY, "cpu", 300)
    assert values(torch.tensor(real), made) == whole


def test_known_answers():
    rng = np.random.default_rng(0)
    real = rng.standard_normal((300, 16))
    assert values(real, real) == {"precision": 1, "recall": 1}
    assert values(real, real + 100) == {"precision": 0, "recall": 0}
    few = values(real, np.repeat(real[:5], 60, axis=0))
    assert few == {"precision": 1, "recall": pytest.approx(5 / 300)}, "one mode: realistic, not diverse"
    wide = values(rng.standard_normal((300, 16)), 5 * rng.standard_normal((300, 16)))
    assert wide["precision"] < 0.05
    assert wide["recall"] > 0.9


def test_equal_rows_are_found_whatever_rounding_does():
    rng = np.random.default_rng(1)
    once = 1e3 + rng.standard_normal((20, 64))
    many = np.repeat(once, 5, axis=0)  # the third neighbour is the row itself again: balls of radius 0
    assert values(many, once, k=3)["precision"] == 1
    assert values(many, once + 1e-3, k=3)["precision"] == 0


def test_intervals_and_clear_answers():
    rng = np.random.default_rng(2)
    real, made = rng.standard_normal((200, 3)), 1.5 * rng.standard_normal((100, 3))
    for score in precision_recall(real, made, network="mine"):
        assert 0 <= score.interval[0] < score.value < score.interval[1] <= 1
        assert score.name == f"precision-recall/mine/{score.part}"
        assert score.samples == (100 if score.part == "precision" else 200)
    with pytest.raises(UsageError, match=naming("k", 1, 0)):
        precision_recall(real, made, k=0)
    with pytest.raises(DataError, match=naming(3, "rows")):
        precision_recall(real, made[:3])
    with pytest.raises(UsageError, match=naming("real", 3, "made", 2)):
        precision_recall(real, made[:, :2])
    with pytest.raises(DataError, match=naming("made", "NaN")):
        precision_recall(real, made * np.inf)
