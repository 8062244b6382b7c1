"""From what was asked for to the config of every member."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from unbraid.api import dotted
from unbraid.config import Config, combinations
from unbraid.errors import UsageError
from unbraid.sweeps.folder import Statement
from unbraid.sweeps.sources import Sources, canonical
from unbraid.training import configure, refuse_unknown

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
    count = math.prod(len(values) for values in statement.values.values())
    if count > MANY and not many:
        raise UsageError(f"This sweep has {count:,} members, more than {MANY:,}; add --many if that is meant.")
    for recipe in statement.values["recipe"]:  # before minutes are spent on data
        refuse_unknown(recipe, {key: None for key in statement.values if key not in ("recipe", "data")})
    configs: dict[str, Config] = {}
    asked: dict[str, dict[str, Any]] = {}
    for settings in combinations(statement.values):
        own = {key: value for key, value in settings.items() if key not in ("recipe", "data")}
        of_data = {key[5:]: own.pop(key) for key in list(own) if key.startswith("data.")}
        config = configure(settings["recipe"], *sources.find(settings["data"], of_data), own)
        if config.run_id in configs:
            raise UsageError(f"Two members are the same run, {config.run_id}; one of their values is given twice.")
        configs[config.run_id], asked[config.run_id] = config, settings
    return configs, asked
