"""Train and refine single runs.

A run is a group of one: it takes the same path as the groups of a sweep (`unbraid.sweeps.worker`).
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from unbraid.config import Choice, Config
from unbraid.data.factors import FactorDataset
from unbraid.data.find import Data, find_data
from unbraid.data.tables import explain_constant_columns, explain_scale
from unbraid.errors import UnbraidError, UsageError
from unbraid.folder_names import check_folder_name, to_path
from unbraid.invocation import choose_wording
from unbraid.memory import explain_out_of_memory, is_out_of_memory
from unbraid.open_run import load
from unbraid.printable import say, shorten
from unbraid.progress import announce
from unbraid.replaced_runs import restore_replaced
from unbraid.run import Run, check_same_data
from unbraid.store import RunFolder
from unbraid.sweeps.stages import (
    FirstStage,
    choose_stage_settings,
    find_stage_data,
    find_stage_recipe,
    record_code_change,
)
from unbraid.sweeps.worker import train_and_score
from unbraid.training import Cadence, GroupFolders, check_settings, choose_device, configure
from unbraid.training.choose import choose_settings
from unbraid.training.configure import is_multimodal, to_dotted
from unbraid.training.distributed import World, join_world
from unbraid.training.first_stage import (
    check_data_of_first_stage,
    check_same_first_stage,
    copy_first_stage_weights,
    describe_first_stage,
)
from unbraid.training.grouping import parameter_bytes
from unbraid.training.loop import check_not_diverged
from unbraid.training.origins import say_changed_code
from unbraid.training.prepare import prepare
from unbraid.training.resources import Runs, check_disk, check_memory
from unbraid.training.state import State
from unbraid.types import Modules


class Destination(NamedTuple):
    """The folder of a run, and the treatment of a run that it already holds."""

    root: Path
    name: str | None
    resume: bool | None
    fresh: bool
    cadence: Cadence


def train(
    recipe: str,
    *,
    data: Data = "sprites",
    encoder: str | nn.Module | None = None,
    decoder: str | nn.Module | None = None,
    device: str | torch.device = "auto",
    root: str | bytes | Path = "runs",
    name: str | None = None,
    resume: bool | None = None,
    fresh: bool = False,
    cadence: Cadence | None = None,
    track: str | Sequence[str] = (),
    **overrides: Any,
) -> Run:
    """Train a recipe on data and return the finished run.

    `data` is a registered name, a folder of pictures, a table (`unbraid.data.from_table`: a CSV, Parquet or NPY file,
    or a DataFrame), an array (images as bytes or floats, or feature vectors), a torch Dataset, a `FactorDataset`, or
    several modalities: a CSV file (`unbraid.data.from_csv`) or arrays by name (`unbraid.data.from_arrays`).
    `data_KEY=…` is a setting of a named data set, a folder or a file. `encoder` and `decoder` may be registered names
    or modules of your own. Every other keyword is a setting of the recipe, its networks or the training (see `unbraid
    list objectives`).

    The run is in `root / name`, by default named by a hash of its settings. A finished run of the same settings is
    returned unchanged; an unfinished one is continued, or refused with `resume=False`. `resume=True` says if there is
    nothing to continue. `fresh` replaces a run of that name once everything else has been checked. `track` names
    trackers of the history (`tensorboard`, `wandb`, `mlflow`). Under torchrun all processes train this run together.
    """
    destination = _choose_destination(root, name, resume, fresh, Cadence.of(cadence, track))
    torch_device = choose_device(device)
    settings = to_dotted(recipe, {**overrides, **_drop_none(encoder=encoder, decoder=decoder)})
    check_settings(recipe, settings)  # before the data are loaded, which may take minutes
    choice, dataset = find_data(data, settings, torch_device, is_multimodal(recipe))
    return _train_one(recipe, choice, dataset, settings, destination)


def refine(
    run: Run | str | bytes | Path,
    kind: str = "vae",
    *,
    data: Data | None = None,
    encoder: str | nn.Module | None = None,
    decoder: str | nn.Module | None = None,
    device: str | torch.device = "auto",
    root: str | bytes | Path = "runs",
    name: str | None = None,
    resume: bool | None = None,
    fresh: bool = False,
    cadence: Cadence | None = None,
    track: str | Sequence[str] = (),
    **overrides: Any,
) -> Run:
    """Refine a finished run by a second stage, and return the stage as a new run; the first stage stays frozen.

    `kind` is the kind of stage (`vae`, `flow`, `labels`, `gan`, `cgan`, `code`, `student`); every other keyword is a
    setting of its recipe, as in `train`. The stage has the data and the split of the first run, unless `split` is given
    (the stages of a `pendulum` may also differ in `data_observed`). `data` is needed only if the run's data were passed
    in; `device` is used only if `run` is a path. `Run.unchanged` of the result holds the largest change of the first
    stage's codes, which is 0 except for a `student`.
    """
    recipe = find_stage_recipe(kind)
    first = run if isinstance(run, Run) else load(run, device=device)
    parent = describe_first_stage(first.folder)
    if fresh and name is not None and (to_path(root, "root") / name).resolve() == first.path.resolve():
        raise UsageError(f"A fresh run named {name} would remove {first.path}, the run to refine; choose another name.")
    if data is not None:
        dataset = find_data(data, {}, first.device, is_multimodal(first.config.objective.name))[1]
        check_data_of_first_stage(first.folder, dataset)
        first = Run(first.folder, dataset=dataset)
    settings = choose_stage_settings(
        recipe, first.config, {**overrides, **_drop_none(encoder=encoder, decoder=decoder)}
    )
    choice, dataset = find_stage_data(first.config.data, first.dataset, settings)
    _ = first.evaluation  # raises now what the comparison of codes after training would raise
    destination = _choose_destination(root, name, resume, fresh, Cadence.of(cadence, track))
    return _train_one(recipe, choice, dataset, settings, destination, FirstStage(first.folder, parent, first.dataset))


def _choose_destination(root: Any, name: Any, resume: Any, fresh: Any, cadence: Cadence) -> Destination:
    if name is not None:
        check_folder_name(name)
    for key, value in (("resume", True if resume is None else resume), ("fresh", fresh)):
        if not isinstance(value, (bool, np.bool_)):
            raise UsageError(f"{key} must be True or False, not {shorten(repr(value))}.")
    return Destination(to_path(root, "root"), name, None if resume is None else bool(resume), bool(fresh), cadence)


@explain_out_of_memory("Training", "lower batch, z, or the widths of encoder and decoder, or use smaller data")
def _train_one(
    recipe: str,
    choice: Choice,
    dataset: FactorDataset,
    settings: dict[str, Any],
    destination: Destination,
    first: FirstStage | None = None,
) -> Run:
    """Train a run unless it is finished; `first` is the run that it refines."""
    own = {key: settings.pop(key) for key in Modules._fields if isinstance(settings.get(key), nn.Module)}
    modules, parent = Modules(**own), None if first is None else first.description
    with join_world(dataset.device) as world:
        world.broadcast(tensor for module in own.values() for tensor in module.state_dict().values())
        settings |= _choose_from_data(recipe, choice, dataset, {**settings, **own}, world)
        config = configure(recipe, choice, dataset, settings, modules, parent)
        name = destination.name or config.run_id
        check_folder_name(name)
        path = destination.root / name
        if world.leads and destination.resume and not destination.fresh:
            _say_if_nothing_to_resume(RunFolder(path))
        with world.all_or_none():
            folder, state = _create_folder(path, config, dataset, modules, world, destination.fresh, first)
        world.check_equal(config.run_id, "The processes of this run have different settings or data.")
        reused = folder.finished
        if reused:
            check_same_data(folder, dataset)
            say_changed_code(folder)
        else:
            if folder.ended:
                folder.check_has_weights()
            if destination.resume is False and folder.checkpoints():
                how = choose_wording("--resume", "resume=True")
                raise UsageError(f"{folder.path} holds an unfinished run of these settings; continue it with {how}.")
            group = GroupFolders(folder, [folder], destination.cadence)
            train_and_score(group, dataset, world=world, state=state, modules=modules)
            check_not_diverged(folder, world, explain_scale(dataset))
        if first is not None and world.leads:
            record_code_change(first, folder, dataset, modules)
        if world.leads:
            folder.remove_replaced()
        world.wait()
    run = Run(folder, dataset=dataset, **own)
    run.reused = reused
    return run


def _say_if_nothing_to_resume(folder: RunFolder) -> None:
    """Say that a run starts at step 0; a misspelt name should not go unnoticed, and job scripts always resume."""
    if not folder.path.exists():
        announce(f"There is no run {folder.path} to resume; it starts at step 0.")
    elif not folder.ended and not folder.checkpoints():
        announce(f"{folder.path} has no checkpoint to resume from; it starts at step 0.")


def _choose_from_data(
    recipe: str, choice: Choice, dataset: FactorDataset, given: Mapping[str, Any], world: World
) -> dict[str, Any]:
    """Return settings that follow from the user's own data, after printing each with its reason, and notes on them."""
    chosen = choose_settings(recipe, choice, dataset, given)
    if world.leads and (note := explain_constant_columns(dataset)):
        announce(f"note: {note}")
    for setting in chosen if world.leads else ():
        announce(f"  {setting}")
    return {setting.name: setting.value for setting in chosen}


