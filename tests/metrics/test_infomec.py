"""InfoMEC: neighbours as scikit-learn counts them, slow versions from the paper, ceilings, edges, bad input."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from sklearn.feature_selection import mutual_info_classif
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, mutual_info_score

from tests.support.evaluations import SPRITES, aligned_encoder, fixed_evaluation, full_grid, slow_entropy
from tests.support.messages import naming
from unbraid.errors import DataError, UsageError
from unbraid.metrics import Score, evaluate
from unbraid.metrics.arrays import to_labels
from unbraid.metrics.information.drawn_information import draw_information
from unbraid.metrics.information.infomec import RIDGE, infomec
from unbraid.metrics.information.nearest_neighbours import JITTER, estimate_information, standardise_codes


def made(rows=600, seed=0):
    rng = np.random.default_rng(seed)
    factors = np.stack([rng.integers(0, s, rows) for s in (2, 3, 5)], axis=1)
    codes = 0.6 * rng.standard_normal((rows, 4))
    codes[:, 1] += 2 * factors[:, 0]
    codes[:, 2] += factors[:, 1]
    codes[:, 3] += factors[:, 2] + 0.5 * factors[:, 1]
    return codes, factors


def slow_ratio(normalised, axis):
    """hsu2023: mean of greatest over sum along an axis of N [factors, latents], between even (0) and whole (1)."""
    n = normalised.shape[axis]
    ratio = np.mean(normalised.max(axis) / normalised.sum(axis))
    return (ratio - 1 / n) / (1 - 1 / n)


def slow_infoe(inputs, factors):
    """Share of entropy that a linear softmax with balanced classes takes away, on its own rows."""
    kept = []
    for column in factors.T:
        C = 1 / (RIDGE * len(inputs))
        model = LogisticRegression(C=C, class_weight="balanced", tol=1e-10, max_iter=50_000).fit(inputs, column)
        nothing = np.zeros_like(inputs)
        null = LogisticRegression(C=C, class_weight="balanced", tol=1e-10, max_iter=50_000).fit(nothing, column)
        before = log_loss(column, null.predict_proba(nothing))
        kept.append((before - log_loss(column, model.predict_proba(inputs))) / before)
    return np.mean(kept)


class SameJitter(np.random.RandomState):
    """Gives scikit-learn the tie-breaking noise that ours uses: one draw for all latents."""

    def __init__(self, seed, rows):
        super().__init__(0)
        self.drawn = np.random.default_rng(seed).standard_normal(rows)

    def standard_normal(self, size=None):
        return np.repeat(self.drawn[:, None], size[1], axis=1)


@pytest.mark.parametrize("neighbours", [1, 3, 10])
def test_neighbours_are_scikit_learns(neighbours):
    codes, factors = made()
    factors[:, 2] = np.where(np.arange(600) < 4, [7] * 600, factors[:, 2])  # a value with fewer rows than neighbours
    factors[0, 0] = 9  # and one that is alone
    found = estimate_information(codes, to_labels(factors, 600), neighbours, seed=5)
    for k, column in enumerate(factors.T):
        state = SameJitter(5, 600)
        expected = mutual_info_classif(
            standardise_codes(codes), column, discrete_features=False, n_neighbors=neighbours, random_state=state
        )
        np.testing.assert_allclose(found[:, k], expected, atol=1e-9)


@given(st.integers(0, 1000), st.integers(6, 60), st.integers(1, 6), st.integers(1, 3), st.booleans())
@settings(max_examples=40)
def test_neighbours_counted_one_row_at_a_time(seed, rows, neighbours, width, together):
    """ross2014, by its definition, for each latent, or for all together with the greatest distance in any latent."""
    from scipy.special import digamma

    rng = np.random.default_rng(seed)
    x, y = rng.standard_normal((rows, width)), rng.integers(0, 3, rows)
    y[:4] = 0, 0, 1, 1
    found = estimate_information(x, to_labels(y, rows), neighbours, seed=0, together=together)[:, 0]
    z = standardise_codes(x) + JITTER * np.random.default_rng(0).standard_normal(rows)[:, None]
    kept = [i for i in range(rows) if (y == y[i]).sum() > 1]
    for columns, estimate in zip([z] if together else z.T[:, :, None], found, strict=True):
        terms = []
        for i in kept:
            distance = abs(columns - columns[i]).max(1)
            same = sorted(distance[j] for j in kept if j != i and y[j] == y[i])
            k = min(neighbours, len(same))
            nearer = sum(distance[j] < same[k - 1] for j in kept)
            terms.append(digamma(k) - digamma(len(same) + 1) - digamma(nearer))
        assert estimate == pytest.approx(max(0, digamma(len(kept)) + np.mean(terms)), abs=1e-9)


def test_latents_that_only_know_a_factor_together():
    """The factor is whether two signs differ: each latent knows nothing, both know all of its ln 2 nats."""
    rng = np.random.default_rng(0)
    signs = rng.choice([-1.0, 1.0], (2_000, 2))
    codes, labels = signs + 0.1 * rng.standard_normal(signs.shape), to_labels(signs[:, 0] != signs[:, 1], 2_000)
    assert estimate_information(codes, labels, 10, 0).max() < 0.02
    assert estimate_information(codes, labels, 10, 0, together=True).item() == pytest.approx(np.log(2), abs=0.02)


def test_neighbours_of_a_gaussian_pair_are_near_the_truth():
    """Two Normal classes 2 apart: I = h(mixture) - h(Normal), by quadrature .337 nats."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 20_000)
    x = rng.standard_normal(20_000) + 2 * y
    grid = np.linspace(-8, 10, 20_001)
    p = 0.5 * (np.exp(-(grid**2) / 2) + np.exp(-((grid - 2) ** 2) / 2)) / np.sqrt(2 * np.pi)
    truth = np.trapezoid(-p * np.log(p), grid) - 0.5 * np.log(2 * np.pi * np.e)
    assert estimate_information(x[:, None], to_labels(y, 20_000), 10, 0)[0, 0] == pytest.approx(truth, abs=0.01)


