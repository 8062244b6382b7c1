"""The batched booster against scikit-learn's gradient boosting and against a plain one."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from sklearn.ensemble import GradientBoostingClassifier, GradientBoostingRegressor

from tests.support.slow_dci import oracle_data, slow_boosting
from unbraid.errors import UsageError
from unbraid.metrics.predictive import booster
from unbraid.metrics.predictive.booster import Target, boost

CODES, FACTORS = oracle_data(400, 0)
ASKED, TRUTH = oracle_data(200, 1)


def targets(factors=FACTORS, sizes=(3, 6, 8)):
    return [Target(factors[:, k], size) for k, size in enumerate(sizes)]


@pytest.mark.parametrize(("depth", "gap"), [(2, 1e-8), (3, 1e-3)])
def test_trees_equal_those_of_a_plain_boosting(depth, gap):
    """Codes of a few values each: two of them split a node equally well only far down."""
    codes, factors = oracle_data(600, 3)
    codes = np.round(1.5 * codes[:, :3])
    importance, p = slow_boosting(codes, factors[:, 1], 6, stages=3, depth=depth)
    (made,) = boost(codes, [Target(factors[:, 1], 6)], codes, stages=3, depth=depth)
    assert made.importance == pytest.approx(importance, abs=gap)
    assert np.mean(made.train == p.argmax(1)) > 0.99
    assert np.array_equal(made.train, made.test)


@pytest.mark.parametrize("factor", [0, 1])
def test_one_stage_is_scikit_learns(factor):
    """The first trees have nothing to tie: importances and predictions agree to rounding."""
    size = int(FACTORS[:, factor].max()) + 1
    model = GradientBoostingClassifier(random_state=0, n_estimators=1, max_depth=2).fit(CODES, FACTORS[:, factor])
    (made,) = boost(CODES, [Target(FACTORS[:, factor], size)], ASKED, stages=1, depth=2)
    assert made.importance == pytest.approx(model.feature_importances_, abs=1e-6)
    assert np.array_equal(made.test, model.predict(ASKED))


@pytest.mark.slow  # test_one_stage_is_scikit_learns is quick, and test_dci.py compares scores of a hundred stages
def test_hundred_stages_are_scikit_learns_up_to_ties():
    for made, target in zip(boost(CODES, targets(), ASKED), targets(), strict=True):
        model = GradientBoostingClassifier(random_state=0).fit(CODES, target.values)
        assert made.importance == pytest.approx(model.feature_importances_, abs=0.01)
        assert np.mean(made.train == model.predict(CODES)) > 0.99
        assert np.mean(made.test == model.predict(ASKED)) > 0.95


def test_two_classes_take_one_tree_per_stage():
    wanted = (FACTORS[:, 1] > 2).astype(int)
    model = GradientBoostingClassifier(random_state=0).fit(CODES, wanted)
    (made,) = boost(CODES, [Target(wanted, 2)], ASKED)
    assert made.importance == pytest.approx(model.feature_importances_, abs=0.01)
    assert np.mean(made.test == model.predict(ASKED)) > 0.97


def test_real_values_take_squared_error():
    wanted = 1000 + 50 * np.sin(CODES[:, 1]) + CODES[:, 0] ** 2
    model = GradientBoostingRegressor(random_state=0).fit(CODES, wanted)
    (made,) = boost(CODES, [Target(wanted, None)], ASKED)
    assert made.importance == pytest.approx(model.feature_importances_, abs=0.01)
    assert np.corrcoef(made.test, model.predict(ASKED))[0, 1] > 0.999
    assert made.train == pytest.approx(model.predict(CODES), abs=2.0)


def test_targets_do_not_know_of_each_other():
    kinds = [Target(FACTORS[:, 1], 6), Target((FACTORS[:, 0] > 0).astype(int), 2), Target(CODES[:, 1] ** 2, None)]
    together = boost(CODES, kinds, ASKED, stages=5)
    for target, made in zip(kinds, together, strict=True):
        (alone,) = boost(CODES, [target], ASKED, stages=5)
        assert alone.importance == pytest.approx(made.importance, abs=0.02)  # lots are drawn in another order


def test_few_bins_come_near_to_all_values():
    codes, factors = oracle_data(1500, 0)
    exact, binned = (boost(codes, targets(factors), ASKED, bins=bins, stages=30) for bins in (1500, 128))
    for one, other in zip(exact, binned, strict=True):
        assert other.importance == pytest.approx(one.importance, abs=0.05)
        assert np.mean(one.test == other.test) > 0.8


def test_numbers_do_not_depend_on_threads_or_pieces(monkeypatch):
    wanted = boost(CODES, targets(), ASKED, stages=10)
    monkeypatch.setattr(booster, "TREES_PER_JOB", 3)
    torch.set_num_threads(3)
    for one, other in zip(wanted, boost(CODES, targets(), ASKED, stages=10), strict=True):
        assert np.array_equal(one.importance, other.importance)
        assert np.array_equal(one.test, other.test)


def test_lots_decide_between_equal_codes():
    """Two copies of a code share what it is worth."""
    twice = np.repeat(CODES[:, :1], 2, axis=1)
    (made,) = boost(twice, [Target(FACTORS[:, 0], 3)], twice, seed=1)
    assert made.importance[0] == pytest.approx(0.5, abs=0.15)


def test_constant_codes_have_no_importance():
    codes = np.concatenate([np.zeros((400, 1)), CODES[:, :2], np.full((400, 1), 7.0)], axis=1)
    (made,) = boost(codes, [Target(FACTORS[:, 0], 3)], codes, stages=20)
    assert made.importance[[0, 3]].tolist() == [0.0, 0.0]
    assert made.importance.sum() == pytest.approx(1)


def test_a_perfect_code_is_found_exactly():
    codes = np.stack([FACTORS[:, 0], FACTORS[:, 1]], axis=1).astype(float)
    for k, made in enumerate(boost(codes, targets(FACTORS[:, :2], (3, 6)), codes)):
        assert made.importance[k] == pytest.approx(1, abs=0.01)
        assert np.array_equal(made.test, FACTORS[:, k])


@settings(max_examples=8)
@given(st.integers(0, 1000), st.integers(2, 40), st.integers(1, 4), st.integers(2, 5))
def test_any_small_data_is_answered(seed, rows, width, size):
    r = np.random.default_rng(seed)
    codes, wanted = r.integers(0, 4, (rows, width)).astype(float), np.arange(rows) % size
    made = boost(codes, [Target(wanted, size), Target(r.standard_normal(rows), None)], codes, stages=4)
    for fit in made:
        assert np.isfinite(fit.importance).all()
        assert np.isfinite(fit.test).all()
        assert fit.importance.sum() == pytest.approx(1) or not fit.importance.any()


@pytest.mark.parametrize("bins", [1, 2**15])
def test_bins_are_bounded(bins):
    with pytest.raises(UsageError, match="bins"):
        boost(CODES, targets(), ASKED, bins=bins)


@pytest.mark.gpu
@pytest.mark.parametrize("stages", [2, 4, 100])  # none is recorded, one is replayed, most are
def test_cuda_grows_the_same_trees(stages):
    both = (boost(CODES, targets(), ASKED, stages=stages, device=device) for device in ("cpu", "cuda"))
    for one, other in zip(*both, strict=True):
        assert other.importance == pytest.approx(one.importance, abs=1e-3)
        assert np.mean(one.test == other.test) > 0.99
    first, second = (boost(CODES, targets(), ASKED, device="cuda") for _ in range(2))
    assert all(np.array_equal(a.importance, b.importance) for a, b in zip(first, second, strict=True))
