"""The gap of each block against that of its columns alone, and of codes that a second stage draws and encodes again."""

import numpy as np
import pytest
import torch
from torch import nn

from tests.support.evaluations import full_grid
from unbraid.data.factors import Factor, FactorDataset, Pixels
from unbraid.errors import UsageError
from unbraid.latents import Normal, Space
from unbraid.methods.ms_code import CodedStage
from unbraid.metrics import Evaluation, evaluate, mig
from unbraid.models import VAE
from unbraid.networks import make_likelihood

SIZES = (4, 5, 6)
GRID = torch.from_numpy(full_grid(SIZES)).float()
ROWS = (GRID - GRID.mean(0)) / GRID.std(0)


def linear(rows):
    """A linear map without a bias."""
    layer = nn.Linear(len(rows[0]), len(rows), bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor(rows))
    return layer


def evaluation(drawn):
    """Observations are three factors; c are two of them, z the third and the first; `drawn` maps [c, z] to x."""
    likelihood, shape = make_likelihood("gaussian", {}), (3,)
    first = VAE(
        Space({"z": Normal(size=2)}),
        shape,
        linear([[1.0, 0, 0], [0, 1, 0], [0, 0, 0], [0, 0, 0]]),
        linear([[1.0, 0], [0, 1], [0, 0]]),
        likelihood,
    )
    own = linear([[0.0, 0, 1], [1, 0, 0], [0, 0, 0], [0, 0, 0]])
    model = CodedStage(Space({"z": Normal(size=2)}), shape, own, linear(drawn), likelihood, first, residual=False)
    factors = tuple(Factor(f"v{k}", size) for k, size in enumerate(SIZES))
    return Evaluation(model, FactorDataset("made", Pixels(ROWS, shape), factors))


FAITHFUL = [[1.0, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0]]
FIRST_LOST = [[0.0, 0, 1, 0], [0, 1, 0, 0], [0, 0, 1, 0]]
"""What c holds of the first factor is drawn as the third."""


def test_a_block_is_scored_as_its_columns_alone():
    seen = evaluation(FAITHFUL)
    scores = {score.name: score for score in evaluate(seen, ["mig-of/blocks"])}
    assert list(scores) == ["mig-of/blocks/c", "mig-of/blocks/z"]
    for name, columns in (("c", slice(0, 2)), ("z", slice(2, 4))):
        alone = mig(seen.means[:, columns], seen.factors)
        assert scores[f"mig-of/blocks/{name}"].value == pytest.approx(alone.value, abs=1e-12)
    assert scores["mig-of/blocks/c"].details["gaps"]["v2"] == pytest.approx(0, abs=1e-9)
    assert scores["mig-of/blocks/c"].details["gaps"]["v1"] == pytest.approx(1)
    both = evaluate(seen, ["mig/histogram-mean"])[0]
    assert both.details["gaps"]["v0"] == pytest.approx(0, abs=1e-9)  # c and z both hold it


def test_drawn_images_are_encoded_again():
    kept, lost = (evaluate(evaluation(drawn), ["mig-of/re-encoded"])[0] for drawn in (FAITHFUL, FIRST_LOST))
    blocks = evaluate(evaluation(FAITHFUL), ["mig-of/blocks"])[0]
    assert kept.value == pytest.approx(blocks.value, abs=1e-12)
    assert np.allclose([lost.details["gaps"][f"v{k}"] for k in range(3)], [0, 1, 1], atol=1e-9)


def test_a_second_stage_that_sees_no_y_has_three_conditioning_scores():
    found = {s.name: s.value for s in evaluate(evaluation(FAITHFUL), ["cond/Y", "cond/X", "cond/Z-noise"])}
    assert found == pytest.approx(dict.fromkeys(found, 1.0))
    lost = {s.name: s.value for s in evaluate(evaluation(FIRST_LOST), ["cond/X"])}
    assert lost["cond/X"] == pytest.approx(0.5, abs=0.01)
    with pytest.raises(UsageError, match=r"\by\b"):
        evaluate(evaluation(FAITHFUL), ["cond/Y-noise"])
