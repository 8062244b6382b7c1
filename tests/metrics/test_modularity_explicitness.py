"""Modularity and explicitness: slow versions from the paper, closed forms, ceilings, dead latents, bad input."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import mutual_info_score, roc_auc_score
from sklearn.multiclass import OneVsRestClassifier

from tests.support.evaluations import fixed_evaluation, full_grid
from tests.support.messages import naming
from unbraid.errors import DataError, UsageError
from unbraid.metrics import Score, evaluate
from unbraid.metrics.information.modularity_explicitness import compute_aucs, explicitness, modularity
from unbraid.metrics.train_test_split import draw_rows, split_rows


def made(rows=600, seed=0):
    rng = np.random.default_rng(seed)
    factors = np.stack([rng.integers(0, s, rows) for s in (2, 3, 5)], axis=1)
    codes = 0.5 * rng.standard_normal((rows, 4))
    codes[:, 1] += 2 * factors[:, 0]
    codes[:, 2] += factors[:, 1]
    codes[:, 3] += factors[:, 2] + factors[:, 1]
    return codes, factors


def slow_modularity(codes, factors, bins, of_nothing=None):
    """ridgeway2018: how far each latent's mutual information is from the template that keeps its greatest entry."""
    scores = []
    for column in codes.T:
        binned = np.digitize(column, np.histogram(column, bins)[1][:-1])
        information = [mutual_info_score(f, binned) for f in factors.T]
        theta = max(information)
        if theta < 1e-9:
            scores += [] if of_nothing is None else [of_nothing]
            continue
        template = [theta if m == theta else 0.0 for m in information]
        deviation = sum((m - t) ** 2 for m, t in zip(information, template, strict=True))
        scores.append(1 - deviation / (theta**2 * (len(information) - 1)))
    return float(np.mean(scores))


def slow_explicitness(train, train_factors, test, test_factors, how):
    """Mean over factors of the mean over values of the area under "this value against the rest"."""
    mean, std = train.mean(0), train.std(0)
    train, test = (train - mean) / std, (test - mean) / std
    by_factor = []
    for k in range(train_factors.shape[1]):
        areas = []
        for place, value in enumerate(np.unique(train_factors[:, k])):
            if how == "one-vs-rest":
                model = LogisticRegression(tol=1e-10, max_iter=10_000).fit(train, train_factors[:, k] == value)
                ranking = model.decision_function(test)
            elif how == "disentanglement_lib":  # scikit-learn's defaults until 2019
                learner = LogisticRegression(solver="liblinear", tol=1e-10, max_iter=10_000)
                model = OneVsRestClassifier(learner).fit(train, train_factors[:, k])
                ranking = model.predict_proba(test)[:, place]
            else:
                model = LogisticRegression(tol=1e-10, max_iter=10_000).fit(train, train_factors[:, k])
                ranking = model.predict_proba(test)[:, place]
            areas.append(roc_auc_score(test_factors[:, k] == value, ranking))
        by_factor.append(np.mean(areas))
    return float(np.mean(by_factor))


@pytest.mark.parametrize("compat", [None, "disentanglement_lib"])
def test_modularity_agrees_with_a_slow_version(compat):
    codes, factors = made()
    codes = np.column_stack([codes, np.full(len(codes), 3.0)])
    score = modularity(codes, factors, bins=9, compat=compat, samples=600, seed=2)
    rows = np.arange(600) if compat is None else draw_rows(600, 600, 1, np.random.default_rng(2)).train
    expected = slow_modularity(codes[rows], factors[rows], 9, None if compat is None else 0.0)
    assert score.value == pytest.approx(expected, abs=1e-10)
    assert score.details["modularity"]["z4"] == (None if compat is None else 0)
    assert score.interval is None
    assert "modularity/corrected" in score.covers
    assert score.name == f"modularity/{compat or 'histogram-mean'}"
    assert Score.from_record(json.loads(json.dumps(score.as_record()))) == score


