"""Refuse misspelt names before torch is imported, which takes seconds.

A check refuses only what the command itself would refuse. It is skipped once torch is imported: the registries then
answer as fast, and they know names that were registered since. Names of installed plugins are in no source of ours, so
with plugins the registries decide, too.
"""

import difflib
import functools
import importlib.metadata
import os
import shlex
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from unbraid.cli.source_names import DATASETS, EXPERIMENTS, METRICS, OBJECTIVES, occurs_in_source, registered_names
from unbraid.errors import RunError, UsageError, unknown
from unbraid.names import DEMO, HUB, list_metric_names, match_experiments, unknown_data
from unbraid.plugins import GROUP

LIKENESS_OF_SETTINGS = 0.75
"""Likeness, from 0 to 1, above which a word is taken for a misspelt setting."""


def before_torch(check: Callable[..., None]) -> Callable[..., None]:
    """Skip a check if torch is imported already, or if plugins are installed (a decorator)."""

    @functools.wraps(check)
    def check_early(*given: Any) -> None:
        if "torch" in sys.modules:
            return
        try:
            check(*given)
        except UsageError:
            if not importlib.metadata.entry_points(group=GROUP):
                raise

    return check_early


@before_torch
def check_recipes(recipes: Iterable[str]) -> None:
    known = registered_names(*OBJECTIVES)
    for recipe in recipes:
        if recipe not in known:
            raise unknown("objective", recipe, known)


@before_torch
def check_data_set(name: str) -> None:
    """Raise unless a name is that of a data set."""
    known = registered_names(*DATASETS)
    if name not in known:
        raise unknown("data set", name, known)


@before_torch
def check_data(data: str) -> None:
    """Raise unless data are a data set, a folder or a file; those with an ending are left to their readers."""
    from unbraid.folder_names import to_path

    is_file_name = bool(to_path(data, "data").suffix)
    known = registered_names(*DATASETS)
    if data not in known and not is_file_name and not os.path.exists(data):  # noqa: PTH110 (Path's may raise)
        raise unknown_data(data, known)


@before_torch
def check_metrics(names: Iterable[str]) -> None:
    known = list_metric_names(registered_names(*METRICS))
    for name in names:
        if name not in known:
            raise unknown("metric", name, known)


@before_torch
def check_experiment(name: str) -> None:
    match_experiments(name, registered_names(*EXPERIMENTS))


def check_run(path: str | Path) -> None:
    """Raise unless a path is that of a run or a sweep, the packaged run, or an address on the hub."""
    from unbraid.folder_names import to_path

    folder = to_path(path, "A run")
    if str(path) != DEMO and not str(path).startswith(HUB) and not (folder / "sweep.yaml").exists():
        _check_holds_no_runs(folder)
        _check_run_folder(folder)


def _check_holds_no_runs(folder: Path) -> None:
    """Raise for a folder of several runs or sweeps."""
    if not (folder / "config.yaml").exists() and any(
        next(folder.glob(f"*/{name}"), None) for name in ("config.yaml", "sweep.yaml")
    ):
        listing = f"unbraid runs {shlex.quote(str(folder))}"
        raise RunError(f"{folder} is not a run, it holds several: it has no config.yaml; {listing} lists them.")


@before_torch
def _check_run_folder(folder: Path) -> None:
    from unbraid.store import RunFolder

    RunFolder.open(folder)


@before_torch
def check_settings(recipe: str, settings: Iterable[str]) -> None:
    """Raise for a misspelt setting that all recipes have, such as steps; only a recipe itself knows its others."""
    from unbraid.config import MODEL_SETTINGS, Training

    common = ["data", *Training.fields(), *MODEL_SETTINGS]
    for key in settings:
        if "." in key or key.partition("_")[0] in common:  # a setting of a part, as encoder.width, or a common one
            continue
        near = difflib.get_close_matches(key, common, n=1, cutoff=LIKENESS_OF_SETTINGS)
        if near and not occurs_in_source(key):
            raise UsageError(
                f"Unknown setting '{key}' of recipe '{recipe}'. Did you mean '{near[0]}'? "
                f"unbraid train --help names the common settings, unbraid show {recipe} those of the recipe."
            )
