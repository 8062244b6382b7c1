"""The one training loop: it alternates players, logs, checkpoints and resumes, whichever method it trains."""

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from unbraid.config import Config
from unbraid.data.factors import FactorDataset
from unbraid.data.splits import split
from unbraid.errors import DivergedError, RunError, UsageError
from unbraid.methods import objective as objectives
from unbraid.models import build, seeded
from unbraid.objectives import Objective, bind
from unbraid.store import RunFolder
from unbraid.training.distributed import Elsewhere, World
from unbraid.training.environment import environment
from unbraid.training.execution import Execution
from unbraid.training.first_stage import first_stages, put_first
from unbraid.training.group import Group, System
from unbraid.training.interrupt import Interrupted, stoppable
from unbraid.training.memory import keep_freed_memory
from unbraid.training.modality_config import plain_layout
from unbraid.training.progress_bar import TrainingBar
from unbraid.training.readonly_folder import Onlooker
from unbraid.training.state import Divergence, State
from unbraid.training.sync_batchnorm import synchronise


class Mark(NamedTuple):
    """When a step was reached."""

    step: int
    time: float


@dataclass(frozen=True)
class Cadence:
    """How often things are written; none of it changes the result."""

    log_steps: int | None = None
    checkpoint_steps: int | None = None
    checkpoint_seconds: float = 60.0

    def __post_init__(self) -> None:
        for name in ("log_steps", "checkpoint_steps"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise UsageError(f"{name} must be at least 1, not {getattr(self, name)}.")

    def logs(self, step: int, steps: int) -> bool:
        """Whether a history line is due after `step` steps."""
        every = self.log_steps or max(1, min(100, steps // 50))
        return step % every == 0 or step == steps

    def checkpoints(self, step: int, seconds: float) -> bool:
        """Whether a checkpoint is due after `step` steps, `seconds` after the last one."""
        if self.checkpoint_steps is not None:
            return step % self.checkpoint_steps == 0
        return seconds >= self.checkpoint_seconds


def train(
    folder: RunFolder,
    config: Config,
    dataset: FactorDataset,
    cadence: Cadence | None = None,
    encoder: nn.Module | None = None,
    decoder: nn.Module | None = None,
    world: World | None = None,
) -> None:
    """Fit a config on a data set, where the data set is, into a folder; continues from the newest checkpoint."""
    (ended,) = train_group(folder, [folder], [config], dataset, cadence, encoder, decoder, world)
    if ended == "diverged":
        if world is not None and not world.leads:
            raise Elsewhere("Training diverged.")
        status = folder.read_json("status")
        good = folder.latest_checkpoint()
        kept = f"The last good checkpoint is at step {good[0]}" if good else "There is no checkpoint yet"
        raise DivergedError(
            f"Training of {folder.path} diverged at step {status['step']}: {status['term']} is no longer a finite, "
            f"sensible number. {kept}. Try a smaller lr, or clip=1."
        )


def train_group(
    group: RunFolder,
    folders: Sequence[RunFolder],
    configs: Sequence[Config],
    dataset: FactorDataset,
    cadence: Cadence | None = None,
    encoder: nn.Module | None = None,
    decoder: nn.Module | None = None,
    world: World | None = None,
) -> list[str]:
    """Fit configs that share all but their numbers as one program, each into a folder of its own.

    `group` holds their common checkpoints. Returns how each run ended: "finished" or "diverged". A diverged run stops
    moving and does not touch the others. In a `world` of several processes, the first one alone writes.
    """
    cadence, world = cadence or Cadence(), world or World()
    if not world.leads:
        group, folders = Onlooker(group.path), [Onlooker(folder.path) for folder in folders]
    with ExitStack() as held:
        with world.together():
            for folder in {each.path: each for each in (group, *folders)}.values():
                held.enter_context(folder.locked())
            stop = held.enter_context(stoppable(insistent=world.size == 1))
            firsts = first_stages(folders, configs)
            fit = Fit(group, list(folders), prepare(configs, dataset, encoder, decoder, world=world, firsts=firsts))
        world.equalise([*fit.state.group.parameters.values(), *fit.state.group.buffers.values()])
        with world.together():
            fit.begin(_describe(configs[0], dataset), dataset.device)
        seen = f"The processes see different checkpoints; {group.path} must be a folder that all of them share."
        world.refuse_difference(str(fit.state.step), seen)
        steps, state = configs[0].training.steps, fit.state
        saved_at, last = time.monotonic(), Mark(state.step, time.monotonic())
        bar = held.enter_context(TrainingBar(configs, state.step, shown=world.leads))
        while state.step < steps and fit.running:
            state.advance()
            bar.advance()
            if cadence.logs(state.step, steps):
                last = fit.log(last, bar)
            asked, waited = world.agreed(state.step, float(stop.asked), time.monotonic() - saved_at)
            if asked:
                fit.stop()
            if state.step < steps and cadence.checkpoints(state.step, waited):
                begun = time.monotonic()
                fit.checkpoint()
                saved_at = time.monotonic()
                # A large group writes gigabytes: saving must not take more than a fiftieth of the time.
                saved_at += max(0.0, 50 * (saved_at - begun) - cadence.checkpoint_seconds)
        return fit.finish()


class Fit:
    """A group's state and the folders that tell of it."""

    def __init__(self, group: RunFolder, folders: list[RunFolder], state: State) -> None:
        self.group, self.folders, self.state = group, folders, state
        self.diverged: dict[int, Divergence] = {}

    @property
    def running(self) -> dict[int, RunFolder]:
        """Folders of the members that still move."""
        return {m: folder for m, folder in enumerate(self.folders) if m not in self.diverged}

    def begin(self, data: dict[str, Any], device: torch.device) -> None:
        """Continue from the newest checkpoint, if there is one, and describe the runs."""
        found = self.group.latest_checkpoint()
        if found is not None:
            for folder in self.folders:
                if folder.read_json("data").get("content") != data["content"]:
                    raise RunError(
                        f"{folder.path} was begun on other data than these; train under another name, or --fresh."
                    )
            self.state.restore(*found)
        facts = {**environment(device), "processes": self.state.world.size}
        for member, folder in enumerate(self.folders):
            status = folder.read_json("status") if found is not None else {}
            if status.get("state") == "diverged":
                self.diverged[member] = Divergence(member, status["step"], status["term"])
            else:  # what a resumed run is about to write again
                folder.cut_history(self.state.step)
            folder.write_json("environment", facts)
            folder.write_json("data", data)
        self.tell("running")

    def check(self) -> None:
        """Take out members whose numbers are not usable, before those reach a history or a checkpoint."""
        for found in self.state.divergences():
            if found.member not in self.diverged:
                self.diverged[found.member] = found
                facts = {"state": "diverged", "step": found.step, "term": found.term}
                self.folders[found.member].write_json("status", facts)

    def tell(self, state: str) -> None:
        """Write the status of the members that still move."""
        for folder in self.running.values():
            content = {"content": folder.content()} if state == "finished" and self.state.world.leads else {}
            folder.write_json("status", {"state": state, "step": self.state.step, **content})

    def log(self, last: Mark, bar: TrainingBar) -> Mark:
        """Append a line to each history; returns the mark from which the next ones count."""
        self.check()
        lines = self.state.line()
        mark = Mark(self.state.step, time.monotonic())
        epochs = self.state.epochs
        rate = (mark.step - last.step) * epochs.batch * len(lines) / max(mark.time - last.time, 1e-9)
        facts = {"step": mark.step, "epoch": round(mark.step / epochs.per_epoch, 4)}
        shown = [lines[m] for m in self.running]
        for member, folder in self.running.items():
            folder.append("history", {**facts, **lines[member], "images_per_second": round(rate / len(lines), 1)})
        bar.show({name: sum(line[name] for line in shown) / len(shown) for name in lines[0]} if shown else {}, rate)
        return mark

    def checkpoint(self) -> None:
        """Save the whole group, unless nothing in it is worth it."""
        self.check()
        if self.running:
            self.group.save_checkpoint(self.state.step, self.state.tensors())
            self.tell("running")

    def stop(self) -> None:
        """Leave everything behind that a later call needs to go on."""
        self.checkpoint()
        self.tell("interrupted")
        self.state.world.meet()  # once a rank is gone, a launcher ends the others, and they may still be writing
        where = f"nothing is lost: {self.group.path}"
        raise Interrupted(f"Stopped at step {self.state.step}; continue with --resume ({where}).")

    def finish(self) -> list[str]:
        """Final weights of the members that got there; without them checkpoints stay for whoever wants to look."""
        for member, folder in self.running.items():
            folder.save_model(self.state.closed(member))
        self.tell("finished")
        self.state.world.meet()
        for folder in self.running.values():
            folder.parent_path.unlink(missing_ok=True)  # the weights that were just saved hold these
        for checkpoint in self.group.checkpoints() if self.running else ():
            checkpoint.unlink(missing_ok=True)
        return ["diverged" if m in self.diverged else "finished" for m in range(len(self.folders))]


def prepare(
    configs: Config | Sequence[Config],
    dataset: FactorDataset,
    encoder: nn.Module | None = None,
    decoder: nn.Module | None = None,
    execution: Execution | None = None,
    world: World | None = None,
    firsts: Sequence[Mapping[str, Tensor]] = (),
) -> State:
    """A fresh training state on the data set's device, of one run or of a group that shares all but its numbers.

    `firsts` are the weights of the first stages of runs that refine others; without them those are drawn at random.
    """
    configs = [configs] if isinstance(configs, Config) else list(configs)
    objective = bind(configs[0].objective.name, stacked_settings(configs, dataset.device))
    systems = [_system(config, objective, dataset, encoder, decoder) for config in configs]
    for system, config, first in zip(systems, configs, firsts, strict=False):
        if config.parent is not None:
            put_first(system.model, first, config.parent["run"])
    training = configs[0].training
    if training.batch == 1 and any(isinstance(m, _BatchNorm) and m.training for m in systems[0].modules()):
        raise UsageError("These networks have BatchNorm, which needs a batch of at least 2.")
    rows = split(dataset, training.split).train
    for system, config in zip(systems, configs, strict=True):
        system.model.begin(dataset, rows, config.training.seed)
        synchronise(system, 1 if world is None else world.size)
    group = Group(systems, dataset.device, training.precision)
    return State(group, objective, configs, dataset, rows, execution, world)


def rehearse(
    config: Config,
    dataset: FactorDataset,
    encoder: nn.Module | None = None,
    decoder: nn.Module | None = None,
    execution: Execution | None = None,
    world: World | None = None,
) -> None:
    """An error for what cannot be trained, also where only a step would tell, before it leaves a folder behind."""
    state = prepare(config, dataset, encoder, decoder, execution, world)
    alone = state if state.world.size == 1 else prepare(config, dataset, encoder, decoder)  # none waits for another
    alone.rehearse()


def stacked_settings(configs: Sequence[Config], device: torch.device) -> dict[str, Any]:
    """The objective's settings; a `Weight` in which members differ becomes a tensor [member]."""
    settings = dict(configs[0].objective.settings)
    dtype = torch.float64 if configs[0].training.precision == "f64" else torch.float32
    for name in objectives[configs[0].objective.name].sweepable:
        values = [config.objective.settings[name] for config in configs]
        if len(set(values)) > 1:
            settings[name] = torch.tensor(values, device=device, dtype=dtype)
    return settings


def _system(
    config: Config,
    objective: Objective,
    dataset: FactorDataset,
    encoder: nn.Module | None,
    decoder: nn.Module | None,
) -> System:
    model = build(config, dataset.layout, encoder, decoder)
    with seeded(config.training.seed + 1):
        system = System(model, objective.networks(model.space)).train()
    if dataset.device.type == "cpu":
        keep_freed_memory()
        system.to(memory_format=torch.channels_last)  # pyrefly: ignore[no-matching-overload]
    return system


def _describe(config: Config, dataset: FactorDataset) -> dict[str, Any]:
    """Facts about the data for a reader of the folder."""
    parts = split(dataset, config.training.split)
    return {
        "name": dataset.name,
        "content": dataset.content_hash(),
        "source": dataset.source,
        "images": len(dataset),
        "shape": plain_layout(dataset.layout),
        "factors": {factor.name: factor.size for factor in dataset.factors},
        "trained_on": len(parts.train),
        "held_out": 0 if parts.held_out is None else len(parts.held_out),
    }
