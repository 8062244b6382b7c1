"""A stored config leads to the settings from which `configure` makes it again."""

import pytest
import torch

from tests.contracts import small_run
from unbraid.config import Config
from unbraid.data import from_array
from unbraid.data.find import find_data
from unbraid.errors import UsageError
from unbraid.methods import objective
from unbraid.training import configure
from unbraid.training.configure import is_multimodal, to_dotted
from unbraid.training.stored_config import list_settings_of

FIRST_STAGES = [recipe for recipe in objective if not objective[recipe].facts.stage]


def make_config(recipe, **given):
    """Return the config of a small run after it was written and read."""
    settings = to_dotted(recipe, {**small_run(recipe), **given})
    data = settings.pop("data", "sprites-small")
    choice, dataset = find_data(data, settings, torch.device("cpu"), is_multimodal(recipe))
    return Config.from_yaml(configure(recipe, choice, dataset, settings).to_yaml())


def configure_again(config, **changes):
    settings = list_settings_of(config, changes)
    recipe, data = config.objective.name, settings.pop("data")
    choice, dataset = find_data(data, settings, torch.device("cpu"), is_multimodal(recipe))
    return configure(recipe, choice, dataset, settings)


def look_up(config, place):
    """Return the value at `training.seed` of a config, as config.yaml stores it."""
    value = config.as_dict()
    for key in place.split("."):
        value = value[key]
    return value


@pytest.mark.parametrize("recipe", FIRST_STAGES)
def test_a_config_is_made_again(recipe):
    config = make_config(recipe)
    assert configure_again(config).run_id == config.run_id


@pytest.mark.parametrize(
    ("recipe", "given"),
    [
        ("hfvae", {"groups": None, "latents": "normal+concrete:3+concrete:4", "latents.c_1.temperature": 0.5}),
        ("vae", {"z": 3, "prior": "flow", "prior.depth": 2}),
        ("vae", {"split": 0.25, "patience": 3, "clip": 1.0, "data.positions": 4}),
        ("mvae", {"latents.s_m1.size": 2, "encoder.m1": "mlp", "encoder.m1.hidden": (8,)}),
    ],
)
def test_what_differs_from_defaults_is_made_again(recipe, given):
    config = make_config(recipe, **given)
    assert configure_again(config).run_id == config.run_id


@pytest.mark.parametrize(
    ("change", "place", "value"),
    [
        ({"seed": 7}, "training.seed", 7),
        ({"z": 5}, "latents.z.size", 5),
        ({"latents": "concrete:4"}, "latents.c.classes", 4),
        ({"encoder": "conv-small"}, "encoder.name", "conv-small"),
        ({"network": "conv-small"}, "decoder.name", "conv-small"),
        ({"encoder.hidden": (9,)}, "encoder.hidden", [9]),
        ({"data": "sprites-small"}, "data.positions", 16),
        ({"data.positions": 5}, "data.positions", 5),
    ],
)
def test_changes_win(change, place, value):
    config = make_config("vae", **{"network": "mlp", "data.positions": 4, "z": 3})
    assert look_up(configure_again(config, **change), place) == value


@pytest.mark.parametrize(
    ("change", "place", "value"),
    [
        ({"c": 7}, "latents.c.size", 7),
        ({"s": 3}, "latents.s_m1.size", 3),
        ({"network": "mlp"}, "encoder.m1.name", "mlp"),
        ({"encoder": "mlp", "encoder.hidden": (9,)}, "encoder.m1.hidden", [9]),
    ],
)
def test_changes_of_several_modalities_win(change, place, value):
    assert look_up(configure_again(make_config("partitioned-mvae"), **change), place) == value


def test_what_a_config_does_not_hold_is_asked_for():
    data = from_array(torch.rand(64, 1, 32, 32))
    choice, dataset = find_data(data, {}, torch.device("cpu"))
    config = configure("vae", choice, dataset, {"network": "mlp"})
    with pytest.raises(UsageError, match="data=NAME"):
        list_settings_of(config)
    assert list_settings_of(config, {"data": "sprites-small"})["data"] == "sprites-small"
