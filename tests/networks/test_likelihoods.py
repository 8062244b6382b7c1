"""Likelihoods against torch.distributions, with and without a member axis."""

import pytest
import torch
from torch import distributions

from unbraid.networks import make_likelihood

X = torch.rand(5, 1, 4, 4, dtype=torch.float64)
RAW = torch.randn(5, 1, 4, 4, dtype=torch.float64)


def test_bernoulli_on_binary_pixels():
    made = make_likelihood("bernoulli", {})
    expected = distributions.Bernoulli(logits=RAW).log_prob(X.round()).flatten(1).sum(1)
    torch.testing.assert_close(made.log_prob(made(RAW), X.round(), 3), expected)
    torch.testing.assert_close(made.mean(made(RAW)), RAW.sigmoid())


@pytest.mark.parametrize(("name", "family"), [("gaussian", distributions.Normal), ("laplace", distributions.Laplace)])
@pytest.mark.parametrize("learned", [False, True])
def test_location_families(name, family, learned):
    made = make_likelihood(name, {"scale": 0.3, "learned": learned}).double()
    expected = family(RAW, torch.tensor(0.3, dtype=torch.float64)).log_prob(X).flatten(1).sum(1)
    torch.testing.assert_close(made.log_prob(made(RAW), X, 3), expected, rtol=1e-6, atol=1e-6)
    assert len(list(made.parameters())) == int(learned)


def test_categorical_on_one_hot_labels():
    made, logits, label = make_likelihood("categorical", {}), RAW.flatten(1), torch.tensor([3, 0, 15, 7, 7])
    x = torch.nn.functional.one_hot(label, 16).double()
    torch.testing.assert_close(
        made.log_prob(made(logits), x, 1), distributions.Categorical(logits=logits).log_prob(label)
    )
    torch.testing.assert_close(made.mean(made(logits)), logits.softmax(-1))


def test_learned_scale_is_one_per_member():
    made = make_likelihood("gaussian", {"learned": True}).double()
    parameters = {"": RAW.expand(2, *RAW.shape), "log_scale": torch.tensor([[0.0], [1.0]], dtype=torch.float64)}
    both = made.log_prob(parameters, X.expand(2, *X.shape), 3)
    for m in range(2):
        alone = made.log_prob({"": RAW, "log_scale": parameters["log_scale"][m]}, X, 3)
        torch.testing.assert_close(both[m], alone)
