"""DCI against its oracle, its paper's text in loops, and the library whose protocol it offers."""

import json
import math

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given, settings, strategies as st
from sklearn.ensemble import GradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import Lasso, LassoCV

from tests.support.evaluations import fixed_evaluation
from tests.support.messages import naming
from tests.support.slow_dci import oracle_data, slow_accuracy, slow_completeness, slow_disentanglement, slow_r2
from unbraid.errors import DataError, UsageError
from unbraid.metrics import Evaluation, evaluate, metric
from unbraid.metrics.predictive.dci import dci
from unbraid.metrics.predictive.lasso_penalty import choose_penalty
from unbraid.metrics.predictive.predictors import rescale
from unbraid.metrics.train_test_split import TrainTestRows

PREDICTORS = ["gbt", "booster", "random-forest", "lasso"]
GBT_SLOW = [pytest.param("gbt", marks=pytest.mark.slow), "booster", "random-forest", "lasso"]
FAST = ["random-forest", "lasso"]
PROTOCOLS = [*(f"dci/{name}" for name in PREDICTORS), "dci/disentanglement_lib"]

TRAIN, TRAIN_FACTORS = oracle_data(1000, 0)
TEST, TEST_FACTORS = oracle_data(500, 1)
CODES, FACTORS = oracle_data(150, 2)


def dci_split(train_codes, train_factors, test_codes, test_factors, **settings):
    """DCI learnt from some rows and asked about others."""
    rows = np.split(np.arange(len(train_codes) + len(test_codes)), [len(train_codes)])
    pairs = (train_codes, test_codes), (train_factors, test_factors)
    return dci(*(np.concatenate(pair) for pair in pairs), rows=TrainTestRows(*rows), **settings)


def values(scores):
    return [score.value for score in scores]


def matrix(score):
    """R [codes][factors] as the details tell it."""
    return [list(row) for row in zip(*score.details["importance"].values(), strict=True)]


@pytest.mark.parametrize(
    ("predictor", "expected"),
    [
        pytest.param("gbt", (0.487, 0.520, 0.697), marks=pytest.mark.slow),
        ("random-forest", (0.295, 0.294, 0.709)),
    ],
)
def test_scikit_learn_predictors_meet_the_oracle(predictor, expected):
    """tests/oracles.md, row 4."""
    scores = dci_split(TRAIN, TRAIN_FACTORS, TEST, TEST_FACTORS, predictor=predictor)
    assert values(scores) == pytest.approx(expected, abs=0.02)
    assert [score.name for score in scores] == [
        f"dci/{predictor}/{part}" for part in ("disentanglement", "completeness", "informativeness")
    ]


def test_the_booster_comes_near_gbt(record_property):
    """tests/oracles.md, row 4, GradientBoosting."""
    found = values(dci_split(TRAIN, TRAIN_FACTORS, TEST, TEST_FACTORS, predictor="booster"))
    expected = (0.487, 0.520, 0.697)
    record_property("gap", [round(a - b, 4) for a, b in zip(found, expected, strict=True)])
    assert found == pytest.approx(expected, abs=0.02)


@pytest.mark.parametrize("predictor", GBT_SLOW)
def test_scores_are_those_of_the_papers_text(predictor):
    scores = dci_split(CODES, FACTORS[:, :2], TEST[:60], TEST_FACTORS[:60, :2], predictor=predictor)
    importance = matrix(scores[0])
    assert scores[0].value == pytest.approx(slow_disentanglement(importance), abs=1e-12)
    assert scores[1].value == pytest.approx(slow_completeness(importance), abs=1e-12)
    assert scores[2].value == pytest.approx(np.mean(list(scores[2].details["each"].values())), abs=1e-12)


@settings(max_examples=20)
@given(st.integers(0, 10_000), st.integers(1, 5), st.integers(1, 5), st.floats(0, 1))
def test_entropies_are_right_for_any_importance(seed, codes, factors, empty):
    from unbraid.metrics.predictive.dci import _measure_concentration

    r = np.random.default_rng(seed)
    importance = r.random((codes, factors)) * (r.random((codes, factors)) >= empty)
    found, details = _measure_concentration(importance, [f"z{i}" for i in range(codes)], 0.0)
    if not importance.any():
        assert found == 0
    elif factors == 1:
        assert found == pytest.approx(1)
    else:
        assert found == pytest.approx(slow_disentanglement(importance.tolist()), abs=1e-12)
    assert 0 <= found <= 1
    assert all(0 <= value <= 1 for value in details["each"].values())


