"""The contracts, over everything that is registered."""

import math

import pytest

from tests import contracts
from tests.support.messages import naming
from unbraid.data import dataset
from unbraid.errors import UsageError
from unbraid.latents import block, prior
from unbraid.methods import objective
from unbraid.metrics import metric
from unbraid.models import model
from unbraid.networks import decoder, encoder, flow, likelihood, refiner
from unbraid.objectives import bind
from unbraid.registry import read_settings

REGISTRIES = [objective, model, encoder, decoder, refiner, flow, block, prior, likelihood, metric, dataset]
ENTRIES = [registry[name] for registry in REGISTRIES for name in registry]
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


@pytest.mark.parametrize("name", list(block))
def test_block(name):
    contracts.check_block(name)


@pytest.mark.parametrize("name", MADE)
def test_dataset(name):
    contracts.check_dataset(name)


@pytest.mark.parametrize("name", list(metric))
def test_metric(name):
    contracts.check_metric(name)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_every_setting_is_read_by_what_declares_it(entry):
    contracts.check_settings_are_read(entry.make)


@pytest.mark.parametrize("name", list(objective))
def test_objective_and_model_agree_on_the_default_of_a_setting_that_both_read(name):
    entry = objective[name]
    own, of_model = read_settings(entry.make), model[entry.facts.model].settings
    for key in (own.keys() & of_model.keys()) - entry.facts.defaults.keys():
        assert own[key].default == of_model[key].default, key
    assert set(entry.facts.fixed) <= of_model.keys() - own.keys()


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
