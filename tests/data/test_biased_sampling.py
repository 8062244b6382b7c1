"""Biased factor sampling: four joint distributions with their properties, and rows thinned to them."""

import json

import numpy as np
import pytest
import torch

from tests.support.messages import naming
from unbraid.config import Choice
from unbraid.data import Factor, FactorDataset, Pixels
from unbraid.data.biased_sampling import RATIO, inline_weights, joint_weights
from unbraid.data.splits import split
from unbraid.errors import UsageError
from unbraid.training.configure import configure


def grid(*sizes):
    count = int(np.prod(sizes))
    factors = tuple(Factor(f"v{k}", size) for k, size in enumerate(sizes))
    return FactorDataset("grid", Pixels(torch.zeros(count, 1, dtype=torch.uint8), (1,)), factors)


def facts(table):
    """Are the marginals uniform, the factors independent, and how are they correlated?"""
    p = table / table.sum()
    first, second = p.sum(1), p.sum(0)
    x, y = np.arange(len(first)), np.arange(len(second))
    covariance = x @ p @ y - (x @ first) * (y @ second)
    uniform = np.allclose(first, 1 / len(x)) and np.allclose(second, 1 / len(y))
    return uniform, np.allclose(p, np.outer(first, second)), covariance / (np.std(x) * np.std(y))


def counts(data, rows, columns=(0, 1)):
    values = data.values_of(rows)[:, list(columns)]
    table = np.zeros([data.sizes[k] for k in columns])
    np.add.at(table, tuple(values.T.numpy()), 1)
    return table


@pytest.mark.parametrize("sizes", [(3, 3), (6, 5), (8, 8), (21, 11)])
def test_each_case_breaks_one_thing_alone(sizes):
    tables = {case: joint_weights(case, sizes) for case in "ABCD"}
    known = {case: facts(table) for case, table in tables.items()}  # uniform, independent, correlation
    assert {case: found[:2] for case, found in known.items()} == {
        "A": (True, True),
        "B": (False, True),
        "C": (True, False),
        "D": (True, False),
    }
    assert all(abs(known[case][2]) < 1e-12 for case in "ABC")
    assert known["D"][2] > 0.15
    for case in "BCD":
        assert tables[case].min() > 0
        assert tables[case].max() / tables[case].min() == pytest.approx(RATIO)


@pytest.mark.parametrize("case", "ABCD")
def test_thinned_rows_follow_the_weights_and_never_repeat(case):
    data, weights = grid(3, 7, 5, 40), joint_weights(case, (7, 5))
    made = split(data, f"bias:v1,v2:{case}")
    kept = counts(data, made.train, (1, 2))
    assert made.held_out is None
    assert len(made.train.unique()) == len(made.train)
    assert np.abs(kept - 120 * weights / weights.max()).max() <= 0.5 + 1e-9
    assert kept.max() == 120
    if case == "C":
        assert abs(facts(kept)[2]) < 1e-12  # equal weights keep equal numbers: still symmetric
    if case in "BC":
        assert kept.max() / kept.min() == pytest.approx(4, abs=0.05)
    others = counts(data, made.train, (0, 3))  # the factors that no rule names stay as they were, up to chance
    assert others.min() > 0
    assert torch.equal(split(data, f"bias:v1,v2:{case}").train, made.train)


def test_the_rows_kept_of_a_cell_are_chosen_at_random():
    data = grid(2, 2, 500)
    rows = split(data, "bias:v0,v1:[[1,2],[1,2]]").train
    half = data.values_of(rows[data.values_of(rows)[:, 1] == 0])[:, 2].double()
    assert len(half) == 500
    assert abs(float(half.mean()) - 249.5) < 20  # 3 standard errors


def test_tables_from_text_and_files_are_one(tmp_path):
    data, table = grid(2, 3, 12), [[1, 2, 0], [3, 4, 4]]
    (tmp_path / "w.json").write_text(json.dumps(table))
    (tmp_path / "w.csv").write_text("1,2,0\n3,4,4\n")
    rules = [f"bias:v0,v1:{table}", f"bias:v0,v1:{tmp_path / 'w.json'}", f"bias:v0,v1:{tmp_path / 'w.csv'}"]
    rows = [split(data, rule).train for rule in rules]
    assert all(torch.equal(rows[0], other) for other in rows)
    assert counts(data, rows[0]).tolist() == [[3, 6, 0], [9, 12, 12]]
    config = configure("vae", Choice("given", {}), data, {"split": rules[2], "z": 2, "batch": 2})
    assert config.training.split == "bias:v0,v1:[[1.0,2.0,0.0],[3.0,4.0,4.0]]"  # a run must not depend on the file
    assert inline_weights("posX:0,1") == "posX:0,1"


def test_three_factors_and_rows_that_lack_a_label():
    made = joint_weights("B", (2, 3, 4))
    assert made.max() / made.min() == pytest.approx(RATIO)
    table = torch.tensor([[0, 0], [0, 0], [0, 1], [1, 0], [1, 1], [-1, 0], [1, -1]])
    factors = (Factor("a", 2), Factor("b", 2))
    data = FactorDataset("some", Pixels(torch.zeros(7, 1), (1,)), factors, table, held_out=torch.tensor([0]))
    found = split(data, "bias:a,b:A")
    assert found.train.tolist() == [1, 2, 3, 4]
    assert found.held_out.tolist() == [0]


@pytest.mark.parametrize(
    ("rule", "facts"),
    [
        ("bias:v0,v1", ["bias:FACTOR,FACTOR:TABLE"]),
        ("bias:v0,v0:A", ["bias:FACTOR,FACTOR:TABLE"]),
        ("bias:v0,v9:A", ["v9", "grid"]),
        ("bias:v0,v1:E", ["E", "bias"]),
        ("bias:v0,v1:C", ["C", 3, 2]),
        ("bias:v0,v1,v2:D", ["D", 2, 3]),
        ("bias:v0,v1:[[1,2]]", ["1 x 2", "2 x 2"]),
        ("bias:v0,v1:[[1,2],[3,-1]]", ["[[1,2],[3,-1]]", 0]),
        ("bias:v0,v1:[[1,x],[3,1]]", ["[[1,x],[3,1]]"]),
        ("bias:v0,v1:[[1,2],[3,100]]", ["v0:0", "v1:0", 6]),
    ],
)
def test_bad_rules_say_what_is_wrong(rule, facts):
    with pytest.raises(UsageError, match=naming(*facts)):
        split(grid(2, 2, 6), rule)


def test_cases_can_keep_as_many_rows():
    data = grid(18, 32, 32)
    sizes = {case: len(split(data, f"bias:v1,v2:{case}:9216").train) for case in "ABCD"}
    assert max(sizes.values()) <= 1.01 * min(sizes.values()), sizes
    kept = counts(data, split(data, "bias:v1,v2:D:9216").train, (1, 2))
    assert np.corrcoef(kept.ravel(), joint_weights("D", (32, 32)).ravel())[0, 1] > 0.98
    for rule, named in (("bias:v1,v2:C:20000", 20000), ("bias:v1,v2:C:x", "bias:FACTOR")):
        with pytest.raises(UsageError, match=naming(named)):
            split(data, rule)