@pytest.mark.parametrize(
    ("predictor", "model"), [("gbt", GradientBoostingClassifier), ("random-forest", RandomForestClassifier)]
)
def test_importance_and_accuracy_are_scikit_learns(predictor, model):
    scores = dci_split(CODES, FACTORS[:, 0], TEST, TEST_FACTORS[:, 0], predictor=predictor)
    fitted = model(random_state=0).fit(CODES, FACTORS[:, 0])
    accuracy = slow_accuracy(fitted.predict(TEST), TEST_FACTORS[:, 0])
    assert scores[0].details["importance"]["v0"] == pytest.approx(fitted.feature_importances_, abs=1e-12)
    assert scores[2].value == pytest.approx(accuracy, abs=1e-12)


def test_lasso_is_linear_regression_on_standardised_values():
    scores = dci_split(TRAIN, TRAIN_FACTORS, TEST, TEST_FACTORS, predictor="lasso", alpha=0.02)
    standard = (TRAIN - TRAIN.mean(0)) / TRAIN.std(0)
    asked = (TEST - TRAIN.mean(0)) / TRAIN.std(0)
    for k in range(3):
        mean, spread = TRAIN_FACTORS[:, k].mean(), TRAIN_FACTORS[:, k].std()
        fitted = Lasso(alpha=0.02, tol=1e-9).fit(standard, (TRAIN_FACTORS[:, k] - mean) / spread)
        r2 = slow_r2(mean + spread * fitted.predict(asked), TEST_FACTORS[:, k])
        assert scores[0].details["importance"][f"v{k}"] == pytest.approx(np.abs(fitted.coef_), abs=1e-9)
        assert scores[2].details["each"][f"v{k}"] == pytest.approx(r2, abs=1e-9)
        assert scores[2].details["error"][f"v{k}"] == pytest.approx(math.sqrt(1 - r2), abs=1e-9)


@pytest.mark.parametrize("rows", [11, len(TRAIN)])
def test_the_penalty_of_lasso_is_that_of_scikit_learn(rows):
    standard = (TRAIN[:rows] - TRAIN[:rows].mean(0)) / TRAIN[:rows].std(0)
    for target in TRAIN_FACTORS[:rows].T.astype(float):
        expected = LassoCV(cv=5, tol=1e-9, max_iter=10_000).fit(standard, target).alpha_
        assert choose_penalty(standard, target) == pytest.approx(expected, rel=1e-12)
        assert choose_penalty(np.zeros_like(standard), target) is None  # no path to follow


def test_a_cross_validated_lasso_knows_rotation_from_noise():
    d, _, i = dci(TRAIN, TRAIN_FACTORS, predictor="lasso")
    assert max(i.details["importance"]["v0"][3:]) < 0.05
    assert d.details["each"]["z0"] > 0.8
    assert i.value > 0.8


def slow_disentanglement_lib(codes, factors, train, test, seed):
    """disentanglement_lib's protocol: rows with repetition, scipy's entropies of importances + 1e-11."""
    r = np.random.default_rng(seed)
    learnt, asked = r.integers(len(codes), size=train), r.integers(len(codes), size=test)
    importance, right, right_train = np.zeros((codes.shape[1], factors.shape[1])), [], []
    for k in range(factors.shape[1]):
        model = GradientBoostingClassifier(random_state=seed).fit(codes[learnt], factors[learnt, k])
        importance[:, k] = np.abs(model.feature_importances_)
        right.append(np.mean(model.predict(codes[asked]) == factors[asked, k]))
        right_train.append(np.mean(model.predict(codes[learnt]) == factors[learnt, k]))
    d = 1 - scipy.stats.entropy(importance.T + 1e-11, base=importance.shape[1])
    c = 1 - scipy.stats.entropy(importance + 1e-11, base=importance.shape[0])
    weigh = [importance.sum(axis) / importance.sum() for axis in (1, 0)]
    return [np.sum(d * weigh[0]), np.sum(c * weigh[1]), np.mean(right)], np.mean(right_train)