def test_knn_agrees_with_a_slow_version():
    codes, factors = made()
    codes = np.column_stack([codes, 1e-3 * codes[:, 0]])  # not active: 1/20 of the widest range at least
    modularity, explicitness, compactness = infomec(codes, factors, seed=1, resamples=0)
    seed = int(np.random.default_rng(1).integers(2**31))
    scaled = standardise_codes(codes)
    normalised = np.stack(
        [
            mutual_info_classif(scaled, f, discrete_features=False, n_neighbors=10, random_state=SameJitter(seed, 600))
            / slow_entropy(f.tolist())
            for f in factors.T
        ]
    )
    assert modularity.details["active"] == ["z0", "z1", "z2", "z3"]
    assert modularity.value == pytest.approx(slow_ratio(normalised[:, :4], axis=0), abs=1e-9)
    assert compactness.value == pytest.approx(slow_ratio(normalised[:, :4], axis=1), abs=1e-9)
    assert explicitness.value == pytest.approx(slow_infoe(scaled, factors), abs=1e-4)
    assert [s.name for s in (modularity, explicitness, compactness)] == [
        "infomec/knn/modularity",
        "infomec/knn/explicitness",
        "infomec/knn/compactness",
    ]


def test_histogram_agrees_with_a_slow_version():
    codes, factors = made()
    modularity, explicitness, compactness = infomec(codes, factors, protocol="histogram", bins=8)
    normalised = np.empty((3, 4))
    for j, column in enumerate(codes.T):
        binned = np.digitize(column, np.histogram(column, 8)[1][:-1])
        for k, f in enumerate(factors.T):
            normalised[k, j] = mutual_info_score(f, binned) / slow_entropy(f.tolist())
    assert modularity.value == pytest.approx(slow_ratio(normalised, axis=0), abs=1e-10)
    assert compactness.value == pytest.approx(slow_ratio(normalised, axis=1), abs=1e-10)
    assert explicitness.value == pytest.approx(slow_infoe(standardise_codes(codes), factors), abs=1e-4)
    for score in (modularity, explicitness, compactness):
        assert score.interval[0] < score.value < score.interval[1]
        assert Score.from_record(json.loads(json.dumps(score.as_record()))) == score


def test_quantised_codes_are_read_value_by_value():
    codes, factors = made()
    codes = np.round(codes)
    modularity, explicitness, compactness = infomec(codes, factors, protocol="quantised")
    normalised = np.array([[mutual_info_score(f, c) / slow_entropy(f.tolist()) for c in codes.T] for f in factors.T])
    assert modularity.value == pytest.approx(slow_ratio(normalised, axis=0), abs=1e-10)
    assert compactness.value == pytest.approx(slow_ratio(normalised, axis=1), abs=1e-10)
    columns = np.concatenate([c[:, None] == np.unique(c) for c in codes.T], axis=1).astype(float)
    assert explicitness.value == pytest.approx(slow_infoe(columns, factors), abs=2e-3)


@pytest.mark.parametrize("protocol", ["knn", "histogram", "quantised"])
def test_a_perfect_code_is_all_of_it(protocol):
    grid = np.tile(full_grid((4, 5, 6)), (10, 1))
    codes = np.column_stack([3.0 * grid, np.zeros(len(grid))])
    for score in infomec(codes, grid, protocol=protocol):
        assert score.value == pytest.approx(1, abs=0.02), score.name


def test_ceiling_on_sprites():
    """As the module says: what 20 bins lose of 32 or 40 values lowers no ratio."""
    grid = full_grid(SPRITES.values())
    rows = np.random.default_rng(0).choice(len(grid), 2_000, replace=False)
    means = aligned_encoder(grid, 0.1)[0][rows]
    knn = infomec(means, grid[rows], resamples=0)
    assert min(score.value for score in knn) > 0.97
    histogram = infomec(means, grid[rows], protocol="histogram", resamples=0)
    assert histogram[1].value == knn[1].value
    assert histogram[0].value > 0.85


def test_noise_explains_nothing_whatever_its_ratios():
    rng = np.random.default_rng(0)
    factors = np.stack([rng.integers(0, s, 3_000) for s in (4, 5, 6)], axis=1)
    modularity, explicitness, _ = infomec(rng.standard_normal((3_000, 6)), factors, resamples=0)
    assert explicitness.value < 0.02
    assert 0 <= modularity.value <= 1


