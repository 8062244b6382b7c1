"""Conditioning scores against scikit-learn's mutual information, at their limits, and of a model that is known."""

import numpy as np
import pytest
import torch
from sklearn.metrics import mutual_info_score
from torch import nn

from tests.methods.helpers import normal_space
from tests.support.evaluations import fixed_evaluation
from tests.support.messages import naming
from unbraid.data.factors import FactorDataset, Pixels
from unbraid.errors import DataError, UsageError
from unbraid.metrics import Evaluation, conditioning, evaluate
from unbraid.models import VAE, LaterStage
from unbraid.networks import make_likelihood

PROTOCOLS = ("cond/Y", "cond/X", "cond/Z-noise", "cond/Y-noise")


def slow(real, other, bins):
    shares = []
    for a, b in zip(real.T, other.T, strict=True):
        edges = [np.linspace(v.min(), v.max(), bins + 1)[1:-1] for v in (a, b)]
        first, second = np.digitize(a, edges[0]), np.digitize(b, edges[1])
        shares.append(mutual_info_score(first, second) / mutual_info_score(first, first))
    return np.mean(shares)


def test_against_scikit_learn():
    rng = np.random.default_rng(0)
    real = rng.standard_normal((2_000, 4)) * [1, 10, 0.1, 3]
    other = real + rng.standard_normal((2_000, 4)) * [0.1, 5, 1, 3]
    for bins in (5, 20):
        score = conditioning(real, torch.as_tensor(other), bins=bins, resamples=20)
        assert score.value == pytest.approx(slow(real, other, bins), abs=1e-12)
        assert score.interval[0] < score.value < score.interval[1]
        assert np.mean(list(score.details["shares"].values())) == pytest.approx(score.value)
    moved = conditioning(real, other * [8, 0.25, -2, 1] + [0, 4, 0, -8], resamples=0)
    assert moved.value == pytest.approx(conditioning(real, other, resamples=0).value, abs=1e-9)


def test_limits():
    rng = np.random.default_rng(0)
    codes = rng.standard_normal((5000, 6))
    same = conditioning(codes, codes, resamples=5)
    assert same.value == pytest.approx(1)
    assert same.interval[1] == 1
    apart = conditioning(codes, rng.standard_normal((5000, 6)), resamples=0)
    assert apart.value == pytest.approx(apart.details["chance"], rel=0.15)
    assert 0.005 < apart.value < 0.03
    flat = rng.uniform(size=(2, 5000, 6))
    told = conditioning(*flat, bins=10, resamples=0).details["chance"] * np.log(10)
    assert told == pytest.approx(9 * 9 / (2 * 5000), rel=0.1)  # the first term of its bias, with all cells in use
    assert conditioning(codes, np.zeros_like(codes), resamples=0).value == pytest.approx(0, abs=1e-15)
    padded = np.concatenate([codes, np.full((5000, 1), 2.0)], 1)
    kept = conditioning(padded, padded, resamples=0)
    assert kept.value == pytest.approx(1)
    assert list(kept.details["shares"]) == ["z0", "z1", "z2", "z3", "z4", "z5"]


def test_the_interval_has_the_spread_of_new_rows():
    rng = np.random.default_rng(1)
    values, widths = [], []
    for _ in range(40):
        real = rng.standard_normal((2_000, 2))
        score = conditioning(real, real + rng.standard_normal((2_000, 2)), bins=6, resamples=40)
        values.append(score.value)
        widths.append((score.interval[1] - score.interval[0]) / 2 / 1.96)
    assert np.mean(widths) == pytest.approx(np.std(values), rel=0.3)


def test_bad_codes_are_refused():
    codes = np.random.default_rng(0).standard_normal((10, 2))
    with pytest.raises(UsageError, match=naming("[10, 2]", "[10, 1]")):
        conditioning(codes, codes[:, :1])
    with pytest.raises(UsageError, match=naming("bins", 2)):
        conditioning(codes, codes, bins=1)
    with pytest.raises(DataError, match="latent"):
        conditioning(np.zeros((10, 2)), codes)


