"""The one training loop: it alternates players, logs, checkpoints and resumes, whichever method it trains."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn

from unbraid.config import Config
from unbraid.data.factors import FactorDataset
from unbraid.data.sampling import split
from unbraid.errors import DivergedError, RunError, UnbraidError, UsageError
from unbraid.models import build, seeded
from unbraid.objectives import Objective, bind
from unbraid.objectives import objective as objectives
from unbraid.store import RunFolder
from unbraid.training.environment import environment
from unbraid.training.group import Group, System
from unbraid.training.interrupt import stoppable
from unbraid.training.memory import keep_freed_memory
from unbraid.training.progress import TrainingBar
from unbraid.training.state import State


class Interrupted(UnbraidError):  # noqa: N818 (it is no error)
    """Training was asked to stop; everything so far is in the checkpoint."""

    exit_code = 130


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
) -> None:
    """Fit a config on a data set, where the data set is, into a folder; continues from the newest checkpoint."""
    cadence = cadence or Cadence()
    with folder.locked(), stoppable() as stop:
        state = prepare(config, dataset, encoder, decoder)
        described = _describe(config, dataset)
        _resume(folder, state, described["content"])
        folder.write_json("environment", environment(dataset.device))
        folder.write_json("data", described)
        folder.write_json("status", {"state": "running", "step": state.step})
        steps, saved_at, last = config.training.steps, time.monotonic(), Mark(state.step, time.monotonic())
        with TrainingBar(config, state.step) as bar:
            while state.step < steps:
                state.advance()
                bar.advance()
                if cadence.logs(state.step, steps):
                    _check(folder, state)
                    last = _log(folder, state, last, bar)
                if stop.asked:
                    _stop(folder, state)
                if state.step < steps and cadence.checkpoints(state.step, time.monotonic() - saved_at):
                    _checkpoint(folder, state)
                    saved_at = time.monotonic()
        _finish(folder, state)


def prepare(
    configs: Config | Sequence[Config],
    dataset: FactorDataset,
    encoder: nn.Module | None = None,
    decoder: nn.Module | None = None,
) -> State:
    """A fresh training state on the data set's device, of one run or of a group that shares all but its numbers."""
    configs = [configs] if isinstance(configs, Config) else list(configs)
    objective = bind(configs[0].objective.name, stacked_settings(configs, dataset.device))
    systems = [_system(config, objective, dataset, encoder, decoder) for config in configs]
    training = configs[0].training
    group = Group(systems, dataset.device, training.precision)
    return State(group, objective, configs, dataset, split(dataset, training.split).train)


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
    model = build(config, dataset.shape, encoder, decoder)
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
        "shape": list(dataset.shape),
        "factors": {factor.name: factor.size for factor in dataset.factors},
        "trained_on": len(parts.train),
        "held_out": 0 if parts.held_out is None else len(parts.held_out),
    }


def _resume(folder: RunFolder, state: State, content: str) -> None:
    found = folder.latest_checkpoint()
    if found is not None:
        if folder.read_json("data").get("content") != content:
            raise RunError(f"{folder.path} was begun on other data than these; train under another name, or --fresh.")
        state.restore(*found)
    folder.cut_history(state.step)


def _log(folder: RunFolder, state: State, last: Mark, bar: TrainingBar) -> Mark:
    """Append a history line; returns the mark from which the next one counts."""
    mark = Mark(state.step, time.monotonic())
    rate = (mark.step - last.step) * state.epochs.batch / max(mark.time - last.time, 1e-9)
    line = state.line()[0]
    epoch = state.step / state.epochs.per_epoch
    folder.append(
        "history", {"step": state.step, "epoch": round(epoch, 4), **line, "images_per_second": round(rate, 1)}
    )
    bar.show(line, rate)
    return mark


def _checkpoint(folder: RunFolder, state: State) -> None:
    _check(folder, state)
    folder.save_checkpoint(state.step, state.tensors())
    folder.write_json("status", {"state": "running", "step": state.step})


def _check(folder: RunFolder, state: State) -> None:
    """Stop at numbers that are not usable, before they reach a checkpoint."""
    found = state.diverged()
    if found is None and state.finite():
        return
    step, term, _ = found or (state.step - 1, "a parameter", 0)
    good = folder.latest_checkpoint()
    kept = f"The last good checkpoint is at step {good[0]}" if good else "There is no checkpoint yet"
    folder.write_json("status", {"state": "diverged", "step": step, "term": term})
    raise DivergedError(
        f"Training of {folder.path} diverged at step {step}: {term} is no longer a finite, sensible number. "
        f"{kept}. Try a smaller lr, or clip=1."
    )


def _stop(folder: RunFolder, state: State) -> None:
    _checkpoint(folder, state)
    folder.write_json("status", {"state": "interrupted", "step": state.step})
    raise Interrupted(f"Stopped at step {state.step}; continue with --resume (nothing is lost: {folder.path}).")


def _finish(folder: RunFolder, state: State) -> None:
    folder.save_model(state.group.member(0))
    folder.write_json("status", {"state": "finished", "step": state.step})
    for checkpoint in folder.checkpoints():
        checkpoint.unlink(missing_ok=True)