def test_modularity_in_closed_form():
    """A latent that holds two of three factors of equal entropy: 1 - 1/2."""
    grid = full_grid((4, 4, 4))
    codes = np.column_stack([grid[:, 0] + 4.0 * grid[:, 1], grid[:, 2]])
    score = modularity(codes, grid, bins=16)
    assert score.details["modularity"] == {"z0": pytest.approx(0.5, abs=1e-9), "z1": pytest.approx(1, abs=1e-9)}
    assert score.value == pytest.approx(0.75, abs=1e-9)
    assert score.interval is None


def test_a_code_that_tells_nothing_has_no_modularity():
    grid = full_grid((4, 4))
    for compat in (None, "disentanglement_lib"):
        assert modularity(np.zeros((16, 3)), grid, compat=compat).value == 0
    perfect = np.column_stack([grid, np.zeros((16, 2))])
    assert modularity(perfect, grid).value == 1
    assert modularity(perfect, grid).details["modularity"]["z3"] is None


@pytest.mark.parametrize("how", ["one-vs-rest", "softmax", "disentanglement_lib"])
def test_explicitness_agrees_with_a_slow_version(how):
    codes, factors = made()
    compat = how if how == "disentanglement_lib" else None
    chosen = {"compat": compat} if compat else {"classifier": how}
    score = explicitness(codes, factors, train=400, test=200, seed=3, **chosen)
    train, test = (draw_rows if compat else split_rows)(600, 400, 200, np.random.default_rng(3))
    area = slow_explicitness(codes[train], factors[train], codes[test], factors[test], how)
    assert score.details["mean_auc"] == pytest.approx(area, abs=1e-4)
    assert score.value == pytest.approx(area if compat else 2 * area - 1, abs=2e-4)
    assert score.predictor == ("liblinear" if compat else how)
    assert score.interval[0] < score.value < score.interval[1]
    assert Score.from_record(json.loads(json.dumps(score.as_record()))) == score


