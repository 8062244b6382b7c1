"""Stages that learn at labels: what their codes are, a chain of three upon a pendulum, its score, and refusals."""

import numpy as np
import pytest
import torch
from scipy.stats import pearsonr, spearmanr

import unbraid as ub
from tests.support.messages import naming
from unbraid.data import load
from unbraid.data.label_codes import LabelCodes
from unbraid.errors import UsageError
from unbraid.metrics.stages.unlabelled_factors import encode_given_labels, unseen
from unbraid.models import StagedVAE, build
from unbraid.models.staged import FIRST_CODE, OWN_CODE
from unbraid.noise import draw, seed_tensor
from unbraid.papers.msvae2020.pendulum import AnglePaths
from unbraid.types import Inputs

TINY = {"encoder_hidden": (16,), "decoder_hidden": (16,), "batch": 16, "steps": 4, "device": "cpu"}
GRID = {"data_lengths": 5, "data_dampings": 4, "data_masses": 6, "data_rows": 80}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def one(root):
    given = {**GRID, **TINY, "data_observed": "undamped"}
    return ub.train("label-decoder", data="pendulum", factors=("length",), z=1, root=root, name="one", **given)


@pytest.fixture(scope="module")
def two(root, one):
    given = {"factors": ("damping",), "given": ("length",), "data_observed": "unit-mass"}
    return ub.refine(one, "labels", root=root, name="two", **given, **TINY)


@pytest.fixture(scope="module")
def three(root, two):
    given = {"given": ("length", "damping"), "data_observed": "damped"}
    return ub.refine(two, "vae", z=1, root=root, name="three", **given, **TINY)


def test_codes_of_a_label_do_not_depend_on_the_rows():
    data = load("pendulum", {key.removeprefix("data_"): value for key, value in GRID.items()})
    codes = LabelCodes(data, ("damping", "length"), ("length",)).codes(torch.tensor([[1, 3, 0]]), torch.float64)
    angle = 2 * np.pi / 5
    expected = [(3 - 1.5) / np.std(range(4)), np.sqrt(2) * np.cos(angle), np.sqrt(2) * np.sin(angle)]
    np.testing.assert_allclose(codes[0].numpy(), expected, atol=1e-12)
    assert LabelCodes(data, ()).names == ["length", "damping", "mass"]


def test_a_chain_sees_other_data_at_each_stage_and_learns_at_labels(one, two, three):
    observed = [run.config.data.settings["observed"] for run in (one, two, three)]
    assert observed == ["undamped", "unit-mass", "damped"]
    assert [run.unchanged["max_change"] for run in (two, three)] == [0.0, 0.0]
    model, data = three.model, three.dataset
    assert isinstance(model, StagedVAE) and list(model.space.blocks) == ["c_c", "c_z", "z"]
    rows = torch.arange(5)
    c, x = LabelCodes(data, ("length", "damping")).codes(data.values_of(rows)), data.images(rows)
    noise = {name: drawn[0] for name, drawn in draw(model.needs(5), seed_tensor(0), 0).items()}
    with torch.no_grad():
        out = model(Inputs({"x": x}, given={FIRST_CODE: c}), noise)
        y = two.model.likelihood.mean(two.model.decode(c))
        torch.testing.assert_close(model.decode_first(c), y)
        torch.testing.assert_close(out.posterior["z"], model.encode_residual(x, y)["z"])
        torch.testing.assert_close(model.encode_given(x, c)["z"], out.posterior["z"])
        whole = torch.cat([c, out.sample["z"]], -1)
        torch.testing.assert_close(out.decoded["x"][""], model.decode(whole)[""])
        own = two.model(Inputs({"x": x}, given={FIRST_CODE: c[:, :1], OWN_CODE: c[:, 1:]}), noise)
        torch.testing.assert_close(own.decoded["x"][""], two.model.decode(c)[""])


