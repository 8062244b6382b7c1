"""Softmax regressions that are fitted as one stack equal those of scikit-learn, one by one."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from unbraid.metrics.predictive import newton, softmax
from unbraid.metrics.predictive.softmax import fit_softmax, fit_softmax_each


def made(rows, seed):
    """Return codes [rows, 4], and factors with 2, 3 and 12 values; few rows do not have all of the last."""
    rng = np.random.default_rng(seed)
    factors = np.stack([rng.integers(0, size, rows) for size in (2, 3, 12)], axis=1)
    codes = rng.standard_normal((rows, 4))
    codes[:, :3] += factors / [1.0, 2.0, 6.0]
    return torch.as_tensor(codes), factors


@pytest.mark.parametrize(("rows", "balanced"), [(25, False), (25, True), (400, False), (5_000, True)])
def test_a_stack_equals_scikit_learn(rows, balanced):
    sets = [made(rows, seed) for seed in range(4)]
    models = fit_softmax_each([x for x, _ in sets], [labels for _, labels in sets], C=0.7, balanced=balanced)
    lacking = 0
    for (x, labels), model in zip(sets, models, strict=True):
        for k, column in enumerate(labels.T):
            learner = LogisticRegression(
                C=0.7, tol=1e-10, max_iter=10_000, class_weight="balanced" if balanced else None
            )
            expected = learner.fit(x.numpy(), column).predict_log_proba(x.numpy())
            found = model.log_probabilities(x)[k].numpy()
            assert list(model.values[k]) == list(learner.classes_)
            assert np.abs(found - expected).max() < 2e-4
            lacking += len(learner.classes_) < 12 and k == 2
    assert lacking == (0 if rows > 25 else 4)  # of a stack, some problems lack values that others have


def test_a_start_serves_all_problems_of_a_stack(monkeypatch):
    """With the Hessian of a fit to all rows, fits to its halves need hardly any of their own."""
    x, labels = made(2_000, 0)
    whole, counted, factorise = fit_softmax(x, labels), [], newton._factorise
    monkeypatch.setattr(newton, "_factorise", lambda matrices: counted.append(len(matrices)) or factorise(matrices))
    halves = [np.random.default_rng(seed).permutation(2_000)[:1_000] for seed in range(3)]
    settings = {"C": 2.0, "precision": 1e-12}
    models = fit_softmax_each([x[half] for half in halves], [labels[half] for half in halves], start=whole, **settings)
    with_start = len(counted)
    for half, model in zip(halves, models, strict=True):
        alone = fit_softmax(x[half], labels[half], **settings)
        assert (alone.weights - model.weights).abs().max() < 1e-4
    assert with_start < (len(counted) - with_start) / 3


def test_a_stack_is_divided_where_memory_would_not_hold_it(monkeypatch):
    sets = [made(100, seed) for seed in range(5)]
    asked = [x for x, _ in sets], [labels for _, labels in sets]
    whole, sizes, solve = fit_softmax_each(*asked), [], softmax._solve
    monkeypatch.setattr(softmax, "MAX_NUMBERS_OF_A_STACK", 2 * (12 * 5) ** 2)
    monkeypatch.setattr(
        softmax, "_solve", lambda problems, *given: sizes.append(problems.shape[0]) or solve(problems, *given)
    )
    for first, second in zip(whole, fit_softmax_each(*asked), strict=True):
        assert (first.weights - second.weights).abs().max() < 1e-6
    assert sizes == 3 * [2] + 3 * [2] + 3 * [1]  # for each of three factors


def test_wide_problems_of_a_stack_are_solved_without_a_hessian(monkeypatch):
    sets = [made(300, seed) for seed in range(2)]
    asked = [x for x, _ in sets], [labels for _, labels in sets]
    narrow = fit_softmax_each(*asked)
    monkeypatch.setattr(newton.InputPairs, "affordable", lambda self, others: False)
    for first, second in zip(narrow, fit_softmax_each(*asked), strict=True):
        assert (first.logits(sets[0][0]).softmax(1) - second.logits(sets[0][0]).softmax(1)).abs().max() < 1e-4
