"""The contracts, over everything that is registered."""

import math

import pytest

from tests import contracts
from tests.support.messages import naming
from unbraid.data import dataset
from unbraid.errors import UsageError
from unbraid.metrics import metric
from unbraid.networks import decoder, encoder, refiner
from unbraid.objectives import bind, objective

MADE = [name for name in dataset if not (dataset[name].facts.recipe or dataset[name].facts.yours)]  # others need files


@pytest.mark.parametrize("name", list(objective))
def test_objective(name):
    contracts.check_objective(name)


@pytest.mark.parametrize("name", list(encoder))
def test_encoder(name):
    contracts.check_network("encoder", name)


@pytest.mark.parametrize("name", list(decoder))
def test_decoder(name):
    contracts.check_network("decoder", name)


@pytest.mark.parametrize("name", list(refiner))
def test_refiner(name):
    contracts.check_refiner(name)


@pytest.mark.parametrize("name", MADE)
def test_dataset(name):
    contracts.check_dataset(name)


@pytest.mark.parametrize("name", list(metric))
def test_metric(name):
    contracts.check_metric(name)


def test_no_objective_setting_hides_a_training_setting():
    from unbraid.config import Training

    reserved = {*Training.fields(), "z", "data", "network", "encoder", "decoder", "likelihood"}
    reserved |= {"latents", "groups", "prior"}
    for name in objective:
        assert not reserved & set(objective[name].settings), name


@pytest.mark.parametrize("name", list(objective))
def test_weights_are_0_or_above_unless_they_are_signed(name):
    entry = objective[name]
    usual = entry.resolve({})
    for key in entry.sweepable:
        signed = key in entry.facts.signed
        if signed:
            bind(name, {**usual, key: -1.0})
        for value in (math.nan, math.inf) if signed else (-1.0, math.nan, math.inf):
            with pytest.raises(UsageError, match=naming(key, name)):
                bind(name, {**usual, key: value})
