"""Linear classifiers against scikit-learn, against their own optimality conditions, and on data that is hard to fit."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from scipy.optimize import minimize
from sklearn.linear_model import LogisticRegression
from sklearn.svm import LinearSVC

from unbraid.metrics.predictive import linear_svm as linear, newton
from unbraid.metrics.predictive.linear_svm import ROWS_PER_STRETCH, SortedTable, find_highest_lines, fit_lines
from unbraid.metrics.predictive.logistic import fit_one_vs_rest, standardise
from unbraid.metrics.predictive.softmax import fit_softmax

SIZES = (2, 3, 7)


def made(rows=500, seed=0, noise=0.4):
    """Codes that mix three factors, one of two values; the values of the last are not equally frequent."""
    rng = np.random.default_rng(seed)
    factors = np.stack([rng.integers(0, s, rows) for s in SIZES], axis=1)
    factors[:, 2] = np.minimum(factors[:, 2], rng.integers(0, 7, rows))
    codes = (factors - factors.mean(0)) @ rng.standard_normal((3, 4)) + noise * rng.standard_normal((rows, 4))
    return codes * [0.1, 1, 3, 1] + [0, 5, -2, 0], factors


def reference_svm(x, y):
    return LinearSVC(C=0.01, class_weight="balanced", dual=False, tol=1e-12, max_iter=100_000).fit(x[:, None], y)


def predict_rows(model, codes):
    """Return what each latent predicts [rows, latents, factors], in the order of the rows."""
    table = SortedTable.of(codes, np.zeros((len(codes), 1), dtype=np.int64))
    ascending = model.predict(table)
    predicted = np.empty_like(ascending)
    np.put_along_axis(predicted, np.broadcast_to(table.order, ascending.shape), ascending, axis=2)
    return predicted.transpose(2, 1, 0)


def svm_loss(x, y, values, positive):
    """The objective of one problem, written out: balanced weights as LIBLINEAR gives them."""
    count = {v: (y == v).sum() for v in values}
    own = len(x) / (len(values) * count[positive])
    rest = len(x) / (2 * count[values[0]]) if len(values) == 2 else 1.0
    weight, sign = np.where(y == positive, own, rest), np.where(y == positive, 1.0, -1.0)

    def loss(parameters):
        w, b = parameters
        return 0.5 * (w * w + b * b) + 0.01 * (weight * np.maximum(0, 1 - sign * (w * x + b)) ** 2).sum()

    return loss


def test_support_vector_machines_are_scikit_learns():
    codes, factors = made()
    model = fit_lines(SortedTable.of(codes, factors))
    predicted = predict_rows(model, codes)
    for j, x in enumerate(codes.T):
        for k, y in enumerate(factors.T):
            expected = reference_svm(x, y)
            np.testing.assert_allclose(model.weight[j, model.blocks[k]], expected.coef_[:, 0], atol=1e-6)
            np.testing.assert_allclose(model.offset[j, model.blocks[k]], expected.intercept_, atol=1e-6)
            assert (predicted[:, j, k] == expected.predict(x[:, None])).mean() > 0.999


def test_support_vector_machines_minimise_the_loss_as_written():
    codes, factors = made(120)
    model = fit_lines(SortedTable.of(codes, factors))
    for k, positive, place in ((0, 1, 0), (1, 0, 0), (1, 2, 2), (2, 3, 3)):
        values = np.unique(factors[:, k])
        loss = svm_loss(codes[:, 1], factors[:, k], values, positive)
        found = model.weight[1, model.blocks[k]][place], model.offset[1, model.blocks[k]][place]
        best = minimize(loss, [0.0, 0.0], method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-12})
        assert loss(found) <= best.fun + 1e-9
        np.testing.assert_allclose(found, best.x, atol=1e-5)


@given(
    seed=st.integers(0, 10_000),
    rows=st.integers(2, 40),
    values=st.integers(2, 5),
    scale=st.sampled_from([1e-4, 1.0, 1e4]),
    shift=st.sampled_from([0.0, 1.0, -300.0]),
    ties=st.booleans(),
)
@settings(max_examples=60)
def test_no_small_move_lowers_the_loss(seed, rows, values, scale, shift, ties):
    rng = np.random.default_rng(seed)
    x = rng.integers(-2, 3, rows) if ties else rng.standard_normal(rows)
    x = scale * (x + shift)
    y = rng.integers(0, values, rows)
    present = np.unique(y)
    table = SortedTable.of(x[:, None], y[:, None])
    model = fit_lines(table)
    if len(present) == 1:
        assert (model.predict(table) == present[0]).all()
        return
    for place, positive in enumerate(present[1:] if len(present) == 2 else present):
        loss = svm_loss(x, y, present, positive)
        w, b = model.weight[0, place], model.offset[0, place]
        spread = max(1.0, np.abs(x).max())
        for move in ((1e-3 / spread, 0), (-1e-3 / spread, 0), (0, 1e-3), (0, -1e-3), (1e-3 / spread, -1e-3)):
            assert loss((w, b)) <= loss((w + move[0], b + move[1])) + 1e-9


def test_columns_of_very_different_scale_do_not_disturb_each_other(monkeypatch):
    codes, factors = made(200)
    codes = np.concatenate([codes, 1e9 * codes[:, :1], np.full((200, 1), 7.0)], axis=1)
    table = SortedTable.of(codes, factors)
    together = fit_lines(table)
    predicted = together.predict(table)
    monkeypatch.setattr(linear, "MAX_ENTRIES", 1)
    alone = fit_lines(table)
    np.testing.assert_array_equal(together.predict(table), predicted)
    np.testing.assert_allclose(together.weight, alone.weight, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(together.offset, alone.offset, rtol=1e-9, atol=1e-12)
    expected = reference_svm(codes[:, 5], factors[:, 1])
    np.testing.assert_allclose(together.offset[5, together.blocks[1]], expected.intercept_, atol=1e-6)
    assert np.isfinite(together.weight).all()


def test_a_line_at_the_margin_stays_there_while_others_take_more_steps():
    codes, factors = made(300)
    codes, factors = np.column_stack([np.full(300, 1e6), codes]), np.column_stack([np.zeros(300, dtype=int), factors])
    model = fit_lines(SortedTable.of(codes, factors), C=100.0)
    assert model.weight[0, 0] * 1e6 + model.offset[0, 0] == pytest.approx(1)


@given(
    seed=st.integers(0, 10_000),
    rows=st.sampled_from([1, 2, ROWS_PER_STRETCH, ROWS_PER_STRETCH + 1, 300]),
    lines=st.sampled_from([1, 2, 3, 40]),
    digits=st.sampled_from([None, 0, 1]),
)
@settings(max_examples=150)
def test_the_first_of_the_highest_lines_is_found_at_every_row(seed, rows, lines, digits):
    """Rounded numbers make ties: rows where lines cross, parallel and equal lines, zero slopes, constant latents."""
    rng = np.random.default_rng(seed)
    weight, offset = rng.standard_normal((2, 4, lines))
    x = rng.standard_normal((4, rows)) * [[1], [100], [1e-3], [0]] + [[0], [0], [5], [0.1]]
    if digits is not None:
        weight, offset, x = (of.round(digits) for of in (weight, offset, x))
    weight[0, lines // 2 :] = 0.0
    x.sort(axis=1)
    expected = (weight[:, :, None] * x[:, None] + offset[:, :, None]).argmax(1)
    np.testing.assert_array_equal(find_highest_lines(weight, offset, x), expected)


@pytest.mark.parametrize("size", [2, 5, 40, 250])
def test_rows_of_a_sorted_table_are_fitted_like_a_table_of_their_own(size):
    codes, factors = made(300)
    codes = np.column_stack([codes, codes[:, 0].round(), np.full(300, 0.1)])
    table, rng = SortedTable.of(codes, factors), np.random.default_rng(1)
    for _ in range(5):
        train, test = rng.permutation(300)[:size], rng.permutation(300)[:size]
        model, some = fit_lines(table.select(train)), table.select(test)
        alone = fit_lines(SortedTable.of(codes[train], factors[train]))
        np.testing.assert_array_equal(model.weight, alone.weight)
        np.testing.assert_array_equal(model.offset, alone.offset)
        for values, column in zip(model.values, factors[train].T, strict=True):
            np.testing.assert_array_equal(values, np.unique(column))
        hits = (predict_rows(alone, codes[test]) == factors[test][:, None, :]).mean(0)
        np.testing.assert_array_equal((model.predict(some) == some.ascending_labels()).mean(2).T, hits)


def probabilities(model, codes):
    return [log_p.exp().numpy() for log_p in model.log_probabilities(torch.as_tensor(codes))]


@pytest.mark.parametrize("rows", [60, 500, 5_000])  # the last starts from an eighth of the rows
@pytest.mark.parametrize("C", [0.01, 1.0, 50.0])
def test_softmax_regression_is_scikit_learns(rows, C):
    codes, factors = made(rows)
    codes = (codes - codes.mean(0)) / codes.std(0)
    model = fit_softmax(torch.as_tensor(codes), factors, C=C)
    for k, found in enumerate(probabilities(model, codes)):
        expected = LogisticRegression(C=C, tol=1e-10, max_iter=20_000).fit(codes, factors[:, k])
        np.testing.assert_allclose(found, expected.predict_proba(codes), atol=1e-5)
        assert (model.predict(torch.as_tensor(codes))[:, k] == expected.predict(codes)).mean() > 0.99


@pytest.mark.parametrize("balanced", [False, True])
def test_a_start_saves_hessians_and_ends_at_the_same_place(monkeypatch, balanced):
    codes, factors = made(2_000)
    codes = torch.as_tensor((codes - codes.mean(0)) / codes.std(0))
    whole, counted = fit_softmax(codes, factors, balanced=balanced), []
    factorise = newton._factorise
    monkeypatch.setattr(newton, "_factorise", lambda matrices: counted.append(1) or factorise(matrices))
    found = []
    for start in (None, whole):
        counted.clear()
        model = fit_softmax(codes[:1_000], factors[:1_000], C=2.0, balanced=balanced, start=start)
        found.append((model.logits(codes), len(counted)))
    torch.testing.assert_close(found[0][0], found[1][0], atol=1e-3, rtol=0)
    assert found[1][1] < found[0][1] / 2


def test_balanced_classes_are_scikit_learns():
    codes, factors = made()
    codes = (codes - codes.mean(0)) / codes.std(0)
    model = fit_softmax(torch.as_tensor(codes), factors, balanced=True)
    for k, found in enumerate(probabilities(model, codes)):
        expected = LogisticRegression(class_weight="balanced", tol=1e-10, max_iter=20_000).fit(codes, factors[:, k])
        np.testing.assert_allclose(found, expected.predict_proba(codes), atol=1e-5)


@pytest.mark.parametrize("rows", [60, 5_000])
def test_one_value_against_the_rest_is_scikit_learns(rows):
    codes, factors = made(rows)
    codes = (codes - codes.mean(0)) / codes.std(0)
    model = fit_one_vs_rest(torch.as_tensor(codes), factors)
    found = model.logits(torch.as_tensor(codes)).sigmoid().numpy()
    for k, block in enumerate(model.blocks):
        for value, column in zip(model.values[k], found[:, block].T, strict=True):
            expected = LogisticRegression(tol=1e-10, max_iter=20_000).fit(codes, factors[:, k] == value)
            np.testing.assert_allclose(column, expected.predict_proba(codes)[:, 1], atol=1e-5)


def test_wide_codes_take_another_way_to_the_same_place(monkeypatch):
    codes, factors = made()
    codes = torch.as_tensor((codes - codes.mean(0)) / codes.std(0))
    narrow = fit_softmax(codes, factors), fit_one_vs_rest(codes, factors)
    monkeypatch.setattr(newton.InputPairs, "affordable", lambda self, others: False)
    wide = fit_softmax(codes, factors), fit_one_vs_rest(codes, factors)
    for a, b in zip(narrow, wide, strict=True):
        torch.testing.assert_close(a.logits(codes), b.logits(codes), atol=1e-3, rtol=0)


@pytest.mark.parametrize("fit", [fit_softmax, fit_one_vs_rest])
@pytest.mark.parametrize("C", [1.0, 1e8])
@pytest.mark.parametrize("case", ["separable", "constant", "duplicated", "tiny", "wide", "one value", "raw scale"])
def test_hard_data_end_in_finite_weights(fit, C, case):
    rng = np.random.default_rng(0)
    y = np.repeat([0, 1, 2], 20)
    x = {
        "separable": y[:, None] * 10.0,
        "constant": np.full((60, 2), 3.0),
        "duplicated": np.repeat(rng.standard_normal((60, 1)) + y[:, None], 4, axis=1),
        "tiny": rng.standard_normal((60, 2)),
        "wide": rng.standard_normal((60, 90)),
        "one value": rng.standard_normal((60, 2)),
        "raw scale": rng.standard_normal((60, 2)) * [1e5, 1e-5],
    }[case]
    rows = {"tiny": np.array([0, 20, 40]), "one value": np.arange(20)}.get(case, np.arange(60))
    x, y = torch.as_tensor(x[rows]), y[rows][:, None]
    model = fit(x, y, C=C)
    assert torch.isfinite(model.weights).all()
    assert {float(v) for v in model.predict(x)[:, 0]} <= set(y[:, 0].tolist())
    if fit is fit_softmax:
        log_loss = -model.log_probabilities(x)[0].gather(1, torch.as_tensor(y)).mean()
        assert float(log_loss) <= np.log(len(np.unique(y))) + 1e-12
        if C > 1 and case in ("separable", "tiny", "wide"):
            assert float(log_loss) < 1e-3


def test_unpenalised_softmax_takes_separable_values_apart():
    """Forty values on one line: the loss of a softmax has no minimum there, and comes near 0."""
    y = np.tile(np.arange(40), 50)
    (x,) = standardise(torch.as_tensor(y[:, None].astype(float)))
    model = fit_softmax(x, y[:, None], C=1e10 / len(y), balanced=True, precision=1e-7)
    assert (model.predict(x)[:, 0] == y).all()
    assert float(-model.log_probabilities(x)[0].gather(1, torch.as_tensor(y)[:, None]).mean()) < 0.02


def test_standardised_by_the_training_rows():
    train, test = torch.tensor([[1.0, 5.0], [3.0, 5.0]]), torch.tensor([[5.0, 6.0]])
    a, b = standardise(train, test)
    assert a.tolist() == [[-1, 0], [1, 0]]
    assert b.tolist() == [[3, 0]]


@pytest.mark.gpu
def test_logistic_regression_stays_on_the_device():
    codes, factors = made(5_000)
    codes = torch.as_tensor((codes - codes.mean(0)) / codes.std(0))
    for fit in (fit_softmax, fit_one_vs_rest):
        there = fit(codes.cuda(), factors)
        assert there.weights.is_cuda
        torch.testing.assert_close(there.weights.cpu(), fit(codes, factors).weights, atol=1e-4, rtol=1e-3)


@pytest.mark.slow
def test_as_many_rows_as_scores_take_are_classified_as_by_scikit_learn():
    """10,000 x 10 codes: all latents against 6 factors, and 40 values by softmax; benchmarks/metrics.py times them."""
    rng = np.random.default_rng(0)
    factors = np.stack([rng.integers(0, s, 10_000) for s in (3, 6, 40, 32, 32, 10)], axis=1)
    known = np.concatenate([(factors - factors.mean(0)) / factors.std(0), np.zeros((10_000, 4))], axis=1)
    codes = known @ np.linalg.qr(rng.standard_normal((10, 10)))[0] + 0.1 * rng.standard_normal((10_000, 10))
    predicted = predict_rows(fit_lines(SortedTable.of(codes, factors)), codes[:5_000])
    for j, x in enumerate(codes.T):
        for k, y in enumerate(factors.T):
            assert (predicted[:, j, k] == reference_svm(x, y).predict(x[:5_000, None])).mean() > 0.999
    expected = LogisticRegression(tol=1e-8, max_iter=5_000).fit(codes, factors[:, 2]).predict(codes)
    found = fit_softmax(torch.as_tensor(codes), factors[:, [2]]).predict(torch.as_tensor(codes))[:, 0]
    assert (np.asarray(found) == expected).mean() > 0.999