def test_intervals_of_halves_are_about_right():
    values, widths = [], []
    for seed in range(12):
        codes, factors = made(400, seed)
        score = infomec(codes, factors, seed=seed, resamples=20 if seed < 3 else 0)[0]
        values.append(score.value)
        widths += [] if score.interval is None else [(score.interval[1] - score.interval[0]) / 2]
    assert np.mean(widths) == pytest.approx(1.96 * np.std(values), rel=0.7)


def test_codes_without_anything_to_measure_are_defined():
    codes, factors = made(100)
    for protocol in ("knn", "histogram", "quantised"):
        assert [s.value for s in infomec(np.ones((100, 3)), factors, protocol=protocol)] == pytest.approx([0, 0, 0])
        one = infomec(codes[:, :1], factors, protocol=protocol)
        assert one[2].value == 1  # a single latent
        assert all(np.isfinite(s.value) for s in one)
    few = infomec(codes[:12], factors[:12], resamples=5)
    assert all(np.isfinite(s.value) for s in few)


@pytest.mark.parametrize("change", ["order", "sign", "scale"])
def test_ties_are_broken_alike_for_reordered_mirrored_and_scaled_latents(change):
    codes, factors = made(200)
    codes = np.round(codes)
    changed = {"order": codes[:, [2, 0, 3, 1]], "sign": codes * [1, -1, 1, -1], "scale": 4 * codes}[change]
    before, after = (infomec(c, factors, resamples=0) for c in (codes, changed))
    assert [s.value for s in before] == pytest.approx([s.value for s in after], abs=1e-6)


@pytest.mark.parametrize(
    ("codes", "factors", "settings", "facts"),
    [
        (np.full((9, 2), np.inf), full_grid((3, 3)), {}, ["infinite"]),
        (np.zeros((9, 2)), full_grid((2, 4)), {}, [9, 8]),
        (np.zeros((9, 2)), np.arange(9) % 3, {}, ["InfoMEC", "factors"]),
        (np.zeros((9, 2)), np.zeros((9, 2)), {}, ["v0"]),
        (np.zeros((9, 2)), full_grid((3, 3)), {"bins": 1}, ["bins", 2, 1]),
        (np.zeros((9, 2)), full_grid((3, 3)), {"neighbours": 0}, ["neighbours", 1, 0]),
    ],
)
def test_bad_input_is_named(codes, factors, settings, facts):
    with pytest.raises((UsageError, DataError), match=naming(*facts)):
        infomec(codes, factors, **settings)


def test_registered_protocols_and_fewer_rows():
    grid = np.tile(full_grid((3, 4)), (20, 1))
    means = np.column_stack([grid, np.zeros(len(grid))]) + 0.05 * np.random.default_rng(0).standard_normal((240, 3))
    evaluation = fixed_evaluation(means, np.ones_like(means), grid, names=["a", "b"])
    scores = evaluate(evaluation, ["infomec"], resamples=3)
    assert {s.protocol for s in scores} == {"knn", "histogram", "corrected"}
    assert {s.part for s in scores} == {"modularity", "explicitness", "compactness"}
    assert all(s.samples == 240 for s in scores)
    assert all(s.samples == 100 for s in infomec(torch.as_tensor(means), grid, samples=100, resamples=0))


@pytest.mark.parametrize(("level", "degrees"), [(5.0, (9.5, 10)), (0.0, (100, 200))])
def test_a_spread_is_as_sure_as_the_pairs_of_halves_behind_it(level, degrees):
    """A sum of what is there has one error a pair; a sum of 50 chances has 50."""
    rng, shape = np.random.default_rng(0), (10, 5)
    halves = level + np.sqrt(2) * 0.1 * rng.standard_normal((20, *shape))
    spread = draw_information(np.full(shape, level), list(halves), None, rng).find_spread(np.sum)
    assert degrees[0] < spread.degrees <= degrees[1]
    errors = (halves[::2] - halves[1::2]) / 2
    of_chance = np.square(errors).mean(0).sum() * (0.5 - 0.5 / np.pi)  # chance below 0 counts as 0
    expected = np.square(errors.sum((1, 2))).mean() if level else of_chance
    assert spread.variance == pytest.approx(expected, rel=0.3)


def test_draws_of_equal_latents_vary_as_equal_latents_do():
    """The greater of two equal numbers varies less than one that is ahead, however far chance has put it."""
    rng = np.random.default_rng(0)

    def measure(one):
        return (one.max(-1) / one.sum(-1)).mean(-1)

    found = 0.5 + 0.02 * rng.standard_normal((20_000, 5, 2))
    halves = 0.5 + np.sqrt(2) * 0.02 * rng.standard_normal((30, 100, 5, 2))
    drawn = [draw_information(one, list(half), None, rng) for one, half in zip(found[:30], halves, strict=True)]
    variances = [one.find_spread(measure).variance for one in drawn]
    assert np.mean(variances) == pytest.approx(np.var(measure(found)), rel=0.3)
