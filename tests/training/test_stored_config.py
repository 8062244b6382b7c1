"""A stored config leads to the settings from which `configure` makes it again."""

import pytest
import torch

from tests.contracts import small_run
from tests.support.messages import naming
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


def write_table(path, names):
    """Write a table of the named columns: numbers, and two kinds."""
    cells = {"a": "{row}", "b": "{row}.5", "kind": "k{kind}"}
    lines = [",".join(cells[name].format(row=row, kind=row % 2) for name in names) for row in range(40)]
    path.write_text("\n".join([",".join(names), *lines]) + "\n")
    return str(path)


@pytest.fixture
def table_config(tmp_path):
    return make_config("vae", data=write_table(tmp_path / "table.csv", ["a", "b", "kind"]), network="mlp")


def test_columns_of_a_changed_table_are_its_own(table_config, tmp_path):
    assert look_up(table_config, "likelihood.widths") == [1, 1, 2]
    assert configure_again(table_config).run_id == table_config.run_id
    assert look_up(configure_again(table_config, **{"data.without": ("b",)}), "likelihood.widths") == [1, 2]
    other = write_table(tmp_path / "other.csv", ["kind", "b", "a"])
    assert look_up(configure_again(table_config, data=other), "likelihood.widths") == [2, 1, 1]
    write_table(tmp_path / "table.csv", ["a", "kind", "b"])
    assert look_up(configure_again(table_config), "likelihood.widths") == [1, 2, 1]


def test_columns_that_a_table_does_not_have_are_refused(table_config):
    for widths in ((2, 1, 1), (4,), (1, 1, 1, 1)):
        with pytest.raises(UsageError, match=naming("table.csv", "likelihood.widths", "a 1, b 1, kind 2")):
            configure_again(table_config, **{"likelihood.widths": widths})
    same = configure_again(table_config, **{"likelihood.widths": (1, 1, 2)})
    assert same.run_id == table_config.run_id


def test_pictures_have_no_columns(table_config):
    with pytest.raises(UsageError, match=naming("likelihood=mixed", "table", "images", "likelihood=bernoulli")):
        configure_again(table_config, data="sprites-small")


@pytest.mark.parametrize("likelihood", ["bernoulli", "categorical"])
def test_numbers_of_a_table_are_no_probabilities(table_config, likelihood):
    with pytest.raises(UsageError, match=naming(f"likelihood={likelihood}", "[0, 1]", "likelihood=gaussian")):
        configure_again(table_config, likelihood=likelihood)


def test_columns_of_an_array_add_up_to_its_width():
    choice, dataset = find_data(from_array(torch.rand(64, 5)), {}, torch.device("cpu"))
    given = {"network": "mlp", "likelihood": "mixed"}
    assert configure("vae", choice, dataset, given).likelihood.settings["widths"] == (1,) * 5
    configure("vae", choice, dataset, {**given, "likelihood.widths": (3, 2)})
    with pytest.raises(UsageError, match=naming("likelihood.widths=[3]", 5)):
        configure("vae", choice, dataset, {**given, "likelihood.widths": (3,)})