class Staged(LaterStage):
    """Two stages of observations [4]: the first keeps entries 0 and 1, z the other two; refined puts them together."""

    def __init__(self, leak: float = 0.0) -> None:
        shape, likelihood = (4,), make_likelihood("gaussian", {})
        encoder, decoder = nn.Linear(4, 4, bias=False), nn.Linear(2, 4, bias=False)
        with torch.no_grad():
            encoder.weight.zero_()[:2, :2] = torch.eye(2)
            decoder.weight.zero_()[:2] = 0.9 * torch.eye(2)
        super().__init__(normal_space(2), shape, VAE(normal_space(2), shape, encoder, decoder, likelihood))
        self.likelihood, self.leak = likelihood, leak

    def decode_first(self, code):
        y = self.first.likelihood.mean(self.first.decode(code))
        return y + 0.3 * torch.sin(40 * y)  # the first stage is not exact

    def refine(self, y, z):
        kept = (1 - self.leak) * y[:, :2] + self.leak * z
        return self.likelihood(torch.cat([kept, z], dim=1))

    def decode(self, code):
        c, z = self.split_code(code)
        return self.refine(self.decode_first(c), z)

    def infer(self, inputs, noise):
        x = inputs.x["x"]
        variance = torch.zeros_like(x[:, :2])
        return {"c": self.first.encode(x)["z"], "z": torch.cat([x[:, 2:], variance], 1)}


def staged(**settings):
    x = torch.randn(2000, 4, generator=torch.Generator().manual_seed(0))
    return Evaluation(Staged(**settings), FactorDataset("made", Pixels(x, (4,))))


def values(evaluation, **settings):
    return {s.name: s for s in evaluate(evaluation, PROTOCOLS, **settings)}


def test_a_model_whose_second_stage_obeys_and_one_whose_does_not():
    obeys, ignores = values(staged()), values(staged(leak=1.0))
    assert list(obeys["cond/X"].details["shares"]) == ["c0", "c1"]
    assert obeys["cond/X"].value == obeys["cond/Z-noise"].value == obeys["cond/Y"].value
    for scores in (obeys, ignores):
        noise = scores["cond/Y-noise"]
        assert noise.value < 2 * noise.details["chance"]
        assert scores["cond/Y"].value > 0.3
    assert ignores["cond/X"].value < 2 * ignores["cond/X"].details["chance"]
    model = staged(leak=0.25)
    x = model.dataset.images(torch.arange(2000))
    with torch.no_grad():
        c = model.model.first.encode(x)["z"][:, :2]
        made = model.model.refine(model.model.decode_first(c), x[:, 2:])[""]
    order = model.choose(500)
    by_hand = slow(x[order, :2].double().numpy(), made[order, :2].double().numpy(), 20)
    assert values(model, samples=500)["cond/X"].value == pytest.approx(by_hand, abs=1e-12)
    again = values(staged(leak=0.25), samples=500)
    assert {n: s.value for n, s in again.items()} == {n: s.value for n, s in values(model, samples=500).items()}


def test_codes_are_compared_with_the_first_stages_also_where_a_model_has_others():
    """A student learns c anew: what its images tell of C is still told of what the first stage sees in x."""
    plain, student = staged(leak=0.25), staged(leak=0.25)
    encode = student.model.encode
    student.model.encode = lambda x, noise=None: {**encode(x), "c": -encode(x)["c"] + 3}
    assert values(student)["cond/Y"].value == values(plain)["cond/Y"].value
    rows = student.choose(500)
    x = student.dataset.images(student.rows[rows])
    with torch.no_grad():
        made = student.model.likelihood.mean(student.model.decode(student.encode_means(rows)))
    by_hand = slow(x[:, :2].double().numpy(), made[:, :2].double().numpy(), 20)
    assert values(student, samples=500)["cond/X"].value == pytest.approx(by_hand, abs=1e-12)


def test_a_model_of_one_stage_is_refused():
    single = fixed_evaluation(np.zeros((5, 2)), np.ones((5, 2)), np.arange(5)[:, None])
    with pytest.raises(UsageError, match=naming("cond/X", "stage")):
        evaluate(single, ["cond/X"])
