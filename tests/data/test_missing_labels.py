"""Missing factor labels: where they may come from, and that no score, split or lookup takes -1 for a value."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import TensorDataset

from tests.support.evaluations import fixed_evaluation
from tests.support.messages import names, naming
from unbraid.data import Factor, FactorDataset, Pixels, from_array, from_dataset, load
from unbraid.data.file_formats import sort_into_grid
from unbraid.errors import DataError
from unbraid.metrics import evaluate, metric, mig
from unbraid.metrics.base import _rows_for
from unbraid.metrics.generative.features.classifier import classifier
from unbraid.report.latent_factor import codes_by_label

BYTES = np.random.default_rng(0).integers(0, 256, (600, 4)).astype(np.uint8)


def labels(lost=0.3):
    """Two factors that the first two pixels tell, some of them lost."""
    rng = np.random.default_rng(1)
    table = np.stack([BYTES[:, 0] // 64, BYTES[:, 1] // 128], axis=1).astype(np.int64)
    table[rng.random(600) < lost, 0] = -1
    table[rng.random(600) < lost / 3, 1] = -1
    return table


def scored(kept=slice(None), columns=(0, 1), **settings):
    """Codes that are the pixels, with the labels."""
    names = [("left", "right")[k] for k in columns]
    means, table = BYTES[kept] / 255, labels()[kept][:, columns]
    return fixed_evaluation(means, np.full_like(means, 0.1), table, names, **settings)


@pytest.fixture(scope="module")
def evaluation():
    return scored()


def test_minus_one_nan_and_none_are_missing():
    table = labels()
    floats = np.where(table < 0, np.nan, table)
    a, b = (from_array(BYTES, factors=given, factor_names=["left", "right"]) for given in (table, floats))
    assert a.content_hash() == b.content_hash()
    assert a.sizes == (4, 2)
    assert a.has_labels(torch.arange(600)).tolist() == (table >= 0).all(1).tolist()
    assert a.has_labels(torch.arange(600), [1]).tolist() == (table[:, 1] >= 0).tolist()
    pictures = [(torch.zeros(3), 1), (torch.ones(3), None), (torch.zeros(3), float("nan")), (torch.zeros(3), 0)]
    assert from_dataset(pictures).table.tolist() == [[1], [-1], [-1], [0]]
    assert from_dataset(TensorDataset(torch.zeros(2, 3))).factors == ()
    for bad in ([[0.5]] * 600, [-2] * 600, [-1] * 600):
        with pytest.raises(DataError, match="factor"):
            from_array(BYTES, factors=bad)


def test_labels_of_a_folder(tmp_path):
    (tmp_path / "deep").mkdir()
    for name in ("a.png", "b.png", "deep/c.png", "d.png"):
        Image.new("L", (2, 2)).save(tmp_path / name)
    file = tmp_path / "labels.csv"
    file.write_text("file,age,mood\na.png,10,calm\ndeep/c.png,9,\nd.png,nan,angry\n")
    data = load("images", {"folder": str(tmp_path), "labels": str(file)})
    assert data.factors == (Factor("age", 2, (9.0, 10.0)), Factor("mood", 2, ("angry", "calm")))
    assert data.table.tolist() == [[1, 1], [-1, -1], [-1, 0], [0, -1]]  # a, b, d, deep/c: in the order of the paths
    for text, facts in (
        ("file,age\nx.png,1\n", ["line 2", "x.png"]),
        ("file,age\na.png,1\na.png,2\n", ["line 3", "a.png"]),
        ("file,age\na.png\n", ["line 2", 1, 2]),
        ("file,age\na.png,\n", ["age"]),
        ("file\n", []),
    ):
        file.write_text(text)
        with pytest.raises(DataError, match=naming("labels.csv", *facts)):
            load("images", {"folder": str(tmp_path), "labels": str(file)})


def test_no_lookup_takes_it_for_a_value():
    table = torch.tensor([[0, 0], [1, -1], [1, 0], [-1, 1]])
    data = FactorDataset("some", Pixels(torch.zeros(4, 1), (1,)), (Factor("a", 2), Factor("b", 2)), table)
    assert data.index_of(torch.tensor([[1, 0]])).tolist() == [2]
    for unlabelled in ([1, -1], [0, 1]):  # (1, -1) spells the same number as (0, 1)
        with pytest.raises(DataError, match=naming(unlabelled)):
            data.index_of(torch.tensor([unlabelled]))
    assert sort_into_grid(data) is data
    whole = FactorDataset("grid", Pixels(torch.zeros(4, 1), (1,)), data.factors)
    with pytest.raises(IndexError):
        whole.images(whole.index_of(torch.tensor([[1, -1]])))


@pytest.mark.parametrize(
    "name",
    [
        "mig/histogram-mean",
        "mig/exact",
        "sap/disentanglement_lib",
        "dci/lasso",
        "irs/quantile",
        "factorvae/majority-vote",
        "betavae/logistic",
    ],
)
def test_a_score_is_that_of_the_labelled_rows_alone(evaluation, name):
    table, cheap = labels(), {key: 200 for key in ("train", "test") if key in metric[name].settings}
    both, right = (table >= 0).all(1), table[:, 1] >= 0
    cases = [({}, both, (0, 1)), ({"factors": ("right",)}, right, (1,))]
    for chosen, kept, columns in cases[: 1 if name.startswith(("factorvae", "betavae")) else 2]:
        found = evaluate(evaluation, [name], **cheap, **chosen)
        wanted = evaluate(scored(kept, columns), [name], **cheap)
        assert [score.value for score in found] == pytest.approx([score.value for score in wanted], abs=1e-5)
        assert found[0].details["unlabelled"] == 600 - kept.sum()
        assert names(found[0].details["rows"], kept.sum())
        assert found[0].samples == wanted[0].samples


def test_other_scores_look_at_every_row(evaluation):
    score = evaluate(evaluation, ["units/active"])[0]
    assert score.samples == 600
    assert "unlabelled" not in score.details


def test_too_few_labels_and_bare_calls_are_refused(evaluation):
    table = labels()
    lonely = torch.from_numpy(np.flatnonzero((table < 0).any(1)))
    with pytest.raises(DataError, match=naming(0, "left", "right", "factors=")):
        evaluate(scored(rows=lonely), ["mig/exact"])
    with pytest.raises(DataError, match=naming("made", "label")):
        evaluation.tabulate(None)
    with pytest.raises(DataError, match=naming("v0", "NaN")):
        mig(BYTES.astype(float), np.where(table < 0, np.nan, table))


def test_classifier_and_figure_leave_them_out(evaluation):
    network = classifier(evaluation.dataset, evaluation.rows, 0, steps=2)
    assert network.details["training_rows"] + network.details["held_out_rows"] == (labels() >= 0).all(1).sum()
    means = codes_by_label(torch.tensor([[1.0], [2.0], [7.0]]), torch.tensor([0, 0, -1]), 2).mean
    assert means[0, 0] == 1.5


def test_a_score_of_one_factor_needs_the_labels_of_that_one_alone():
    known = (labels() >= 0).sum(0)
    for factor, rows in (("right", known[1]), ("left", known[0]), (None, known[0])):
        assert len(_rows_for(scored(), metric["clusters/majority"], {"factor": factor})) == rows
    assert len(_rows_for(scored(), metric["sap/linear-svm"], {"factors": None})) == (labels() >= 0).all(1).sum()
