"""What training changes: parameters, optimizer state, the step, and the sums behind the next line of the history."""

import copy
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

from unbraid import noise
from unbraid.config import Config
from unbraid.data.factors import FactorDataset
from unbraid.data.sampling import Epochs
from unbraid.errors import RunError, UsageError
from unbraid.models import Model
from unbraid.objectives import Context, Objective
from unbraid.store import under
from unbraid.training.distributed import World
from unbraid.training.execution import Captured, Compiled, Execution, compiles, default_execution, records
from unbraid.training.group import Group
from unbraid.training.memory import count_saved_bytes
from unbraid.training.optimizer import PlayerOptimizer
from unbraid.training.sync_batchnorm import unsynchronised
from unbraid.types import Batch, Inputs, Noise, Output, Terms

DIVERGED_ABOVE = 1e12
"""Beyond this many nats a term counts as diverged: no data set has a loss near it."""

REHEARSAL_ROWS = 4
"""Rows of a rehearsal: no objective asks for more."""


class SharedForward(NamedTuple):
    """What all players of one step look at."""

    out: Output
    batch: Batch
    drawn: Noise


class Divergence(NamedTuple):
    """Where a member left the usable numbers."""

    member: int
    step: int
    term: str


class State:
    """A group in training. `advance` is one step; everything else reads or restores."""

    def __init__(
        self,
        group: Group,
        objective: Objective,
        configs: Sequence[Config],
        dataset: FactorDataset,
        rows: Tensor,
        execution: Execution | None = None,
        world: World | None = None,
    ) -> None:
        training = configs[0].training
        self.world = world or World()
        self.world.refuse_indivisible(training.batch)
        if self.world.size > 1 and group.members > 1:
            raise UsageError("Several processes train one run, not a group of them; a sweep spreads its groups itself.")
        self.group, self.objective, self.dataset, self.rows = group, objective, dataset, rows
        self.model: Model = group.skeleton.model
        place = "cpu" if group.device.type == "mps" else group.device  # noise needs 64-bit floats, which MPS has not
        self.seeds = noise.seed_tensor(*(config.training.seed for config in configs), device=place)
        objective.begin(dataset, rows)
        self.epochs = Epochs(len(rows), training.batch, self.seeds)
        self.needs = self._needs(training.batch)
        noise.announce(self.needs)
        self.execution = execution or default_execution(group.device, training.steps, self.world.size)
        trainings = [config.training for config in configs]
        self.players = [PlayerOptimizer(p, group, trainings, self.execution, self.world) for p in objective.players()]
        self.step = 0
        self.clock = torch.zeros((), dtype=torch.int64, device=group.device)  # the step, for a step that is compiled
        self.names: list[str] = []
        self.sums = torch.zeros(0)  # [term, member] since the last line of the history
        self.count = 0
        self.bad_steps = torch.zeros(0, dtype=torch.int64)  # [term, member] first step without a usable number, or -1
        self._parts = [self._forward, *(self._player_loss(optimizer) for optimizer in self.players[1:])]
        self._record: Callable[..., None] = self._accumulate
        self._execute: Callable[[tuple[bool, ...]], None] = self._step
        if compiles(self.execution):
            self._parts = [Compiled(part) for part in self._parts]
            self._record = Compiled(self._accumulate)
        if records(self.execution):
            self._execute = Captured(self._step, group.device)

    def _needs(self, batch: int) -> dict[str, noise.Need]:
        """Noise of a step on so many rows."""
        own, extra = self.model.needs(batch), self.objective.needs(batch, self.model.space)
        if own.keys() & extra.keys():
            raise UsageError(f"Model and objective both name a noise {sorted(own.keys() & extra.keys())[0]!r}.")
        return {**own, **extra}

    def rehearse(self, rows: int = REHEARSAL_ROWS) -> int:
        """Compute every player's loss on a few rows, and return the bytes that autograd saves for a backward pass.

        It changes nothing and raises whatever a step would raise. It runs in this process only, also where several
        processes train one run.
        """
        few, batch = copy.copy(self), min(self.epochs.batch, rows)
        few.epochs, few.needs, few.world = Epochs(len(self.rows), batch, self.seeds), self._needs(batch), World()
        few.epochs.lay_out_epoch(0)
        few.group = self.group.without_history()
        buffers = {name: buffer.clone() for name, buffer in self.group.buffers.items()}
        alone = unsynchronised(self.group.skeleton)
        with self.group.matrix_products(), alone, count_saved_bytes(self.group.parameters.values()) as saved:
            *_, shared = few._forward(0)
            for optimizer in self.players[1:]:
                few._terms(optimizer, 0, shared, "")
        for name, buffer in self.group.buffers.items():  # a forward moves the statistics of BatchNorm
            buffer.copy_(buffers[name])
        return saved.total

    def closed(self, member: int) -> dict[str, Tensor]:
        """A member's state dict at the end of its training, with what the objective has left for then."""
        tensors = self.group.member(member)
        if not self.objective.recentres:
            return tensors
        system = self.group.skeleton
        system.load_state_dict(tensors)
        with torch.no_grad():
            system.eval().model.recentre(self.dataset, self.rows)
        return {name: tensor.clone() for name, tensor in system.state_dict().items()}

    def advance(self) -> None:
        """One shared forward; then each player moves, on its own loss and its own parameters."""
        self.epochs.lay_out_epoch(self.step)
        moving = tuple(self.step % optimizer.player.every == 0 for optimizer in self.players)
        with self.group.matrix_products(), self._retain_buffers():
            self._execute(moving)
        self.step += 1
        self.count += 1

    def _step(self, moving: tuple[bool, ...]) -> None:
        """The step itself: everything here is a tensor operation, and may be recorded."""
        when = self.step if self.execution == "plain" else self.clock
        last = max((place for place, moves in enumerate(moving) if moves), default=-1)
        logged: dict[str, Tensor] = {}
        shared: tuple[SharedForward, ...] = ()
        for place, (part, optimizer) in enumerate(zip(self._parts, self.players, strict=True)):
            loss, values, *made = part(when, *shared)
            shared = tuple(made) or shared
            if moving[place]:
                optimizer.step(loss, when, self.alive, retain_graph=place != last)
            logged |= values
        self._allocate(logged)
        self._record(list(logged.values()), when)

    def _forward(self, when: int | Tensor) -> tuple[Tensor, dict[str, Tensor], SharedForward]:
        """Batch, noise, the model's forward, and the first player's loss [member] and terms."""
        index = self._index(when)
        seen = self.dataset.observed(self.world.part(index))
        x = {name: observations.to(self.group.dtype) for name, observations in seen.items()}
        factors = self.dataset.values_of(index) if self.objective.labelled else None
        present = self.dataset.present(index)
        batch = Batch(x, index, present, factors)
        drawn = noise.draw(self.needs, self.seeds, when)
        drawn = {name: tensor.to(self.group.device, self.group.dtype) for name, tensor in drawn.items()}
        own = {name: self.world.part(drawn[name]) for name in self.model.needs(1)}
        given = {name: self.world.part(tensor) for name, tensor in self.objective.given(batch).items()}
        inputs = Inputs(x, None if present is None else self.world.part(present), given)
        out = self.world.gathered(self.group.apply("model", inputs, own))
        shared = SharedForward(out, batch, drawn)
        return *self._terms(self.players[0], when, shared, ""), shared

    def _index(self, when: int | Tensor) -> Tensor:
        """Rows of a step [member, rows]: the batch, and whatever the objective sets beside it."""
        index = self.rows[self.epochs.batch_at(when).to(self.rows.device)]
        return self.objective.choose_rows(
            index, self.dataset, lambda name, shape: noise.uniform(self.seeds, when, name, shape).to(index.device)
        )

    def _player_loss(self, optimizer: PlayerOptimizer) -> Callable[..., tuple[Tensor, dict[str, Tensor]]]:
        """A later player's loss [member] and terms, from what the first one's part has made."""
        return lambda when, shared: self._terms(optimizer, when, shared, f"{optimizer.player.name}/")

    def _terms(
        self, optimizer: PlayerOptimizer, when: int | Tensor, shared: SharedForward, prefix: str
    ) -> tuple[Tensor, dict[str, Tensor]]:
        space, likelihoods = self.model.space, self.model.likelihoods
        context = Context(space, likelihoods, len(self.rows), when, shared.drawn, self._network, self.world.part)
        terms: Terms = optimizer.player.loss(shared.out, shared.batch, context)
        values = {"loss": terms.loss.detach(), **terms.logged}
        return terms.loss, {prefix + name: value for name, value in values.items()}

    @property
    def alive(self) -> Tensor:
        """Which members have only had usable numbers so far [member]."""
        if self.bad_steps.numel() == 0:
            return torch.ones(self.group.members, dtype=torch.bool, device=self.group.device)
        return (self.bad_steps < 0).all(0)

    def line(self) -> list[dict[str, float]]:
        """Mean of each term since the last call, by member; resets the sums."""
        means = (self.sums / max(self.count, 1)).tolist()
        members = range(self.group.members)
        lines = [{name: means[t][m] for t, name in enumerate(self.names)} for m in members]
        self.sums.zero_()
        self.count = 0
        return lines

    def divergences(self) -> list[Divergence]:
        """Members that have left the usable numbers, by a term or by a parameter; they do not move any more."""
        each = [p.isfinite().reshape(len(p), -1).all(1) for p in self.group.parameters.values()]  # [member] each
        finite = torch.stack(each).all(0).tolist()
        columns = self.bad_steps.T.tolist() if self.bad_steps.numel() else [[]] * self.group.members
        found = []
        for member, column in enumerate(columns):
            bad = [(step, self.names[term]) for term, step in enumerate(column) if step >= 0]
            bad += [] if bad or finite[member] else [(self.step - 1, "a parameter")]
            found += [Divergence(member, *min(bad, key=lambda item: item[0]))] if bad else []
        return found

    def tensors(self) -> dict[str, Tensor]:
        """Everything a checkpoint needs besides the step."""
        stored = {f"system/{n}": t for n, t in {**self.group.parameters, **self.group.buffers}.items()}
        for optimizer in self.players:
            stored |= {f"optimizer/{name}": tensor for name, tensor in optimizer.tensors().items()}
        sums = {"sums": self.sums, "count": torch.tensor(self.count), "bad_steps": self.bad_steps}
        return stored | sums | {"noise": torch.tensor(noise.SCHEME)}

    def restore(self, step: int, tensors: dict[str, Tensor]) -> None:
        """Inverse of `tensors`."""
        if int(tensors["noise"]) != noise.SCHEME:
            raise RunError("The checkpoint was made by a version with other random numbers; start the run afresh.")
        self.group.load(under("system/", tensors))
        for optimizer in self.players:
            optimizer.load(under("optimizer/", tensors))
        self.sums, self.count = tensors["sums"].to(self.group.device), int(tensors["count"])
        self.bad_steps = tensors["bad_steps"].to(self.group.device)
        self.step = step
        self.clock.fill_(step)
        if isinstance(self._execute, Captured):
            self._execute.forget()

    def _retain_buffers(self) -> AbstractContextManager[Any]:
        """Several players differentiate one forward: its compiled backward must not free what the next one needs."""
        if not compiles(self.execution) or len(self.players) == 1:
            return nullcontext()
        return torch._functorch.config.patch(donated_buffer=False)

    def _network(self, name: str, *inputs: Tensor) -> Any:
        return self.group.apply(name if name.startswith("model.") else f"objective.{name}", *inputs)

    def _allocate(self, logged: dict[str, Tensor]) -> None:
        """Make room for the sums at the first step: only then is it known which terms there are."""
        self.names = list(logged)
        wanted = (len(logged), self.group.members)
        if self.sums.shape != wanted:
            self.sums = torch.zeros(wanted, device=self.group.device, dtype=self.group.dtype)
        if self.bad_steps.shape != wanted:
            self.bad_steps = torch.full(wanted, -1, dtype=torch.int64, device=self.group.device)

    def _accumulate(self, logged: list[Tensor], when: int | Tensor) -> None:
        values = self.world.mean(torch.stack(logged))  # [term, member]
        bad = ~(values.abs() < DIVERGED_ABOVE)  # also catches NaN
        self.bad_steps.copy_(torch.where(bad & (self.bad_steps < 0), when, self.bad_steps))
        self.sums += values
        self.clock += 1
