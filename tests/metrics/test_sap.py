"""SAP: the protocol by scikit-learn, squared correlations in closed form, two ways of drawing rows, bad input."""

import json

import numpy as np
import pytest
import torch
from sklearn.svm import LinearSVC

from tests.support.evaluations import SPRITES, aligned_encoder, fixed_evaluation, full_grid
from tests.support.messages import names, naming
from unbraid.errors import DataError, UsageError
from unbraid.metrics import Score, evaluate
from unbraid.metrics.predictive.sap import sap
from unbraid.metrics.train_test_split import draw_rows, split_rows
from unbraid.scoring import describe_repeats

NAMES = tuple(SPRITES)
GRID = full_grid(SPRITES.values())


def made(rows=900, seed=0):
    rng = np.random.default_rng(seed)
    factors = np.stack([rng.integers(0, s, rows) for s in (2, 3, 6)], axis=1)
    codes = rng.standard_normal((rows, 5))
    codes[:, 0] += 3 * factors[:, 0]
    codes[:, 3] -= 2 * factors[:, 1]
    codes[:, 4] += factors[:, 2] + factors[:, 1]
    return codes, factors


def slow_sap(train, train_factors, test, test_factors):
    """kumar2018, section 3, for discrete factors: one classifier at a time."""
    gaps = []
    for k in range(train_factors.shape[1]):
        accuracies = []
        for j in range(train.shape[1]):
            machine = LinearSVC(C=0.01, class_weight="balanced", dual=False, tol=1e-10, max_iter=100_000)
            machine.fit(train[:, [j]], train_factors[:, k])
            accuracies.append((machine.predict(test[:, [j]]) == test_factors[:, k]).mean())
        accuracies.sort()
        gaps.append(accuracies[-1] - accuracies[-2])
    return sum(gaps) / len(gaps)


@pytest.mark.parametrize("compat", [None, "disentanglement_lib"])
def test_agrees_with_a_slow_version(compat):
    """tests/oracles.md, row 9: linear SVM (C = .01, balanced) per latent and factor, gap of the two best accuracies."""
    codes, factors = made()
    score = sap(codes, factors, train=500, test=300, compat=compat, seed=4)
    draw = split_rows if compat is None else draw_rows
    train, test = draw(len(codes), 500, 300, np.random.default_rng(4))
    expected = slow_sap(codes[train], factors[train], codes[test], factors[test])
    assert score.value == pytest.approx(expected, abs=1e-12)
    assert score.protocol == (compat or "linear-svm")
    assert score.samples == 800
    assert score.details["winner"] == {"v0": "z0", "v1": "z3", "v2": "z4"}
    assert score.value == pytest.approx(np.mean(list(score.details["gaps"].values())))
    assert score.interval[0] < score.value < score.interval[1]
    assert Score.from_record(json.loads(json.dumps(score.as_record()))) == score


def test_rows_are_drawn_as_their_protocol_says():
    train, test = split_rows(100, 60, 30, np.random.default_rng(0))
    assert len({*train, *test}) == 90
    train, test = split_rows(9, 60, 30, np.random.default_rng(0))
    assert (len(train), len(test)) == (6, 3)
    train, test = draw_rows(9, 60, 30, np.random.default_rng(0))
    assert (len(train), len(test)) == (60, 30)


def test_a_continuous_factor_scores_its_squared_correlation():
    codes, _ = made()
    real = 0.5 * codes[:, 1] - 2 * codes[:, 2] + 3
    score = sap(codes, real, continuous=("v0",), train=600, test=300)
    train = split_rows(900, 600, 300, np.random.default_rng(0)).train
    expected = np.sort([np.corrcoef(c, real[train])[0, 1] ** 2 for c in codes[train].T])
    assert score.value == pytest.approx(expected[-1] - expected[-2], abs=1e-9)
    np.testing.assert_allclose(np.sort(score.details["scores"]["v0"]), expected, atol=1e-9)
    assert score.interval[0] < score.value < score.interval[1]


def test_kinds_of_factors_may_be_mixed():
    codes, factors = made()
    real = codes[:, 2] * 1e3
    both = sap(codes, np.column_stack([factors[:, 0], real, factors[:, 2]]), continuous=("v1",))
    discrete = sap(codes, factors[:, [0, 2]])
    assert both.details["gaps"]["v0"] == discrete.details["gaps"]["v0"]
    assert both.details["gaps"]["v2"] == discrete.details["gaps"]["v1"]
    assert both.details["winner"]["v1"] == "z2"
    assert both.details["scores"]["v1"][2] == pytest.approx(1)


def test_ceiling_of_a_perfect_code_of_sprites():
    """As the module says: a line per value finds few of 32 or 40 ordered values."""
    rng = np.random.default_rng(0)
    rows = rng.choice(len(GRID), 8_000, replace=False)
    score = sap(aligned_encoder(GRID, 0.1)[0][rows], GRID[rows], names=NAMES)
    assert score.value == pytest.approx(0.245, abs=0.02)
    assert list(score.details["winner"].values()) == ["z0", "z1", "z2", "z3", "z4"]
    assert score.details["gaps"]["shape"] > 0.6 > 0.1 > score.details["gaps"]["orientation"]


