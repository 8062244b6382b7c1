"""A decoder of labels: its codes, what it converges to, and that a second stage can stand on it."""

import pytest
import torch

import unbraid as ub
from unbraid.data import load
from unbraid.errors import UsageError
from unbraid.objectives import bind

TINY = {"network": "mlp", "encoder_hidden": (16,), "decoder_hidden": (64,), "device": "cpu"}


def test_codes_are_standardised_and_circles_are_closed():
    data = load("sprites-small", {})
    rows = torch.arange(len(data))
    bound = bind("label-decoder", {"factors": ("scale", "posX"), "circular": ("posX",)})
    bound.begin(data, rows)
    codes = bound.labels.codes(data.values_of(rows), torch.float64)
    assert codes.shape == (len(data), 3)
    torch.testing.assert_close(codes.mean(0), torch.zeros(3, dtype=torch.float64), atol=1e-12, rtol=0)
    torch.testing.assert_close(codes.var(0, correction=0), torch.ones(3, dtype=torch.float64), atol=1e-12, rtol=0)
    near = bound.labels.codes(torch.tensor([[0, 0, 0], [0, 1, 0], [0, 15, 0]]), torch.float64)
    assert float((near[0] - near[2]).norm()) == pytest.approx(float((near[0] - near[1]).norm()))


def test_y_is_the_mean_of_all_rows_that_share_the_labels_and_a_stage_adds_the_rest(tmp_path):
    images = torch.zeros(4, 2, 2)
    images[0, 0], images[1, 0, 0], images[2, 1], images[3, 1, 1] = 1, 1, 1, 1  # rows 0, 1 share a label, and 2, 3
    factors = (ub.Factor("side", 2), ub.Factor("kind", 2))
    from unbraid.data import Pixels

    data = ub.FactorDataset("toy", Pixels((images[:, None] * 255).byte(), (1, 2, 2)), factors, source="drawn")
    given = {**TINY, "batch": 4, "lr": 3e-2, "root": tmp_path, "steps": 120}
    run = ub.train("label-decoder", data=data, factors=("side",), z=1, **given)
    y = run.decode(torch.tensor([[-1.0], [1.0]]))[:, 0]
    expected = torch.stack([images[:2].mean(0), images[2:].mean(0)])
    torch.testing.assert_close(y, expected, atol=0.02, rtol=0)
    torch.testing.assert_close(run.encode(images)[:, 0], torch.tensor([-1.0, -1, 1, 1]), atol=0.1, rtol=0)
    refined = ub.refine(run, z=1, **given)
    assert refined.unchanged["max_change"] == 0.0
    error, before = refined.decode(refined.encode(images)), run.decode(run.encode(images))
    assert float((error[:, 0] - images).abs().mean()) < 0.5 * float((before[:, 0] - images).abs().mean())


@pytest.mark.parametrize(
    ("given", "fact"),
    [({"z": 2}, "z=3"), ({"factors": ("colour",)}, "colour"), ({"circular": ("posX",)}, "z=4")],
)
def test_wrong_labels_are_refused(given, fact, tmp_path):
    with pytest.raises(UsageError, match=fact):
        ub.train("label-decoder", data="sprites-small", root=tmp_path, **{**TINY, "z": 3, **given})