def test_labels_are_what_a_stage_of_labels_learns_to_draw_and_to_read(tmp_path):
    """x = y + b: once fitted, moving b by one coordinate moves x by one, and the encoder reads b from x - y."""
    places = np.stack(np.unravel_index(np.arange(15), (3, 5)), 1).astype(np.float32)
    values = torch.from_numpy(np.stack([places[:, 0], places[:, 1], places[:, 1] + places[:, 0]], 1))
    factors = (ub.Factor("a", 3), ub.Factor("b", 5))
    from unbraid.data import Pixels

    data = ub.FactorDataset("sums", Pixels(values, (3,)), factors, source="counted")
    given = {**TINY, "decoder_hidden": (32,), "batch": 15, "steps": 200, "lr": 1e-2, "root": tmp_path}
    first = ub.train("label-decoder", data=data, factors=("a",), z=1, **given)
    run = ub.refine(first, "labels", factors=("b",), given=("a",), **given)
    codes = LabelCodes(data, ("a", "b")).codes(data.values_of(torch.arange(15)))
    torch.testing.assert_close(run.decode(codes), values, atol=0.25, rtol=0)
    with torch.no_grad():
        read = run.model.encode_given(values, codes[:, :1])["z"][:, :1]
    torch.testing.assert_close(read, codes[:, 1:], atol=0.25, rtol=0)


def test_unseen_is_the_correlation_at_the_rows_own_labels(three):
    data, rows = three.dataset, three.evaluation.rows
    assert len(rows) == 8
    masses = np.array(data.factors[2].values)[data.values_of(rows)[:, 2]]
    z = encode_given_labels(three.evaluation, torch.arange(8))[:, 0]
    found = {score.name: score.value for score in three.score("unseen")}
    assert found["unseen/spearman/mass"] == pytest.approx(abs(spearmanr(z, masses)[0]), abs=1e-9)
    assert found["unseen/pearson/mass"] == pytest.approx(abs(pearsonr(z, masses)[0]), abs=1e-6)
    assert unseen(np.ones((4, 1)), np.arange(4.0)).tolist() == [0]


def test_members_of_a_chain_may_see_other_data_too(one, two, tmp_path):
    given = {"factors": ("damping",), "given": ("length",), "data.observed": "unit-mass"}
    tiny = {key: value for key, value in TINY.items() if key != "device"}
    (made,) = ub.sweep("ms-labels", refines=one, root=tmp_path, metrics=(), device="cpu", **given, **tiny).runs
    assert made.config.run_id == two.config.run_id


@pytest.mark.parametrize(
    ("kind", "given", "facts"),
    [
        ("vae", {"given": ("damping", "length")}, ["given=[length,damping]"]),
        ("vae", {"given": ("length",)}, ["given=[length,damping]"]),
        ("vae", {"given": ("length", "damping"), "samples": 2}, ["samples", "given"]),
        ("vae", {"given": ("length", "damping"), "circular": ("mass",)}, ["circular"]),
        ("labels", {}, ["factors="]),
        ("labels", {"factors": ("mass",), "given": ("mass",)}, ["factors", "given"]),
        ("labels", {"factors": ("mass",), "z": 2}, ["z=1"]),
        ("vae", {"data_rows": 90}, ["data.observed"]),
    ],
)
def test_what_does_not_fit_is_refused(root, two, kind, given, facts):
    with pytest.raises(UsageError, match=naming(*facts)):
        ub.refine(two, kind, root=root, **{**TINY, **given})


def test_codes_that_are_no_labels_have_none_in_their_place(root, three):
    with pytest.raises(UsageError, match=naming("given=", "labels")):
        ub.refine(three, "vae", root=root, given=("length",), **TINY)
    with pytest.raises(UsageError, match=naming("unseen/spearman", "given=")):
        ub.refine(three, "vae", root=root, **TINY).score("unseen/spearman")


def test_the_error_of_a_path_is_a_share_of_its_spread():
    simulated = np.array([[0.0, 0.0], [2.0, 4.0]])
    assert AnglePaths(simulated, simulated).error == 0
    assert AnglePaths(simulated, simulated.mean(0) + 0 * simulated).error == pytest.approx(1)
    assert AnglePaths(simulated, simulated + 1).error == pytest.approx(np.sqrt(1 / 2.5))


def test_the_model_of_a_config_is_built_with_its_labels(three):
    model = build(three.config, (101,))
    assert isinstance(model, StagedVAE) and model.given_factors == ("length", "damping")