@pytest.mark.parametrize("values", [2, 3, 6])
def test_ceiling_of_one_line_per_value(values):
    """As the module says: value c of K equally spaced ones has an area of max(c, K - 1 - c) / (K - 1)."""
    factors = np.tile(np.arange(values), 400)[:, None]
    score = explicitness(factors.astype(float), factors)
    expected = [max(c, values - 1 - c) / (values - 1) for c in range(values)]
    middle = values % 2 * [values // 2]  # the same on both sides: its line may tilt either way
    for c, (found, best) in enumerate(zip(score.details["auc_of_values"]["v0"], expected, strict=True)):
        assert found == pytest.approx(best, abs=0.06 if c in middle else 0.02)
    assert explicitness(factors.astype(float), factors, classifier="softmax").value == pytest.approx(1, abs=0.02)


def test_a_latent_per_value_is_wholly_explicit():
    factors = np.tile(np.arange(7), 60)[:, None]
    score = explicitness((factors == np.arange(7)).astype(float), factors)
    assert score.value == pytest.approx(1, abs=1e-9)
    assert score.interval[0] < score.interval[1] == 1  # all of 140 test rows are no proof


@given(st.integers(0, 1000), st.integers(2, 60), st.booleans())
@settings(max_examples=30)
def test_areas_are_scikit_learns(seed, rows, ties):
    rng = np.random.default_rng(seed)
    scores = rng.integers(0, 4, (rows, 6)).astype(float) if ties else rng.standard_normal((rows, 6))
    columns = np.stack([rng.integers(0, 2, rows), rng.choice([2, 3, 4, 6], rows)], axis=1)  # 6 is no column, 5 is empty
    areas = compute_aucs(torch.as_tensor(scores), torch.as_tensor(columns)).numpy()
    for c, (area, column) in enumerate(zip(areas, scores.T, strict=True)):
        positive = (columns == c).any(1)
        if 0 < positive.sum() < rows:
            assert area == pytest.approx(roc_auc_score(positive, column), abs=1e-12)
        else:
            assert np.isnan(area)


@pytest.mark.gpu
def test_areas_on_a_gpu_are_those_on_a_cpu():
    codes, factors = made(3_000)
    here, there = (explicitness(torch.as_tensor(codes, device=place), factors) for place in ("cpu", "cuda"))
    assert there.value == pytest.approx(here.value, abs=1e-4)
    scores = torch.randn(500, 8).round(decimals=1).double()
    columns = torch.stack([torch.randint(0, 3, (500,)), torch.randint(3, 9, (500,))], dim=1)
    areas = compute_aucs(scores.cuda(), columns.cuda())
    assert areas.is_cuda
    torch.testing.assert_close(areas.cpu(), compute_aucs(scores, columns), atol=1e-12, rtol=0, equal_nan=True)


def test_the_interval_of_explicitness_is_as_wide_as_other_rows_make_it():
    parts = [made(600, seed) for seed in range(24)]
    values = [explicitness(*part, resamples=0).value for part in parts]
    widths = [np.diff(explicitness(*part).interval)[0] / 2 for part in parts[:5]]
    assert np.mean(widths) == pytest.approx(2.26 * np.std(values), rel=0.5)


def test_values_missing_from_the_training_or_test_rows_are_left_out():
    codes, factors = made(40)
    factors[:, 2] = 0
    factors[0, 2] = 1  # in one row only: either nothing to learn from, or nothing to test
    for seed in range(6):
        score = explicitness(codes, factors, train=20, test=20, seed=seed)
        assert np.isfinite(score.value)
        assert score.details["auc"]["v2"] is None or 0 <= score.details["auc"]["v2"] <= 1


def test_dead_and_copied_latents_change_no_explicitness():
    codes, factors = made()
    plain = explicitness(codes, factors)
    dead = explicitness(np.column_stack([codes, np.full(len(codes), -4.0)]), factors)
    assert dead.value == pytest.approx(plain.value, abs=1e-9)
    assert explicitness(np.zeros((600, 2)), factors).value == pytest.approx(0, abs=1e-12)
    assert explicitness(torch.as_tensor(codes), torch.as_tensor(factors)).value == plain.value


@pytest.mark.parametrize("function", [modularity, explicitness])
@pytest.mark.parametrize(
    ("codes", "factors", "settings", "facts"),
    [
        (np.full((9, 2), np.nan), full_grid((3, 3)), {}, ["NaN"]),
        (np.zeros((9, 2)), full_grid((2, 4)), {}, [9, 8]),
        (np.zeros((9, 2)), np.zeros((9, 2)), {}, ["v0"]),
        (np.zeros((1, 2)), [[0, 1]], {}, ["rows"]),
        (np.zeros(9), full_grid((3, 3)), {}, ["shape"]),
    ],
)
def test_bad_input_is_named(function, codes, factors, settings, facts):
    with pytest.raises((UsageError, DataError), match=naming(*facts)):
        function(codes, factors, **settings)


def test_settings_out_of_range_are_named():
    codes, factors = made(30)
    with pytest.raises(UsageError, match=naming("Modularity", "factors")):
        modularity(codes, factors[:, 0])
    with pytest.raises(UsageError, match="bins"):
        modularity(codes, factors, bins=1)
    with pytest.raises(UsageError, match="samples"):
        modularity(codes, factors, samples=1)
    with pytest.raises(UsageError, match=naming("C", 0)):
        explicitness(codes, factors, C=0.0)


def test_registered_protocols():
    grid = np.tile(full_grid((3, 4)), (20, 1))
    means = np.column_stack([grid + 0.1 * np.random.default_rng(0).standard_normal(grid.shape), np.zeros(len(grid))])
    evaluation = fixed_evaluation(means, np.ones_like(means), grid)
    names = [f"modularity/{protocol}" for protocol in ("histogram-mean", "disentanglement_lib")]
    names += [f"explicitness/{protocol}" for protocol in ("logistic", "disentanglement_lib")]
    found = {score.name: score for score in evaluate(evaluation, names)}
    assert found["modularity/histogram-mean"].value > 0.95
    assert found["modularity/disentanglement_lib"].value == pytest.approx(2 / 3, abs=0.03)
    assert found["explicitness/disentanglement_lib"].value > 0.98
    assert found["explicitness/logistic"].samples == 240
    assert found["explicitness/disentanglement_lib"].samples == 15_000