def test_the_interval_is_about_two_standard_errors_over_other_rows():
    codes, factors = made(30_000)
    parts = [slice(750 * i, 750 * (i + 1)) for i in range(30)]
    values = [sap(codes[part], factors[part], resamples=0).value for part in parts]
    widths = [np.diff(sap(codes[part], factors[part]).interval)[0] / 2 for part in parts[:6]]
    assert np.mean(widths) == pytest.approx(1.96 * np.std(values), rel=0.4)


def test_a_continuous_factor_that_does_not_vary_in_the_training_rows_is_refused():
    codes, _ = made(90)
    factor = np.zeros(90)
    factor[split_rows(90, 60, 30, np.random.default_rng(0)).test[0]] = 1.0
    with pytest.raises(DataError, match=naming("v0")):
        sap(codes, factor, continuous=("v0",), train=60, test=30)


def test_columns_without_variation_and_copies_are_defined():
    codes, factors = made(300)
    codes = np.column_stack([codes, np.full(300, 2.0), codes[:, 0]])
    score = sap(codes, factors)
    assert score.details["gaps"]["v0"] == 0  # two latents know it equally well
    dead = sap(np.zeros((300, 3)), factors)
    assert dead.value == 0
    assert sap(codes, factors[:, 2], continuous=("v0",)).details["scores"]["v0"][5] == 0


def test_tensors_and_arrays_score_alike():
    codes, factors = made(300)
    assert sap(torch.as_tensor(codes), torch.as_tensor(factors)).value == sap(codes, factors).value


@pytest.mark.parametrize(
    ("codes", "factors", "settings", "facts"),
    [
        (np.zeros((9, 1)), np.arange(9) % 2, {}, ["latent", 1]),
        (np.full((9, 2), np.nan), np.arange(9) % 2, {}, ["NaN"]),
        (np.zeros((9, 2)), np.arange(8) % 2, {}, [9, 8]),
        (np.zeros((9, 2)), np.zeros(9), {}, ["v0"]),
        (np.zeros((2, 2)), [0, 1], {}, ["rows", 3]),
        (np.zeros((9, 2)), np.arange(9) % 2, {"train": 1}, ["train", 2]),
        (np.zeros((9, 2)), np.arange(9) % 2, {"continuous": ("size",)}, ["size"]),
        (np.zeros((9, 2)), np.arange(8.0), {"continuous": ("v0",)}, [9, 8]),
        (np.zeros((9, 2)), np.full(9, np.inf), {"continuous": ("v0",)}, ["infinite"]),
        (np.zeros((9, 2)), np.arange(9) % 2, {"names": ("a", "b")}, ["factors", 1, 2]),
        (np.zeros((9, 2)), np.arange(9) % 2, {"latents": ("a",)}, ["latents", 2, 1]),
    ],
)
def test_bad_input_is_named(codes, factors, settings, facts):
    with pytest.raises((UsageError, DataError), match=naming(*facts)):
        sap(codes, factors, **settings)


def test_registered_protocols_are_the_function_on_arrays():
    grid = np.tile(full_grid((3, 4)), (20, 1))
    rng = np.random.default_rng(0)
    means = np.column_stack([grid + 0.3 * rng.standard_normal(grid.shape), rng.standard_normal(len(grid))])
    evaluation = fixed_evaluation(means, np.ones_like(means), grid, names=["a", "b"])
    both = ["sap/linear-svm", "sap/disentanglement_lib"]
    plain, lib = evaluate(evaluation, both, train=150, test=80)
    assert [plain.name, lib.name] == both
    assert lib.samples == plain.samples == 230
    assert plain.details["winner"] == lib.details["winner"] == {"a": "z0", "b": "z1"}
    few = evaluate(evaluation, both, factors=("b",))
    assert [list(score.details["gaps"]) for score in few] == [["b"], ["b"]]
    assert [score.samples for score in few] == [240, 15_000]  # with replacement there are always enough


def test_rows_that_are_drawn_with_repetition_are_noted():
    codes, factors = made(120)
    evaluation = fixed_evaluation(codes, np.full(codes.shape, 0.1), factors)
    plain, lib = evaluate(evaluation, ["sap/linear-svm", "sap/disentanglement_lib"], train=300, test=80)
    assert describe_repeats([plain]) == []
    (note,) = describe_repeats([plain, lib])
    assert names(note, "sap/disentanglement_lib", "120", "92%", "optimistic")  # 1 - (1 - 1/120)^300
    (few,) = evaluate(evaluation, ["sap/disentanglement_lib"], train=5, test=80)
    assert describe_repeats([few]) == []