def _create_folder(
    path: Path,
    config: Config,
    dataset: FactorDataset,
    modules: Modules,
    world: World,
    fresh: bool,
    first: FirstStage | None,
) -> tuple[RunFolder, State | None]:
    """Create the run's folder, after a rehearsal that raises if the config cannot be trained."""
    state = None
    if not fresh:
        check_same_first_stage(path, config)
        _check_same_data_as_before(path, config, dataset)
    if fresh or not (path / "config.yaml").exists():
        first_weights = () if first is None else [first.weights]
        state = prepare(config, dataset, modules, world=world, first_weights=first_weights)
        with _blame_own_modules(modules):
            state.rehearse()
        check_memory(state)
        if world.leads:
            check_disk([Runs(parameter_bytes(state))], path)
    if not world.leads:
        return RunFolder(path), state
    restore_replaced(path, finished=False)
    aside = RunFolder.set_aside(path) if fresh else None
    folder = RunFolder.create(path, config)
    if aside is not None:
        say(f"The run that was in {path} is kept as {aside} until the new one has finished.")
    if first is not None:
        copy_first_stage_weights(first.folder, folder)
    return folder, state


def _check_same_data_as_before(path: Path, config: Config, dataset: FactorDataset) -> None:
    """Raise if the data of the run in a folder have changed since.

    Settings that follow from the data then differ, too, but they are not the cause.
    """
    if (path / "config.yaml").exists() and RunFolder(path).config.data == config.data:
        check_same_data(RunFolder(path), dataset)


@contextmanager
def _blame_own_modules(modules: Modules) -> Iterator[None]:
    """Name the user's module if the first step fails with it, whatever it raises."""
    own = [side for side, module in modules._asdict().items() if module is not None]
    try:
        yield
    except UnbraidError:
        raise
    except Exception as error:
        if not own or is_out_of_memory(error):
            raise
        reason = shorten((str(error).strip().splitlines() or [""])[0], 200)
        raise UsageError(
            f"The first step fails with your own {' and '.join(own)} ({type(error).__name__}: {reason}); "
            "an encoder returns numbers [batch, outputs], a decoder those of the observations."
        ) from error


def _drop_none(**settings: Any) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if value is not None}
