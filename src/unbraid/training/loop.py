"""The one training loop: it steps, logs, checkpoints and resumes, whatever the method."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from unbraid.config import Config
from unbraid.data.factors import FactorDataset
from unbraid.data.splits import split
from unbraid.data.tables import describe_columns
from unbraid.errors import DivergedError, RunError, UsageError
from unbraid.printable import say, shorten
from unbraid.progress import Progress, announce, progress
from unbraid.store import RunFolder, advise_other_name, replace_non_finite
from unbraid.threads import say_if_cores_are_busy
from unbraid.tracking import Trackers, check_trackers
from unbraid.training.distributed import StoppedElsewhereError, World
from unbraid.training.duration_notice import DurationNotice
from unbraid.training.early_stopping import HeldOutWatch
from unbraid.training.environment import describe_continuation, describe_environment
from unbraid.training.first_stage import load_first_stages
from unbraid.training.interrupt import Interrupted, catch_interrupts
from unbraid.training.modality_config import layout_to_json
from unbraid.training.origins import MODULES, list_origins, say_changed_code
from unbraid.training.prepare import prepare
from unbraid.training.readonly_folder import ReadOnlyRunFolder
from unbraid.training.state import Divergence, State
from unbraid.types import NO_MODULES, Modules

MAX_CHECKPOINT_SHARE = 1 / 50
"""Share of the training time that checkpoints may take: a large group writes gigabytes."""


MAX_WRITERS = 8
"""Members whose weights are written at once."""


class Mark(NamedTuple):
    """A step and the time at which it was reached."""

    step: int
    time: float


@dataclass(frozen=True)
class Cadence:
    """Intervals of history lines and checkpoints, and the trackers of the history; they do not change the result."""

    log_steps: int | None = None
    checkpoint_steps: int | None = None
    checkpoint_seconds: float = 60.0
    track: Sequence[str] = ()
    snapshot: float | None = None
    """Share of the steps after which each run also keeps its weights, to see whether its scores still change."""

    def __post_init__(self) -> None:
        check_trackers(self.track)
        for name in ("log_steps", "checkpoint_steps"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise UsageError(f"{name} must be at least 1, not {getattr(self, name)}.")
        if self.snapshot is not None and not 0 < self.snapshot < 1:
            raise UsageError(f"snapshot is a share of the steps between 0 and 1, not {self.snapshot}.")

    @classmethod
    def of(cls, cadence: "Cadence | None", track: str | Sequence[str] = ()) -> "Cadence":
        """Return a cadence, or the default one, with these trackers added."""
        if not isinstance(cadence, (cls, type(None))):
            raise UsageError(f"cadence must be a Cadence, not {shorten(repr(cadence))}.")
        if not isinstance(track, (str, list, tuple)):
            raise UsageError(f"track must be names of trackers, not {shorten(repr(track))}.")
        names = (track,) if isinstance(track, str) else tuple(track)
        return replace(cadence or cls(), track=(*(cadence.track if cadence else ()), *names))

    def logs(self, step: int, steps: int) -> bool:
        """Return whether a history line is due after `step` of `steps` steps."""
        every = self.log_steps or max(1, min(100, steps // 50))
        return step % every == 0 or step == steps

    def checkpoints(self, step: int, seconds: float) -> bool:
        """Return whether a checkpoint is due after `step` steps, `seconds` after the last one."""
        if self.checkpoint_steps is not None:
            return step % self.checkpoint_steps == 0
        return seconds >= self.checkpoint_seconds

    def takes_snapshot(self, step: int, steps: int) -> bool:
        """Return whether the weights after `step` of `steps` steps are kept."""
        return self.snapshot is not None and step == max(1, round(self.snapshot * steps)) < steps


@dataclass(frozen=True)
class GroupFolders:
    """The folder of a group's common checkpoints, the folders of its runs, and its cadence.

    `values` are those of a sweep's axes that all its runs share, in words, for the progress line.
    """

    checkpoints: RunFolder
    runs: Sequence[RunFolder]
    cadence: Cadence = Cadence()
    values: str = ""


def check_not_diverged(folder: RunFolder, world: World | None = None, advice: str = "") -> None:
    """Raise `DivergedError` if training left the finite numbers; `advice` says what to do if the data are the cause."""
    status = folder.read_json("status")
    if status.get("state") != "diverged":
        return
    if world is not None and not world.leads:
        raise StoppedElsewhereError("Training diverged.")
    good = folder.latest_checkpoint()
    kept = f"The last good checkpoint is at step {good[0]}" if good else "There is no checkpoint yet"
    raise DivergedError(
        f"Training of {folder.path} diverged at step {status['step']}: {status['term']} is no longer a finite, "
        f"sensible number. {kept}. {advice or 'Try a smaller lr, or clip=1.'}"
    )


def train_group(
    group: GroupFolders,
    dataset: FactorDataset,
    world: World | None = None,
    state: State | None = None,
    modules: Modules = NO_MODULES,
) -> list[str]:
    """Train runs of one structure as one program, and return how each ended: "finished" or "diverged".

    `state` is their training state if it has been prepared already; it takes no steps afterwards. A diverged run stops
    without touching the others. In a `world` of several processes only rank 0 writes.
    """
    checkpoints, folders, cadence, world = group.checkpoints, group.runs, group.cadence, world or World()
    configs = [folder.config for folder in folders]
    if not world.leads:
        checkpoints = ReadOnlyRunFolder(checkpoints.path)
        folders = [ReadOnlyRunFolder(folder.path) for folder in folders]
    with ExitStack() as stack:
        with world.all_or_none():
            for folder in {each.path: each for each in (checkpoints, *folders)}.values():
                stack.enter_context(folder.locked())
            stop = stack.enter_context(catch_interrupts(second_ends=world.size == 1))
            if state is None:
                first_weights = load_first_stages(folders, configs)
                state = prepare(configs, dataset, modules, world=world, first_weights=first_weights)
        stack.callback(state.release)
        world.broadcast([*state.group.parameters.values(), *state.group.buffers.values()])
        watch = _watch_held_out(state, configs, dataset)
        training = GroupTraining(checkpoints, list(folders), state, configs, watch)
        stack.callback(training.close_trackers)
        with world.all_or_none():
            training.begin(_describe_data(configs[0], dataset), dataset.device, cadence.track if world.leads else ())
        message = f"The processes see different checkpoints; {checkpoints.path} must be a folder that all share."
        world.check_equal(str(state.step), message)
        steps = configs[0].training.steps
        saved_at, last = time.monotonic(), Mark(state.step, time.monotonic())
        words = _describe_runs(configs, group.values)
        bar = stack.enter_context(progress(words, steps, 0.0, done=state.step, shown=world.leads))
        bar.terms = ""
        notice = DurationNotice(configs[0].training, world.leads and state.step == 0 and dataset.device.type == "cpu")
        while state.step < steps and training.running and not training.stops_early:
            state.advance()
            bar.advance()
            notice.check(bar)
            training.watch_held_out()
            if cadence.logs(state.step, steps) or training.stops_early:
                last = training.log(last, bar)
            if cadence.takes_snapshot(state.step, steps):
                training.keep_snapshot()
            stopping, seconds = world.agree(state.step, float(stop.requested), time.monotonic() - saved_at)
            if stopping:
                training.stop()
            if state.step < steps and cadence.checkpoints(state.step, seconds):
                started = time.monotonic()
                training.checkpoint()
                saved_at = time.monotonic()
                saved_at += max(0.0, (saved_at - started) / MAX_CHECKPOINT_SHARE - cadence.checkpoint_seconds)
        if training.stops_early and world.leads:
            announce(training.watch.describe_stop())
        return training.finish()


class GroupTraining:
    """The state of a group, the folders that record its training, and the watch that may end it early."""

    def __init__(
        self,
        checkpoints: RunFolder,
        folders: list[RunFolder],
        state: State,
        configs: Sequence[Config],
        watch: HeldOutWatch,
    ) -> None:
        self.checkpoints, self.folders, self.state, self.watch = checkpoints, folders, state, watch
        self.stops_early = False
        self.steps = configs[0].training.steps
        self.runs = [config.run_id for config in configs]
        self.owner: dict[str, Any] = {}
        self.diverged: dict[int, Divergence] = {}
        self.trackers: list[Trackers] = []

    @property
    def running(self) -> dict[int, RunFolder]:
        """Folders of the members that have not diverged."""
        return {m: folder for m, folder in enumerate(self.folders) if m not in self.diverged}

    def begin(self, data: dict[str, Any], device: torch.device, track: Sequence[str] = ()) -> None:
        """Restore the newest checkpoint, if there is one, write the facts about data and environment, open trackers."""
        players = [optimizer.player.name for optimizer in self.state.players]
        self.owner = {"runs": self.runs, "data": data["content"], "players": players}
        if self.checkpoints.checkpoints():
            self._check_data(data["content"])
        say_once = say if self.state.world.leads else lambda sentence: None
        found = self.checkpoints.latest_checkpoint(self.owner, self.steps, say_once)
        facts = {**describe_environment(device), "processes": self.state.world.size, "group": len(self.folders)}
        if found is not None:
            self.state.restore(*found)
            self.watch.restore(found[1], say_once)
            self.stops_early = self.watch.stops
            if self.state.world.leads:
                announce(f"{self.checkpoints.path} continues at step {self.state.step} of {self.steps}.")
            self._compare_threads(facts["threads"], say_once)
            for folder in self.folders if self.state.world.leads else ():
                say_changed_code(folder)
        for member, folder in enumerate(self.folders):
            status = folder.read_json("status") if found is not None else {}
            if status.get("state") == "diverged":
                self.diverged[member] = Divergence(member, status["step"], status["term"])
            else:  # a resumed run writes these lines again
                folder.cut_history(self.state.step)
            folder.write_json("environment", facts)
            folder.write_json("data", data)
            if origins := list_origins(folder.config):
                folder.write_json(MODULES, {"entries": origins})
        if device.type == "cpu" and self.state.world.size == 1:
            say_if_cores_are_busy()
        self.trackers = [Trackers(folder, track, self.state.step) for folder in self.folders]
        self.write_status("running")

    def _check_data(self, content: str) -> None:
        for folder in self.folders:
            if folder.read_json("data").get("content", content) != content:
                raise RunError(f"{folder.path} was begun on other data; {advise_other_name()}.")

    def _compare_threads(self, threads: int, report: Callable[[str], None]) -> None:
        """Say if a run is continued with another number of threads: sums are then rounded differently."""
        before = self.folders[0].read_json("environment").get("threads", threads)
        if before != threads:
            report(
                f"{self.folders[0].path} was begun with {before} threads and continues with {threads}; its weights "
                f"will differ in the last digits from those of an unbroken run (OMP_NUM_THREADS={before} avoids this)."
            )

    def close_trackers(self) -> None:
        for trackers in self.trackers:
            trackers.close()

    def drop_diverged(self) -> None:
        """Drop members that have diverged, before their numbers reach a history or a checkpoint."""
        for divergence in self.state.find_divergences():
            if divergence.member not in self.diverged:
                self.diverged[divergence.member] = divergence
                facts = {"state": "diverged", "step": divergence.step, "term": divergence.term}
                self.folders[divergence.member].write_json("status", facts)

    def write_status(self, state: str) -> None:
        """Write the status of the members that have not diverged."""
        for folder in self.running.values():
            content = {"content": folder.content()} if state == "finished" and self.state.world.leads else {}
            folder.write_json("status", {"state": state, "step": self.state.step, **content})

    def watch_held_out(self) -> None:
        """Measure the held-out loss if that is due; all processes then agree whether to stop."""
        if self.watch.is_due(self.state.step):
            self.watch.measure()
            self.stops_early = bool(self.state.world.maximum(float(self.watch.stops))[0])

    def log(self, last: Mark, bar: Progress) -> Mark:
        """Append a line to each history, and return the mark from which the next line measures its speed."""
        self.drop_diverged()
        held_out = self.watch.take()
        lines = [{**line, **held_out} for line in self.state.take_means()]
        mark = Mark(self.state.step, time.monotonic())
        epochs = self.state.epochs
        rate = (mark.step - last.step) * epochs.batch * len(lines) / max(mark.time - last.time, 1e-9)
        facts = {"step": mark.step, "epoch": round(mark.step / epochs.per_epoch, 4)}
        for member, folder in self.running.items():
            line = {**facts, **lines[member], "images_per_second": round(rate / len(lines), 1)}
            folder.append_line("history", line)
            self.trackers[member].log(replace_non_finite(line))
        if running := [lines[member] for member in self.running]:
            means = {name: sum(line[name] for line in running) / len(running) for name in lines[0]}
            loss, *others = [f"{name} {value:.2f}" for name, value in means.items()]
            kinds = {modality.kind for modality in self.state.dataset.modalities.values()}
            bar.terms = "  ".join([loss, f"{rate:,.0f} {'images' if 'image' in kinds else 'rows'}/s", *others])
        return mark

    def checkpoint(self) -> None:
        """Save the whole group, unless every member has diverged."""
        self.drop_diverged()
        if self.running:
            tensors = {**self.state.tensors(), **self.watch.tensors()}
            self.checkpoints.save_checkpoint(self.state.step, tensors, self.owner)
            self.write_status("running")

    def keep_snapshot(self) -> None:
        """Keep the weights that training would end with at this step."""
        self.drop_diverged()
        step = self.state.step
        self._write_weights(lambda folder, tensors: folder.save_snapshot(step, tensors))

    def _write_weights(self, write: Callable[[RunFolder, dict[str, Tensor]], None]) -> None:
        """Write the weights of members that have not diverged; of many, several at once, as each waits for the disk."""
        workers = MAX_WRITERS if len(self.running) > MAX_WRITERS else 1
        with ThreadPoolExecutor(workers) as pool:
            under_way: deque[Future[None]] = deque()
            for member, folder in self.running.items():
                if len(under_way) == workers:  # so many are in memory
                    under_way.popleft().result()
                tensors = {name: tensor.cpu() for name, tensor in self.state.final_tensors(member).items()}
                under_way.append(pool.submit(write, folder, tensors))
            for future in under_way:
                future.result()

    def stop(self) -> None:
        """Save a checkpoint and raise `Interrupted`."""
        self.checkpoint()
        self.write_status("interrupted")
        self.state.world.wait()  # a launcher ends the other ranks when one leaves, and they may still be writing
        where = f"step {self.state.step} of {self.steps} ({self.checkpoints.path})"
        raise Interrupted(f"Stopped at {where}, and nothing is lost; {describe_continuation()}")

    def finish(self) -> list[str]:
        """Write the final weights of finished members, and return how each member ended.

        A group that is killed between two members continues as a whole, from its last checkpoint if there is one, since
        a member that trains alone is rounded differently. If every member has diverged, the checkpoints stay for
        inspection; otherwise they are removed.
        """
        self.drop_diverged()
        self._write_weights(lambda folder, tensors: folder.save_model(tensors))
        self.write_status("finished")
        self.state.world.wait()
        for folder in self.running.values():
            folder.parent_path.unlink(missing_ok=True)  # the final weights contain those of the first stage
        for checkpoint in self.checkpoints.checkpoints() if self.running else ():
            checkpoint.unlink(missing_ok=True)
        return ["diverged" if m in self.diverged else "finished" for m in range(len(self.folders))]


def _watch_held_out(state: State, configs: Sequence[Config], dataset: FactorDataset) -> HeldOutWatch:
    if len(configs) > 1 and any(config.training.patience is not None for config in configs):
        raise UsageError("patience is for single runs: the members of a sweep train for the same number of steps.")
    return HeldOutWatch(state, configs[0].training, dataset)


def _describe_runs(configs: Sequence[Config], values: str) -> str:
    """Return e.g. 'beta-tcvae on images, seed 0', or 'beta-tcvae on images, beta=6, 4 members' in a sweep."""
    config = configs[0]
    seed = [f"seed {config.training.seed}"] if len(configs) == 1 and not values else []
    members = [f"{len(configs)} members"] if len(configs) > 1 else []
    return ", ".join([f"{config.objective.name} on {config.data.name}", *filter(None, [values]), *seed, *members])


def _describe_data(config: Config, dataset: FactorDataset) -> dict[str, Any]:
    parts = split(dataset, config.training.split)
    return {
        "name": dataset.name,
        "content": dataset.content_hash(),
        "source": dataset.source,
        "images": len(dataset),
        "shape": layout_to_json(dataset.layout),
        "factors": {factor.name: factor.size for factor in dataset.factors},
        "trained_on": len(parts.train),
        "held_out": 0 if parts.held_out is None else len(parts.held_out),
        **describe_columns(dataset),
    }
