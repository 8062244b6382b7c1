"""Downstream accuracy and attributes: slow versions, nested labels, networks trained one by one, bad input."""

import json

import numpy as np
import pytest
import torch
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from torch import nn

from tests.support.evaluations import fixed_evaluation, full_grid
from tests.support.messages import naming
from unbraid.errors import DataError, UsageError
from unbraid.metrics import Score, evaluate
from unbraid.metrics.predictive.attributes import _Networks, attributes
from unbraid.metrics.predictive.downstream import _Prediction, downstream
from unbraid.metrics.train_test_split import split_rows
from unbraid.threads import one_thread


def made(rows=900, seed=0):
    rng = np.random.default_rng(seed)
    factors = np.stack([rng.integers(0, s, rows) for s in (2, 3, 5)], axis=1)
    codes = 0.5 * rng.standard_normal((rows, 4))
    codes[:, 1] += 2 * factors[:, 0]
    codes[:, 2] += factors[:, 1]
    codes[:, 3] += factors[:, 2] + factors[:, 1]
    return codes, factors


def slow_accuracy(learner, train, train_factors, test, test_factors):
    mean, std = train.mean(0), train.std(0)
    accuracies = []
    for k in range(train_factors.shape[1]):
        model = learner().fit((train - mean) / std, train_factors[:, k])
        accuracies.append((model.predict((test - mean) / std) == test_factors[:, k]).mean())
    return np.mean(accuracies)


@pytest.mark.parametrize("protocol", ["logistic", "random-forest"])
def test_accuracy_agrees_with_a_slow_version(protocol):
    """Nested training sets, the same test rows, and the ratio of fewest to most labels (locatello2019)."""
    codes, factors = made()
    scores = downstream(codes, factors, protocol=protocol, labels=(50, 500), test=300, trees=7, seed=3, resamples=3)
    train, test = split_rows(900, 500, 300, np.random.default_rng(3))
    learner = {
        "logistic": lambda: LogisticRegression(tol=1e-10, max_iter=10_000),
        "random-forest": lambda: RandomForestClassifier(7, random_state=3),
    }[protocol]
    expected = [
        slow_accuracy(learner, codes[rows], factors[rows], codes[test], factors[test]) for rows in (train[:50], train)
    ]
    tolerance = 1e-12 if protocol == "logistic" else 0.02  # a forest's thresholds round differently when scaled
    assert [s.value for s in scores[:2]] == pytest.approx(expected, abs=tolerance)
    assert scores[2].value == pytest.approx(scores[0].value / scores[1].value)
    assert [s.part for s in scores] == ["50-labels", "500-labels", "efficiency"]
    assert [s.samples for s in scores] == [50, 500, 500]
    for score in scores:
        assert score.interval[0] < score.value < score.interval[1]
        assert score.predictor == protocol
        assert Score.from_record(json.loads(json.dumps(score.as_record()))) == score


def test_fits_to_all_halves_at_once_score_as_one_by_one(monkeypatch):
    """A GPU fits them as one stack; here a CPU does, too."""
    codes, factors = made()
    asked = {"labels": (20, 500), "test": 300, "resamples": 6}
    expected, sizes = downstream(codes, factors, **asked), []

    def measure(self, train, test, start=None):
        sizes.append(len(train))
        return self._regress(train, test, start) if train else []

    monkeypatch.setattr(_Prediction, "measure", measure)
    for first, second in zip(expected, downstream(codes, factors, **asked), strict=True):
        assert second.value == first.value
        assert second.interval == pytest.approx(first.interval, abs=1e-6)
    assert sizes == [1, 1, 6, 6]


def test_more_labels_than_rows_are_capped_and_said():
    codes, factors = made(120)
    scores = downstream(codes, factors)
    assert [s.part for s in scores] == ["80-labels"]  # and no ratio of two numbers of labels
    assert scores[0].details["labels"] == scores[0].samples == 80
    some = downstream(codes, factors, labels=(30, 1_000), test=500)
    assert [s.part for s in some] == ["30-labels", "80-labels", "efficiency"]
    assert len(downstream(codes, factors, labels=(30,))) == 1


@pytest.mark.parametrize("protocol", ["logistic", "random-forest"])
def test_values_not_seen_in_training_are_never_predicted(protocol):
    codes, factors = made(60)
    factors[:, 0] = 0
    factors[:3, 0] = 1
    asked = {"protocol": protocol, "labels": (2, 20), "test": 30, "trees": 5, "resamples": 2}
    scores = downstream(codes, factors, **asked)
    assert all(0 <= s.value <= 1.5 for s in scores)
    dead = downstream(np.zeros((60, 2)), factors, **asked)
    assert all(np.isfinite(s.value) for s in dead)


def test_a_factor_never_guessed_right_has_no_efficiency():
    scores = downstream(np.arange(6.0)[:, None], np.arange(6), labels=(2, 3), test=3)
    assert [s.value for s in scores] == [0, 0, 0]


@pytest.mark.parametrize("settings", [{"labels": ()}, {"labels": (1,)}, {"C": 0.0}, {"trees": 0}])
def test_settings_out_of_range_are_named(settings):
    with pytest.raises(UsageError, match=naming(*settings)):
        downstream(*made(30), **settings)


