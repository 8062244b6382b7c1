"""From what was asked for to the config of every member."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from unbraid.config import Config, combinations
from unbraid.errors import UsageError
from unbraid.store import under
from unbraid.sweeps.folder import Statement
from unbraid.sweeps.sources import Sources, canonical
from unbraid.training import configure, refuse_unknown
from unbraid.training.configure import dotted

MANY = 10_000
"""Members beyond which a sweep wants to hear that they are meant."""


def values_of_settings(
    recipe: str | Sequence[str], data: Any, settings: Mapping[str, Any], sources: Sources
) -> dict[str, list[Any]]:
    """The values of every setting, as plain words and numbers."""
    recipes = [recipe] if isinstance(recipe, str) else list(recipe)
    named = data if isinstance(data, list) else [data]
    known = [str(one) if isinstance(one, (str, Path)) else sources.keep(one) for one in named]
    values: dict[str, list[Any]] = {"recipe": recipes, "data": known}
    for key, value in (dotted(recipes[0], settings) if recipes else {}).items():
        if isinstance(value, nn.Module):
            raise UsageError(
                f"A sweep takes registered networks by name, so that workers can build them; '{key}' is not."
            )
        values[key] = list(value) if isinstance(value, (list, range, np.ndarray)) else [value]
    for key, several in values.items():
        if not several:
            raise UsageError(f"The axis '{key}' has no value.")
        texts = [canonical(value) for value in several]
        if len(set(texts)) < len(texts):
            raise UsageError(f"The axis '{key}' has a value twice.")
    return values


def configured(
    statement: Statement, sources: Sources, many: bool
) -> tuple[dict[str, Config], dict[str, dict[str, Any]]]:
    """Config and settings of each member, by run id."""
    count = sum(math.prod(len(values) for values in one.values()) for one in _by_recipe(statement).values())
    if count > MANY and not many:
        raise UsageError(f"This sweep has {count:,} members, more than {MANY:,}; add --many if that is meant.")
    for recipe, values in _by_recipe(statement).items():  # before minutes are spent on data
        refuse_unknown(recipe, dict.fromkeys(_settings(recipe, values)))
    configs: dict[str, Config] = {}
    asked: dict[str, dict[str, Any]] = {}
    for recipe, values in _by_recipe(statement).items():
        for chosen in combinations(values):
            own = _settings(recipe, chosen)
            of_data = {key[5:]: own.pop(key) for key in list(own) if key.startswith("data.")}
            config = configure(recipe, *sources.find(chosen["data"], of_data), own)
            if config.run_id in configs:
                raise UsageError(f"Two members are the same run, {config.run_id}; one of their values is given twice.")
            told = {k: v for k, v in chosen.items() if not k.startswith(f"{recipe}.") or len(values[k]) > 1}
            configs[config.run_id], asked[config.run_id] = config, told
    return configs, asked


def _by_recipe(statement: Statement) -> dict[str, dict[str, Sequence[Any]]]:
    """The values that concern each recipe: a setting `beta-tcvae.estimator` is beta-tcvae's alone."""
    return {recipe: _own_values(recipe, statement.values) for recipe in statement.values["recipe"]}


def _own_values(recipe: str, values: Mapping[str, Sequence[Any]]) -> dict[str, Sequence[Any]]:
    """The values for one recipe: what is said for it alone takes the place of what is said for all."""
    others = tuple(f"{other}." for other in values["recipe"] if other != recipe)
    own = {key: several for key, several in values.items() if not key.startswith(others)}
    for key in own.keys() - {"recipe", "data"}:
        if f"{recipe}.{key}" in own:
            own[key] = own.pop(f"{recipe}.{key}")
    return {**own, "recipe": [recipe]}


def _settings(recipe: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as `configure` takes them: without the recipe's name before what is said for it alone."""
    own = {key: value for key, value in values.items() if key not in ("recipe", "data")}
    return {**{k: v for k, v in own.items() if not k.startswith(f"{recipe}.")}, **under(f"{recipe}.", own)}
