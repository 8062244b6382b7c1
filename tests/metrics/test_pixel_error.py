"""Reconstruction errors per pixel, against sums written out."""

import pytest
import torch
from torch import nn

from tests.support.evaluations import fixed_evaluation
from tests.support.messages import naming
from unbraid.errors import DataError, UsageError
from unbraid.metrics import evaluate

NAMES = ("reconstruction/l1", "reconstruction/l2")


def model(decoder, rows=30, pixels=4):
    means = torch.linspace(-1, 1, rows)[:, None].repeat(1, pixels)
    return fixed_evaluation(means, torch.ones_like(means), torch.zeros(rows, 1).long(), decoder=decoder, pixels=pixels)


def errors(evaluation, **settings):
    return {score.protocol: score for score in evaluate(evaluation, NAMES, **settings)}


def test_errors_are_means_over_pixels_of_decoded_means():
    """Posterior standard deviations of 1 leave no trace: nothing is drawn."""
    torch.manual_seed(0)
    decoder = nn.Linear(4, 4).requires_grad_(False)
    found = errors(model(decoder))
    rows, pixels, first, second = 30, 4, 0.0, 0.0
    for n in range(rows):
        code = torch.full((pixels,), -1 + 2 * n / (rows - 1))
        for p in range(pixels):
            made = float(sum(decoder.weight[p, j] * code[j] for j in range(4)) + decoder.bias[p])
            first += abs(n / rows - made) / pixels / rows
            second += (n / rows - made) ** 2 / pixels / rows
    assert found["l1"].value == pytest.approx(first, rel=1e-5)
    assert found["l2"].value == pytest.approx(second, rel=1e-5)
    for score in found.values():
        assert score.samples == rows
        assert score.interval[0] < score.value < score.interval[1]
    assert errors(model(decoder), samples=10)["l1"].samples == 10


def test_exact_reconstructions_and_broken_ones():
    x = torch.arange(30).float()[:, None].repeat(1, 2) / 30  # as `fixed_evaluation` makes them
    exact = fixed_evaluation(x, torch.ones_like(x), torch.zeros(30, 1).long(), decoder=nn.Identity())
    assert {score.value for score in errors(exact).values()} == {0.0}
    with pytest.raises(UsageError, match=naming("samples", 2, 1)):
        errors(model(nn.Identity()), samples=1)

    class Broken(nn.Module):
        def forward(self, code):
            return code * torch.nan

    with pytest.raises(DataError, match=naming("decoder", "NaN")):
        errors(model(Broken()))
