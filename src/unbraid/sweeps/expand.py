"""From the settings of a sweep to the config of every member."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import nn

from unbraid.config import MAX_RANGE_VALUES, Choice, Config, combinations
from unbraid.data.factors import FactorDataset
from unbraid.errors import UsageError
from unbraid.run import Run
from unbraid.store import select_prefix
from unbraid.sweeps.plan import SweepPlan, to_canonical
from unbraid.sweeps.sources import Sources
from unbraid.sweeps.stages import choose_stage_settings, find_stage_data
from unbraid.training import check_settings, configure
from unbraid.training.choose import choose_settings
from unbraid.training.configure import is_multimodal, to_dotted

MAX_MEMBERS_WITHOUT_MANY = 10_000
"""A larger sweep needs --many."""

RESERVED = ("recipe", "data", "refines")
"""Axes that are not settings of a recipe."""


class MemberPlan(NamedTuple):
    """A member's config, and the settings that its tables show."""

    config: Config
    settings: dict[str, Any]


def read_axes(
    recipe: str | Sequence[str], data: Any, refines: Any, settings: Mapping[str, Any], sources: Sources
) -> dict[str, list[Any]]:
    """Return the list of values of every setting; a scalar is an axis of length 1."""
    recipes = [recipe] if isinstance(recipe, str) else list(recipe)
    values: dict[str, list[Any]] = {"recipe": recipes}
    if data is not None:
        listed = data if isinstance(data, list) else [data]
        several = bool(recipes) and is_multimodal(recipes[0])
        values["data"] = [str(one) if isinstance(one, (str, Path)) else sources.keep(one, several) for one in listed]
    if refines is not None:
        listed = refines if isinstance(refines, (list, tuple)) else [refines]
        values["refines"] = [str(one.path if isinstance(one, Run) else one) for one in listed]
    for key, value in (to_dotted(recipes[0], settings) if recipes else {}).items():
        if isinstance(value, nn.Module):
            raise UsageError(f"A sweep takes registered networks by name, so that workers can build them: '{key}'.")
        if isinstance(value, (list, range, np.ndarray)):
            if _length(value) > MAX_RANGE_VALUES:
                raise UsageError(f"The axis '{key}' has {_length(value):,} values, more than {MAX_RANGE_VALUES:,}.")
            if isinstance(value, np.ndarray) and value.ndim != 1:
                raise UsageError(f"The axis '{key}' is an array of shape {value.shape}; an axis has one dimension.")
            values[key] = list(value)
        else:
            values[key] = [value]
    for key, axis in values.items():
        if not axis:
            raise UsageError(f"The axis '{key}' has no value.")
        texts = [to_canonical(value) for value in axis]
        if len(set(texts)) < len(texts):
            raise UsageError(f"The axis '{key}' has a value twice.")
    return values


def _length(values: list[Any] | range | np.ndarray) -> int:
    """Return the number of values; the length of a range may exceed what `len` can say."""
    if isinstance(values, range):
        return max(0, -((values.start - values.stop) // values.step))
    return int(values.size) if isinstance(values, np.ndarray) else len(values)


def build_configs(plan: SweepPlan, sources: Sources, many: bool = False) -> dict[str, MemberPlan]:
    """Return the config of every member and the settings that its tables show, by run id."""
    by_recipe = {recipe: _values_of_recipe(recipe, plan.values) for recipe in plan.values["recipe"]}
    count = sum(math.prod(len(values) for values in axes.values()) for axes in by_recipe.values())
    if count > MAX_MEMBERS_WITHOUT_MANY and not many:
        limit = f"{MAX_MEMBERS_WITHOUT_MANY:,}"
        raise UsageError(f"This sweep has {count:,} members, more than {limit}; add --many to run it.")
    for recipe, values in by_recipe.items():  # before the data are loaded, which may take minutes
        check_settings(recipe, dict.fromkeys(_recipe_settings(recipe, values)))
    members: dict[str, MemberPlan] = {}
    for recipe, values in by_recipe.items():
        for chosen in combinations(values):
            config = _build_config(recipe, chosen, sources)
            if config.run_id in members:
                raise UsageError(f"Two members are the same run, {config.run_id}; one of their values is given twice.")
            shown = {k: v for k, v in chosen.items() if not k.startswith(f"{recipe}.") or len(values[k]) > 1}
            members[config.run_id] = MemberPlan(config, shown)
    return members


def _build_config(recipe: str, chosen: Mapping[str, Any], sources: Sources) -> Config:
    settings = _recipe_settings(recipe, chosen)
    if "refines" in chosen:
        first = sources.first_stage(chosen["refines"])
        start = first.folder.config
        settings = choose_stage_settings(recipe, start, {"seed": start.training.seed, **settings})
        choice, dataset = find_stage_data(start.data, first.dataset, settings)
        return configure(
            recipe, choice, dataset, _add_chosen(recipe, choice, dataset, settings), parent=first.description
        )
    data_settings = {key[5:]: settings.pop(key) for key in list(settings) if key.startswith("data.")}
    choice, dataset = sources.find(chosen["data"], data_settings, is_multimodal(recipe))
    return configure(recipe, choice, dataset, _add_chosen(recipe, choice, dataset, settings))


def _add_chosen(recipe: str, choice: Choice, dataset: FactorDataset, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a member with those that follow from the user's own data."""
    if settings.get("patience") is not None:
        raise UsageError("patience is for single runs: the members of a sweep train for the same number of steps.")
    following = choose_settings(recipe, choice, dataset, settings, single=False)
    return {**{setting.name: setting.value for setting in following}, **settings}


def _values_of_recipe(recipe: str, values: Mapping[str, Sequence[Any]]) -> dict[str, Sequence[Any]]:
    """Return the values that concern one recipe: `beta-tcvae.estimator` overrides `estimator` for beta-tcvae only."""
    others = tuple(f"{other}." for other in values["recipe"] if other != recipe)
    axes = {key: several for key, several in values.items() if not key.startswith(others)}
    for key in axes.keys() - set(RESERVED):
        if f"{recipe}.{key}" in axes:
            axes[key] = axes.pop(f"{recipe}.{key}")
    return {**axes, "recipe": [recipe]}


def _recipe_settings(recipe: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings as `configure` takes them, without the recipe's name as prefix."""
    settings = {key: value for key, value in values.items() if key not in RESERVED}
    common = {key: value for key, value in settings.items() if not key.startswith(f"{recipe}.")}
    return {**common, **select_prefix(f"{recipe}.", settings)}