class Plain(nn.Module):
    """One network of the batch, alone, with the weights that it has there."""

    def __init__(self, networks, member, inputs, values):
        super().__init__()
        self.inputs, layers = inputs, []
        for i, (weight, bias) in enumerate(zip(networks.weights, networks.biases, strict=True)):
            weight, bias = weight[member].detach(), bias[member, 0].detach()
            weight = weight[inputs] if i == 0 else weight
            last = i == len(networks.weights) - 1
            weight, bias = (weight[:, :values], bias[:values]) if last else (weight, bias)
            layer = nn.Linear(*weight.shape)
            layer.weight.data, layer.bias.data = weight.T.clone(), bias.clone()
            layers += [layer] if last else [layer, nn.ReLU()]
        self.layers = nn.Sequential(*layers)

    def forward(self, x):
        return self.layers(x[:, self.inputs])


@one_thread()
def test_networks_in_a_batch_train_as_each_does_alone():
    """Parts of a code are codes with fewer columns, factors of few values networks with fewer outputs."""
    rng = np.random.default_rng(0)
    x = torch.as_tensor(rng.standard_normal((200, 4))).float()
    y = torch.as_tensor(np.stack([(x[:, 0] > 0), np.digitize(x[:, 2], [-0.5, 0.5])]).astype(int))
    mask = torch.tensor([[1, 1, 0, 0], [0, 0, 1, 1], [1, 1, 1, 1]]).float()
    networks = _Networks(mask, (2, 3), (8, 5), torch.Generator().manual_seed(1))
    alone = [
        Plain(networks, 2 * part + factor, mask[part].nonzero()[:, 0], (2, 3)[factor])
        for part in range(3)
        for factor in range(2)
    ]
    networks.train(x, y, steps=60, batch=32, lr=1e-2, generator=torch.Generator().manual_seed(2))
    for member, network in enumerate(alone):
        draws = torch.Generator().manual_seed(2)
        optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
        for step in range(60):
            optimizer.param_groups[0]["lr"] = 1e-2 * (1 - step / 60)
            rows = torch.randint(200, (32,), generator=draws)
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(x[rows]), y[member % 2][rows]).backward()
            optimizer.step()
        found = networks.logits(x)[member, :, : (2, 3)[member % 2]]
        torch.testing.assert_close(found, network(x), atol=1e-4, rtol=1e-3)


def test_parts_that_know_different_things_are_best_together():
    """msvae2020, figure 6: C + Z above C and above Z."""
    codes, factors = made(1_500)
    scores = attributes({"C": codes[:, :2], "Z": codes[:, 2:]}, factors, steps=200)
    by_part = {score.part: score for score in scores}
    assert list(by_part) == ["C", "Z", "C+Z"]
    assert by_part["C+Z"].value > max(by_part["C"].value, by_part["Z"].value)
    assert by_part["C"].details["accuracy"]["v0"] > 0.9 > by_part["Z"].details["accuracy"]["v0"]
    for score in scores:
        assert score.interval is None
        assert score.covers.startswith("none: ")
        assert Score.from_record(json.loads(json.dumps(score.as_record()))) == score


def test_attributes_repeat_with_their_seed_and_differ_between_seeds():
    codes, factors = made(300)
    first, again, other = (attributes(codes, factors, steps=30, seed=s)[0] for s in (0, 0, 1))
    assert first == again
    assert first.value != other.value
    assert attributes(torch.as_tensor(codes), torch.as_tensor(factors), steps=30)[0] == first
    assert first.part is None


def test_hard_codes_and_few_rows():
    codes, factors = made(20)
    assert np.isfinite(attributes(np.zeros((20, 2)), factors, steps=5)[0].value)
    assert np.isfinite(attributes(codes * 1e12, factors, steps=5, batch=1000)[0].value)


@pytest.mark.parametrize(
    ("codes", "settings", "facts"),
    [
        ({}, {}, ["code"]),
        ({"C": np.zeros((20, 2)), "Z": np.zeros((19, 2))}, {}, [20, 19]),
        ({"C": np.full((20, 2), np.nan)}, {}, ["C", "NaN"]),
        (np.zeros((20, 2)), {"steps": 0}, ["steps", 0]),
        (np.zeros((20, 2)), {"hidden": (0,)}, ["hidden", 0]),
        (np.zeros((19, 2)), {}, [19, 20]),
    ],
)
def test_bad_codes_are_named(codes, settings, facts):
    with pytest.raises((UsageError, DataError), match=naming(*facts)):
        attributes(codes, made(20)[1], **settings)


def test_registered_protocols():
    grid = np.tile(full_grid((3, 4)), (20, 1))
    means = np.column_stack([grid, np.zeros(len(grid))]) + 0.05 * np.random.default_rng(0).standard_normal((240, 3))
    evaluation = fixed_evaluation(means, np.ones_like(means), grid, names=["a", "b"])
    scores = evaluate(evaluation, ["downstream", "attributes"], factors=("b",), trees=5, steps=20)
    assert {s.name for s in scores} >= {"downstream/logistic/efficiency", "downstream/random-forest/100-labels"}
    assert "attributes/mlp" in {s.name for s in scores}
    assert all(list(s.details["accuracy"]) == ["b"] for s in scores if s.part != "efficiency")


@pytest.mark.gpu
def test_attributes_stay_on_the_device():
    codes, factors = made(300)
    there = attributes(torch.as_tensor(codes).cuda(), factors, steps=30)[0]
    assert there.value == pytest.approx(attributes(codes, factors, steps=30)[0].value, abs=0.05)