@pytest.mark.parametrize(("rows", "gap"), [(400, 1e-12), (60, 0.01)])
def test_compat_follows_disentanglement_lib(rows, gap):
    """Of few rows, weights stand for repetitions: the same trees but for ties."""
    codes, factors = TRAIN[:rows], np.stack([TRAIN_FACTORS[:rows, 0], TRAIN_FACTORS[:rows, 1] // 2], axis=1)
    expected, train = slow_disentanglement_lib(codes, factors, 200, 100, seed=3)
    scores = dci(codes, factors, compat="disentanglement_lib", train=200, test=100, seed=3)
    assert values(scores) == pytest.approx(expected, abs=gap)
    assert scores[2].details["train_mean"] == pytest.approx(train, abs=gap)
    assert {(score.protocol, score.predictor) for score in scores} == {("disentanglement_lib", "gbt")}


def test_its_cover_gives_what_the_function_gives():
    evaluation = fixed_evaluation(CODES, np.full(CODES.shape, 0.1), FACTORS[:, :1], seed=2)
    covered = evaluate(evaluation, ["dci/disentanglement_lib"], train=150, test=50)
    plain = dci(evaluation.means, FACTORS[:, :1], compat="disentanglement_lib", train=150, test=50, seed=2)
    assert values(covered) == pytest.approx(values(plain), abs=1e-3)


@pytest.mark.parametrize("predictor", PREDICTORS)
def test_real_factors_are_regressed(predictor):
    angle = np.sin(CODES[:, 1]) + 0.01 * CODES[:, 0]
    table = np.stack([FACTORS[:, 0], angle], axis=1)
    d, _, i = dci(CODES, table, predictor=predictor, names=("shape", "angle"))
    assert i.details["measure"]["angle"] == "R2"
    assert i.details["measure"]["shape"] == ("R2" if predictor == "lasso" else "accuracy")
    assert i.details["each"]["angle"] > 0.5
    assert np.argmax(d.details["importance"]["angle"]) == 1


def test_a_factor_can_be_declared_continuous():
    for factors, continuous in ((FACTORS, ("v2",)), (FACTORS.astype(str), ("v2",))):
        i = dci(CODES[:60], factors[:60], continuous=continuous)[2]
        assert i.details["measure"] == {"v0": "accuracy", "v1": "accuracy", "v2": "R2"}


@pytest.mark.parametrize("predictor", FAST)
def test_words_and_class_numbers_score_alike(predictor):
    words = np.array([["a", "b", "c", "d", "e", "f", "g", "h"][v] for v in FACTORS[:, 1]])
    assert values(dci(CODES, words, predictor=predictor)) == values(dci(CODES, FACTORS[:, 1], predictor=predictor))


def test_torch_and_numpy_agree_and_the_seed_decides():
    factors = FACTORS[:, :1]
    told = dci(torch.tensor(CODES), torch.tensor(factors), predictor="lasso")
    assert values(told) == values(dci(CODES, factors, predictor="lasso"))
    assert values(told) != values(dci(CODES, factors, predictor="lasso", seed=1))


def test_rows_are_divided_without_overlap():
    assert dci(CODES, FACTORS, predictor="lasso")[0].details["split"] == [100, 50]
    assert dci(CODES, FACTORS, predictor="lasso", train=60, test=20)[0].details["split"] == [60, 20]
    numbered = np.arange(30)[:, None]
    i = dci(numbered, np.arange(30), predictor="booster", train=20, test=10)[2]  # no class is met twice
    assert i.details["train"]["v0"] > 0.6
    assert i.value == 0


@pytest.mark.parametrize("predictor", GBT_SLOW)
def test_codes_that_do_not_vary_have_no_importance(predictor):
    codes = np.concatenate([CODES[:, :1], np.full((150, 1), 3.0)], axis=1)
    d, _, _ = dci(codes, FACTORS[:, 0], predictor=predictor)
    assert d.details["importance"]["v0"][1] == 0
    assert dci(codes * 1e30, FACTORS[:, 0], predictor=predictor)[0].value == d.value
    nothing = dci(np.ones((150, 2)), FACTORS[:, :2], predictor=predictor)
    assert values(nothing)[:2] == [0, 0]
    assert nothing[0].details["note"]


@pytest.mark.parametrize("predictor", FAST)
def test_one_factor_or_one_code_is_answered(predictor):
    assert dci(CODES, FACTORS[:, 0], predictor=predictor)[0].value == 1
    assert dci(CODES[:, :1], FACTORS[:, :2], predictor=predictor)[1].value == 1


@pytest.mark.parametrize("predictor", [p for p in PREDICTORS if p != "lasso"])
def test_few_rows_are_answered(predictor):
    for rows in (3, 4, 7):
        for score in dci(CODES[:rows], np.arange(rows) % 2, predictor=predictor):
            assert 0 <= score.value <= 1


def test_scale_and_offset_of_codes_do_not_matter():
    moved = CODES * [1e-12, 1e12, 1.0, 1e-30, 1e200] + [0.0, 0.0, 1e9, 0.0, 0.0]
    plain = values(dci(CODES, FACTORS[:, :2], predictor="random-forest"))
    assert values(dci(moved, FACTORS[:, :2], predictor="random-forest")) == pytest.approx(plain, abs=0.03)
    assert np.array_equal(rescale(CODES), rescale(CODES * 2.0**-70))
    assert rescale(moved).std(0) == pytest.approx(0.75, abs=0.26)


def test_only_informativeness_has_an_interval():
    d, c, i = dci(TRAIN, TRAIN_FACTORS, predictor="lasso")
    assert d.interval is None
    assert c.interval is None
    low, high = i.interval
    assert low < i.value < high
    assert i.covers == f"spread at {len(TRAIN):,} rows"
    forest = dci(TRAIN, TRAIN_FACTORS[:, :1], predictor="random-forest")[2]
    assert forest.interval is None
    assert "resamples=" in forest.covers


@pytest.mark.parametrize("name", ["dci/booster", "dci/lasso", "dci/random-forest"])
def test_details_can_be_stored(name):
    scores = evaluate(fixed_evaluation(CODES, np.full(CODES.shape, 0.1), FACTORS[:, :1]), [name])
    for score in scores:
        assert json.loads(json.dumps(score.as_record()))["predictor"] == name.partition("/")[2]
    assert {name, "dci/gbt"} <= set(metric)


@pytest.mark.parametrize(
    ("codes", "factors", "settings", "error", "fact"),
    [
        (CODES[:30], FACTORS, {}, UsageError, 30),
        (CODES[:, :0], FACTORS, {}, UsageError, "latent"),
        (np.full((150, 2), np.nan), FACTORS, {}, DataError, "NaN"),
        (CODES, np.zeros(150), {}, DataError, "v0"),
        (CODES, np.arange(150), {}, UsageError, "continuous"),
        (CODES, FACTORS, {"continuous": ("size",)}, UsageError, "size"),
        (CODES, np.where(FACTORS > 0, "big", "small"), {"continuous": ("v2",)}, DataError, "v2"),
        (CODES, FACTORS, {"names": ("a",)}, UsageError, 1),
        (CODES, FACTORS, {"latents": ("a",)}, UsageError, 1),
        (CODES, FACTORS, {"train": 0}, UsageError, "train"),
        (CODES[:2], FACTORS[:2, :1], {}, DataError, 3),
        (CODES, FACTORS, {"predictor": "lasso", "alpha": -1.0}, UsageError, "alpha"),
        (CODES[:6], FACTORS[:6], {"predictor": "lasso"}, UsageError, "alpha"),
        (CODES, FACTORS, {"compat": "disentanglement_lib", "predictor": "lasso"}, UsageError, "gbt"),
        (CODES * 1e300, FACTORS, {"compat": "disentanglement_lib"}, DataError, "float32"),
    ],
)
def test_bad_input_is_refused(codes, factors, settings, error, fact):
    with pytest.raises(error, match=naming(fact)):
        dci(codes, factors, **settings)


@pytest.mark.gpu
def test_cuda_codes_are_boosted_where_they_are():
    there = values(dci(torch.tensor(CODES, device="cuda"), FACTORS, predictor="booster"))
    assert there == pytest.approx(values(dci(CODES, FACTORS, predictor="booster")), abs=1e-3)


@pytest.mark.gpu
def test_forests_of_cuda_codes_score_as_scikit_learns():
    there = values(dci(torch.tensor(CODES, device="cuda"), FACTORS, predictor="random-forest"))
    assert there == pytest.approx(values(dci(CODES, FACTORS, predictor="random-forest")), abs=0.06)


@pytest.mark.slow
def test_gap_to_gbt_on_more_rows(record_property):
    codes, factors = oracle_data(6000, 5)
    expected, found = (values(dci(codes, factors, predictor=name)) for name in ("gbt", "booster"))
    record_property("gap", [round(a - b, 4) for a, b in zip(found, expected, strict=True)])
    assert found == pytest.approx(expected, abs=0.02)


def test_evaluations_may_be_smaller_than_asked_for():
    evaluation = fixed_evaluation(CODES, np.full(CODES.shape, 0.1), FACTORS)
    assert isinstance(evaluation, Evaluation)
    assert evaluate(evaluation, ["dci/lasso"])[0].samples == 150
