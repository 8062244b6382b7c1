"""Random forests on a GPU against scikit-learn's; without a GPU, Triton's interpreter runs the kernels.

scikit-learn visits codes in random order, and so breaks ties between them. Trees of a single code, or with several rows
in each leaf, have no such ties.
"""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

from unbraid.errors import UsageError
from unbraid.kernels import INTERPRETED, without_kernels
from unbraid.metrics.predictive import downstream, forest, predictors
from unbraid.metrics.predictive.booster import Target
from unbraid.metrics.predictive.forest import can_grow, grow_forest
from unbraid.metrics.predictive.predictors import Problem, random_forest

pytest.importorskip("triton")

DEVICES = ["cpu"] if INTERPRETED else [pytest.param("cuda", marks=pytest.mark.gpu)]
BOTH = (True, False)


@pytest.fixture(params=DEVICES)
def device(request):
    return request.param


def draw(rows, codes=3, classes=3, seed=0, grid=None):
    """Codes, the last of them constant, and classes that the first two tell, with noise; `grid` rounds the codes."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, codes)).astype(np.float32).astype(np.float64)
    x = x if grid is None else np.round(x / grid) * grid
    x[:, -1] = 0.5 if codes > 1 else x[:, -1]
    signal = x[:, 0] + 0.5 * x[:, min(1, codes - 1)] + 0.3 * rng.standard_normal(rows)
    return x, np.clip(np.floor((signal + 2) / 4 * classes), 0, classes - 1).astype(int), signal


TREES = {
    "two classes": {"rows": 90, "classes": 2, "min_rows": 12},
    "five classes": {"rows": 90, "classes": 5, "min_rows": 12, "seed": 2},
    "one code, as many classes as rows in a block": {"rows": 70, "codes": 1, "classes": 40},
    "one code, one block": {"rows": 30, "codes": 1, "classes": 9},
    "repeated codes": {"rows": 100, "classes": 3, "grid": 0.5, "min_rows": 12},
    "one repeated code": {"rows": 80, "codes": 1, "classes": 6, "grid": 0.25},
    "many codes": {"rows": 40, "codes": 20, "classes": 2, "min_rows": 20},
}


@pytest.mark.parametrize("real", BOTH, ids=["real", "classes"])
@pytest.mark.parametrize("case", TREES)
def test_a_tree_is_scikit_learns(device, case, real):
    options = dict(TREES[case])
    min_rows = options.pop("min_rows", 2)
    (x, labels, numbers), (asked, _, _) = draw(**options), draw(**options | {"seed": 9})
    target = Target(100 + numbers, None) if real else Target(labels, int(labels.max()) + 1)
    make = DecisionTreeRegressor if real else DecisionTreeClassifier
    model = make(min_samples_split=min_rows, random_state=0).fit(x, target.values)
    settings = {"trees": 1, "bootstrap": False, "max_features": x.shape[1], "min_rows": min_rows}
    (made,) = grow_forest(x, [target], asked, device=device, **settings)
    assert made.importance == pytest.approx(model.feature_importances_, abs=1e-9)
    assert made.test == pytest.approx(model.predict(asked), abs=1e-9)


@pytest.mark.parametrize("real", BOTH, ids=["real", "classes"])
def test_rows_count_as_often_as_they_are_drawn(device, real):
    (x, labels, numbers), (asked, _, _) = draw(50, codes=1), draw(50, codes=1, seed=9)
    target = Target(numbers, None) if real else Target(labels, 3)
    draws = np.random.default_rng(5)
    draws.integers(2**62, size=1)  # the seed of the tree
    counts = np.bincount(draws.integers(50, size=50), minlength=50)
    model = (DecisionTreeRegressor if real else DecisionTreeClassifier)().fit(x, target.values, sample_weight=counts)
    (made,) = grow_forest(x, [target], asked, trees=1, seed=5, device=device)
    assert made.test == pytest.approx(model.predict(asked), abs=1e-9)


@pytest.mark.parametrize("real", BOTH, ids=["real", "classes"])
def test_forests_agree_with_scikit_learns_within_the_spread_over_seeds(device, real):
    (x, labels, numbers), (asked, truth, wanted) = draw(70, codes=5), draw(300, codes=5, seed=1)
    trees, fewest = (6, 12) if real else (10, 6)  # larger leaves, as the interpreter takes long
    target, truth = (Target(numbers, None), wanted) if real else (Target(labels, 3), truth)
    (made,) = grow_forest(x, [target], asked, trees=trees, min_rows=fewest, device=device)
    make = RandomForestRegressor if real else RandomForestClassifier
    models = [make(trees, min_samples_split=fewest, random_state=seed).fit(x, target.values) for seed in range(20)]
    rate = lambda p: 1 - np.mean((p - truth) ** 2) if real else np.mean(p == truth)  # noqa: E731
    for found, others in (
        (made.importance, [model.feature_importances_ for model in models]),
        (rate(made.test), [rate(model.predict(asked)) for model in models]),
    ):
        assert np.all(np.abs(found - np.mean(others, 0)) <= 4 * np.std(others, 0) + 1e-12)
    assert made.importance.sum() == pytest.approx(1)
    assert made.importance[-1] == 0


def test_a_seed_has_one_result(device):
    x, labels, numbers = draw(34)
    targets, settings = [Target(labels, 3), Target(numbers, None)], {"trees": 2, "min_rows": 6, "device": device}
    first, again, other = (grow_forest(x, targets, x, seed=seed, **settings) for seed in (3, 3, 4))
    for one, two, three in zip(first, again, other, strict=True):
        assert np.array_equal(one.importance, two.importance)
        assert np.array_equal(one.test, two.test)
        assert not np.array_equal(one.importance, three.importance)


@pytest.mark.slow
def test_targets_and_parts_do_not_know_of_each_other(device, monkeypatch):
    """Classes that a target does not have, or targets that a kernel grows beside, change nothing."""
    x, labels, numbers = draw(36, classes=4)
    targets = [Target(numbers, None), Target(labels % 2, 2), Target(np.full(36, 2), 3), Target(2 * labels, 7)]
    settings = {"trees": 3, "min_rows": 8, "device": device}
    together = grow_forest(x, targets, x, **settings)
    alone = [grow_forest(x, [target], x, **settings)[0] for target in targets]
    monkeypatch.setattr(forest, "MAX_SCRATCH_BYTES", 8 * 36 * 9 * 4)  # four trees
    for makes in zip(together, alone, grow_forest(x, targets, x, **settings), strict=True):
        for other in makes[1:]:
            assert np.array_equal(other.importance, makes[0].importance)
            assert np.array_equal(other.test, makes[0].test)


def test_one_class_is_predicted_for_all(device):
    x = draw(9)[0]
    (made,) = grow_forest(x, [Target(np.full(9, 2), 4)], x, trees=2, device=device)
    assert (made.test == 2).all()
    assert not made.importance.any()


@pytest.mark.parametrize("rows", [20, 90])
def test_leaves_of_several_classes_vote_by_shares(device, rows):
    """A code of two values: every tree has two leaves, whose shares are those of the rows that it drew."""
    rng = np.random.default_rng(0)
    x, labels = (np.arange(rows) % 2)[:, None].astype(float), rng.integers(0, 3, rows)
    (made,) = grow_forest(x, [Target(labels, 3)], np.array([[0.0], [1.0]]), trees=5, seed=7, device=device)
    draws = np.random.default_rng(7)
    draws.integers(2**62, size=5)  # the seeds of trees
    shares = np.zeros((2, 3))
    for _ in range(5):
        drawn = draws.integers(rows, size=rows)
        for value in (0, 1):
            found = np.bincount(labels[drawn][x[drawn, 0] == value], minlength=3)
            shares[value] += found / found.sum()
    assert made.test.tolist() == shares.argmax(1).tolist()


def test_equal_shares_go_to_the_first_class(device):
    """Weights that thirds and sixths of a vote cannot tell apart after rounding."""
    x, labels = np.zeros((12, 1)), np.array([2] * 6 + [1] * 6)
    (made,) = grow_forest(x, [Target(labels, 3)], x[:1], trees=2, bootstrap=False, device=device)
    assert made.test.tolist() == [1]
    assert not made.importance.any()


def test_a_node_visits_codes_until_one_varies(device):
    """With one code to draw and two constant ones, trees still split until all leaves are pure."""
    x, labels, _ = draw(40, codes=2)
    x = np.column_stack([np.full(40, 3.0), x])
    (made,) = grow_forest(x, [Target(labels, 3)], x, trees=1, bootstrap=False, max_features=1, device=device)
    assert np.array_equal(made.test, labels)
    assert made.importance.tolist() == [0, 1, 0]


def test_codes_that_differ_by_rounding_are_the_same(device):
    x, labels = np.array([[0.0], [5e-8], [1.0], [1.0]]), np.array([0, 1, 1, 1])
    (made,) = grow_forest(x, [Target(labels, 2)], x, trees=1, bootstrap=False, device=device)
    model = DecisionTreeClassifier().fit(x, labels)
    assert made.test.tolist() == model.predict(x).tolist() == [0, 0, 1, 1]


def test_values_of_other_rows_are_refused():
    with pytest.raises(UsageError, match="each of the 9 rows"):
        grow_forest(np.zeros((9, 2)), [Target(np.zeros(8, int), 2)], np.zeros((9, 2)), device="cpu")


def test_where_forests_are_ours(monkeypatch):
    x, labels, _ = draw(9)
    ask = {"train": x, "targets": [Target(labels, 3)], "test": x, "trees": 5, "device": "cuda"}
    assert can_grow(**ask)
    assert not can_grow(**ask | {"device": "cpu"})
    assert not can_grow(**ask | {"test": x[:0]})
    assert not can_grow(**ask | {"test": np.full_like(x, 1e39)})  # float32 has no such numbers
    assert not can_grow(**ask | {"train": np.zeros((len(x), 513))})
    assert not can_grow(**ask | {"train": np.round(x[:1]).repeat(len(x), 0)})  # mixed leaves of many rows
    assert not can_grow(**ask | {"targets": [Target(labels, 2**28)]})
    with without_kernels():
        assert not can_grow(**ask)
    monkeypatch.setattr(forest, "TRITON", False)
    assert not can_grow(**ask)


def test_predictors_on_a_gpu_take_our_forest(monkeypatch):
    asked = []

    def grow(train, targets, test, **settings):
        asked.append(settings)
        return [predictors.FactorFit(np.zeros(train.shape[1]), np.zeros(len(test), int)) for _ in targets]

    monkeypatch.setattr(predictors, "grow_forest", grow)
    monkeypatch.setattr(downstream, "find_device", lambda codes: torch.device("cuda"))
    x, labels, _ = draw(30)
    problem = Problem(x, x, [Target(labels, 3)], seed=2, device="cuda", trees=3)
    random_forest(problem)
    assert asked == [{"trees": 3, "seed": 2, "device": "cuda"}]
    downstream.downstream(x, labels[:, None], protocol="random-forest", labels=(20,), test=9, trees=4, resamples=0)
    assert asked[1:] == [{"trees": 4, "seed": 0, "device": torch.device("cuda")}]
    random_forest(problem._replace(weights=np.ones(30)))
    random_forest(problem._replace(device="cpu"))
    assert len(asked) == 2


def test_kernels_compile_for_a_hopper_card():
    command = [sys.executable, "-m", "tests.support.forest_for_hopper"]
    ran = subprocess.run(command, env={**os.environ, "TRITON_INTERPRET": "0"}, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-2000:]
    needed = json.loads(ran.stdout)
    assert set(needed) == {f"{kernel}: {kind}" for kernel in ("grow", "predict") for kind in ("real", "classes")}
    assert max(needed.values()) <= 1024  # so that shared memory does not limit the programs at once
