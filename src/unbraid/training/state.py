"""The state that training changes: parameters, optimizers, the step, and the sums for the next history line."""

import copy
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from unbraid import noise
from unbraid.config import Config
from unbraid.data.factors import FactorDataset
from unbraid.data.sampling import Epochs
from unbraid.data.streamed_pixels import StreamedPixels
from unbraid.errors import RunError, UsageError
from unbraid.invocation import choose_wording
from unbraid.kernels import compile_ahead, skip_launches
from unbraid.models import Model
from unbraid.noise import TRITON
from unbraid.objectives import Context, Objective
from unbraid.printable import shorten
from unbraid.recorded_step import RecordedStep
from unbraid.store import select_prefix
from unbraid.training.distributed import World
from unbraid.training.execution import CompiledFunction, Execution, choose_execution, compiles, records
from unbraid.training.feed import Feed
from unbraid.training.group import Group
from unbraid.training.memory import count_saved_bytes
from unbraid.training.optimizer import PlayerOptimizer
from unbraid.training.sync_batchnorm import use_local_batchnorm
from unbraid.types import Batch, Inputs, Noise, Output, Terms

MAX_TERM_NATS = 1e12
"""A term above this has diverged: no data set has a loss near it."""

REHEARSAL_ROWS = 4
"""Rows of a rehearsal; no objective needs more."""


class SharedForward(NamedTuple):
    """The model's output, the batch and the noise that all players of a step share."""

    out: Output
    batch: Batch
    noise: Noise


class Divergence(NamedTuple):
    """The first step at which a member had no usable number, and the term that had none."""

    member: int
    step: int
    term: str


class State:
    """A group in training: `advance` takes one step, `tensors` and `restore` go to and from a checkpoint."""

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
        self.world.check_divisible(training.batch)
        if self.world.size > 1 and group.members > 1:
            raise UsageError("Several processes train one run, not a group; start a sweep without torchrun.")
        self.group, self.objective, self.dataset, self.rows = group, objective, dataset, rows
        self.model: Model = group.skeleton.model
        device = "cpu" if group.device.type == "mps" else group.device  # MPS lacks the 64-bit floats of noise
        self.seeds = noise.seed_tensor(*(config.training.seed for config in configs), device=device)
        objective.begin(dataset, rows)
        self.epochs = Epochs(len(rows), training.batch, self.seeds)
        self.size = len(rows)  # N of the estimators of q(z), also when other rows are measured
        self.feed = self._make_feed(training.steps)
        self.needs = self._collect_needs(training.batch)
        noise.hash_names(self.needs)
        self.execution = execution or choose_execution(group.device, training.steps, self.world.size)
        own_kernels = TRITON and group.own_kernels
        if records(self.execution) and group.precision == "bf16" and own_kernels:
            group.keep_half_copies()
        trainings = [config.training for config in configs]
        with group.computing():
            settings = (group, trainings, self.execution, self.world)
            self.players = [PlayerOptimizer(player, *settings) for player in objective.players()]
        self.step = 0
        self.clock = torch.zeros((), dtype=torch.int64, device=group.device)  # the step, as a recording reads it
        self.names: list[str] = []
        self.sums = torch.zeros(0)  # [term, member] since the last history line
        self.count = 0
        self.bad_steps = torch.zeros(0, dtype=torch.int64)  # [term, member] first step without a usable number, or -1
        self._parts: list[Callable[..., Any]] = [self._forward if len(self.players) > 1 else self._forward_alone]
        self._parts += [self._player_loss(optimizer) for optimizer in self.players[1:]]
        self._record: Callable[..., None] = self._accumulate
        self._execute: Callable[[tuple[bool, ...]], None] = self._step
        if compiles(self.execution):
            self._parts = [CompiledFunction(part) for part in self._parts]
            self._record = CompiledFunction(self._accumulate)
        self._kernels_missing = self.execution == "recorded" and own_kernels
        if records(self.execution):
            self._execute = RecordedStep(self._step, group.device)

    def _make_feed(self, steps: int) -> Feed | None:
        """Return the feed of data that stay on disk; data in memory need none."""
        if not isinstance(self.dataset.pixels, StreamedPixels):
            return None
        seeds, rows, dataset = self.seeds.cpu(), self.rows.cpu(), self.dataset.to("cpu")
        epochs = Epochs(len(rows), self.epochs.batch, seeds)

        def choose_rows(step: int) -> Tensor:
            index = rows[epochs[step]]
            chosen = self.objective.choose_rows(index, dataset, partial(noise.uniform, seeds, step))
            return self.world.take_rows(chosen)

        return Feed(self.dataset.pixels, choose_rows, steps)

    def _collect_needs(self, batch: int) -> dict[str, noise.Need]:
        of_model, of_objective = self.model.needs(batch), self.objective.needs(batch, self.model.space)
        shared = of_model.keys() & of_objective.keys()
        if shared:
            raise UsageError(f"Model and objective both name a noise {min(shared)!r}.")
        return {**of_model, **of_objective}

    def rehearse(self, rows: int = REHEARSAL_ROWS) -> int:
        """Compute every player's loss on a few rows, and return the bytes that autograd saves for a backward pass.

        The rehearsal changes nothing and raises whatever a step would raise. No rank waits for another one. Our own
        kernels are not compiled for it.
        """
        batch, local = min(self.epochs.batch, rows), use_local_batchnorm(self.group.skeleton)
        counted = count_saved_bytes(self.group.leaves.values())
        with self._rehearsal() as rehearsal, local, skip_launches(), counted as saved:
            rehearsal.world, rehearsal.needs = World(), self._collect_needs(batch)
            rehearsal.epochs = Epochs(len(self.rows), batch, self.seeds)
            rehearsal.epochs.lay_out_epoch(0)
            before = self._read_generators()
            losses = rehearsal._losses(0)
            unmoved = rehearsal._find_unmoved(losses) if self.group.of_users else []
        if unmoved:
            warnings.warn(
                f"No gradient reaches {shorten(', '.join(unmoved), 200)}, so they stay as they are. Inside "
                "torch.utils.checkpoint, set use_reentrant=False.",
                stacklevel=1,  # one place, however many rehearsals there are
            )
        if not all(map(torch.equal, before, self._read_generators())):
            raise UsageError(
                "A network or an objective draws from torch's global generator (dropout, torch.randn, …), whose state "
                "no checkpoint holds: the same seed would give other weights. Remove that, or draw it from a seed."
            )
        return saved.total

    @torch.no_grad()
    def measure(self, rows: Tensor, step: int) -> list[float]:
        """Return each member's loss on other rows, in equal batches, with noise and schedules as from `step` on.

        Estimators of q(z) weigh a row by 1/N. N stays that of the training rows: with the smaller number of other rows,
        the loss would differ by an offset and could not be compared with that of training.
        """
        batch, local = min(self.epochs.batch, len(rows)), use_local_batchnorm(self.group.skeleton)
        with self._rehearsal() as rehearsal, local:
            rehearsal.world, rehearsal.rows, rehearsal.needs = World(), rows, self._collect_needs(batch)
            rehearsal.epochs = Epochs(len(rows), batch, self.seeds)
            rehearsal.epochs.lay_out_epoch(0)
            losses = [rehearsal._forward(step + number)[0] for number in range(rehearsal.epochs.per_epoch)]
        return torch.stack(losses).mean(0).tolist()

    @contextmanager
    def _rehearsal(self) -> Iterator["State"]:
        """Yield a copy on the same memory; the statistics of BatchNorm, which a forward updates, are restored."""
        rehearsal = copy.copy(self)
        rehearsal.feed = None
        rehearsal.group = self.group.with_new_leaves()
        buffers = {name: buffer.clone() for name, buffer in self.group.buffers.items()}
        with self.group.computing():
            yield rehearsal
        for name, buffer in self.group.buffers.items():
            buffer.copy_(buffers[name])

    def _losses(self, step: int | Tensor) -> list[Tensor]:
        """Return the loss [member] of every player."""
        loss, _, shared = self._forward(step)
        return [loss, *(self._terms(optimizer, step, shared, "")[0] for optimizer in self.players[1:])]

    def _read_generators(self) -> list[Tensor]:
        """Return the states of torch's global generators that a step could draw from."""
        device = self.dataset.device
        return [torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])]

    def _find_unmoved(self, losses: Sequence[Tensor]) -> list[str]:
        """Return the names of parameters in users' networks that no gradient of their player's loss reaches."""
        names = []
        for optimizer, loss in zip(self.players, losses, strict=True):
            leaves = [self.group.leaves[name] for name in optimizer.names]
            gradients = torch.autograd.grad(loss.sum(), leaves, retain_graph=True, allow_unused=True)
            pairs = zip(optimizer.names, gradients, strict=True)
            names += [name for name, gradient in pairs if gradient is None and name in self.group.of_users]
        return names

    def final_tensors(self, member: int) -> dict[str, Tensor]:
        """Return the final state dict of a member, recentred if the objective asks for it."""
        tensors = self.group.member_tensors(member)
        if not self.objective.recentres:
            return tensors
        system = copy.deepcopy(self.group.skeleton)  # training may go on
        system.load_state_dict(tensors)
        with torch.no_grad():
            system.eval().model.recentre(self.dataset, self.rows)
        return {name: tensor.clone() for name, tensor in system.state_dict().items()}

    def advance(self) -> None:
        """Take one step: one shared forward, then each player updates its own parameters by its own loss."""
        self.epochs.lay_out_epoch(self.step)
        if self.feed is not None:
            self.feed.load(self.step)
        if self._kernels_missing:
            self._compile_kernels()
        moving = tuple(self.step % optimizer.player.every == 0 for optimizer in self.players)
        with self.group.computing(), self._retain_buffers():
            self._execute(moving)
        self.step += 1
        self.count += 1

    def _compile_kernels(self) -> None:
        """Compile the kernels of a step together, by a dry run that changes nothing."""
        self._kernels_missing = False
        with self._rehearsal() as rehearsal, compile_ahead():
            gradients = [
                optimizer.differentiate(loss, [rehearsal.group.leaves[name] for name in optimizer.names], True)
                for optimizer, loss in zip(self.players, rehearsal._losses(self.clock), strict=True)
            ]
            for optimizer, own in zip(self.players, gradients, strict=True):
                optimizer.update(own, self.clock, torch.zeros_like(self.alive))  # no member moves

    def _step(self, moving: tuple[bool, ...]) -> None:
        """Compute a step by tensor operations only, so that it can be recorded."""
        step = self.step if self.execution == "plain" else self.clock
        last = max((i for i, moves in enumerate(moving) if moves), default=-1)
        logged: dict[str, Tensor] = {}
        shared: tuple[SharedForward, ...] = ()
        for i, (part, optimizer) in enumerate(zip(self._parts, self.players, strict=True)):
            loss, values, *forward = part(step, *shared)
            shared = tuple(forward) or shared  # the first part returns the shared forward
            if moving[i]:
                optimizer.step(loss, step, self.alive, retain_graph=i != last)
            logged |= values
        self._allocate(logged)
        self._record(list(logged.values()), step)

    def _forward(self, step: int | Tensor) -> tuple[Tensor, dict[str, Tensor], SharedForward]:
        """Draw batch and noise, run the model, and return the first player's loss [member], terms and the forward."""
        index = self._choose_rows(step)
        local = self.world.take_rows(index)
        observed = self.dataset.observed(local) if self.feed is None else self.feed.observed()
        x = {name: observations.to(self.group.dtype) for name, observations in observed.items()}
        factors = self.dataset.values_of(index) if self.objective.labelled else None
        present = self.dataset.present(index)
        batch = Batch(x, index, present, factors)
        drawn = noise.draw(self.needs, self.seeds, step)
        drawn = {name: tensor.to(self.group.device, self.group.dtype) for name, tensor in drawn.items()}
        model_noise = {name: self.world.take_rows(drawn[name]) for name in self.model.needs(1)}
        given = {name: self.world.take_rows(tensor) for name, tensor in self.objective.given(batch).items()}
        inputs = Inputs(x, None if present is None else self.world.take_rows(present), given)
        out = self.world.gather(self.group.apply("model", inputs, model_noise))
        shared = SharedForward(out, batch, drawn)
        return *self._terms(self.players[0], step, shared, ""), shared

    def _forward_alone(self, step: int | Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss [member] and terms of the only player.

        A compiled function differentiates all that it returns: zeros would be added to the gradient of every image.
        """
        return self._forward(step)[:2]

    def _choose_rows(self, step: int | Tensor) -> Tensor:
        """Return the rows of a step [member, rows]: the batch, and rows that the objective adds."""
        index = self.rows[self.epochs.batch_at(step).to(self.rows.device)]
        return self.objective.choose_rows(
            index, self.dataset, lambda name, shape: noise.uniform(self.seeds, step, name, shape).to(index.device)
        )

    def _player_loss(self, optimizer: PlayerOptimizer) -> Callable[..., tuple[Tensor, dict[str, Tensor]]]:
        """Return a function (step, shared forward) -> loss [member] and terms of a later player."""
        return lambda step, shared: self._terms(optimizer, step, shared, f"{optimizer.player.name}/")

    def _terms(
        self, optimizer: PlayerOptimizer, step: int | Tensor, shared: SharedForward, prefix: str
    ) -> tuple[Tensor, dict[str, Tensor]]:
        space, likelihoods = self.model.space, self.model.likelihoods
        network, take_rows = self._apply_network, self.world.take_rows
        context = Context(space, likelihoods, self.size, step, shared.noise, network, take_rows)
        terms: Terms = optimizer.player.loss(shared.out, shared.batch, context)
        values = {"loss": terms.loss.detach(), **terms.logged}
        return terms.loss, {prefix + name: value for name, value in values.items()}

    @property
    def alive(self) -> Tensor:
        """Mask [member] of the members that have not diverged."""
        if self.bad_steps.numel() == 0:
            return torch.ones(self.group.members, dtype=torch.bool, device=self.group.device)
        return (self.bad_steps < 0).all(0)

    def take_means(self) -> list[dict[str, float]]:
        """Return each member's mean of every term since the last call, and reset the sums."""
        means = (self.sums / max(self.count, 1)).tolist()
        members = range(self.group.members)
        lines = [{name: means[t][m] for t, name in enumerate(self.names)} for m in members]
        self.sums.zero_()
        self.count = 0
        return lines

    def find_divergences(self) -> list[Divergence]:
        """Return the members with a term or parameter that is no usable number; they are not updated any more."""
        parameters = self.group.parameters.values()
        finite = torch.stack([p.isfinite().reshape(len(p), -1).all(1) for p in parameters]).all(0).tolist()  # [member]
        columns = self.bad_steps.T.tolist() if self.bad_steps.numel() else [[]] * self.group.members
        found = []
        for member, column in enumerate(columns):
            bad = [(step, self.names[term]) for term, step in enumerate(column) if step >= 0]
            bad += [] if bad or finite[member] else [(self.step - 1, "a parameter")]
            found += [Divergence(member, *min(bad, key=lambda item: item[0]))] if bad else []
        return found

    def tensors(self) -> dict[str, Tensor]:
        """Return everything that a checkpoint stores except the step."""
        stored = {f"system/{n}": t for n, t in {**self.group.parameters, **self.group.buffers}.items()}
        for optimizer in self.players:
            stored |= {f"optimizer/{name}": tensor for name, tensor in optimizer.tensors().items()}
        sums = {"sums": self.sums, "count": torch.tensor(self.count), "bad_steps": self.bad_steps}
        return stored | sums | {"noise": torch.tensor(noise.SCHEME)}

    def restore(self, step: int, tensors: dict[str, Tensor]) -> None:
        """Load what `tensors` returned at a step."""
        lost = [name for name in ("noise", "sums", "count", "bad_steps") if name not in tensors]
        lost += [
            f"optimizer/{each.player.name}"
            for each in self.players
            if step > 0 and each.parameters and not select_prefix(f"optimizer/{each.player.name}/", tensors)
        ]
        again = f"train again with {choose_wording('--fresh', 'fresh=True')}"
        if lost:
            raise RunError(f"The checkpoint at step {step} lacks {', '.join(lost)}; {again}.")
        if int(tensors["noise"]) != noise.SCHEME:
            raise RunError(f"The checkpoint was made by a version with other random numbers; {again}.")
        self.group.load(select_prefix("system/", tensors))
        for optimizer in self.players:
            optimizer.load(select_prefix("optimizer/", tensors))
        self.sums, self.count = tensors["sums"].to(self.group.device), int(tensors["count"])
        self.bad_steps = tensors["bad_steps"].to(self.group.device)
        self.step = step
        self.clock.fill_(step)
        if isinstance(self._execute, RecordedStep):
            self._execute.forget()

    def release(self) -> None:
        """Drop what refers back to the state, which then takes no more steps and is freed with the last reference."""
        self.feed, self._parts = None, []
        self._record = self._execute = _refuse_step

    def _retain_buffers(self) -> AbstractContextManager[Any]:
        """Keep a compiled backward from freeing what the next player differentiates through."""
        if not compiles(self.execution) or len(self.players) == 1:
            return nullcontext()
        return torch._functorch.config.patch(donated_buffer=False)

    def _apply_network(self, name: str, *inputs: Tensor) -> Any:
        return self.group.apply(name if name.startswith("model.") else f"objective.{name}", *inputs)

    def _allocate(self, logged: dict[str, Tensor]) -> None:
        """Allocate the sums at the first step, when the names of the terms are known."""
        self.names = list(logged)
        shape = (len(logged), self.group.members)
        if self.sums.shape != shape:
            self.sums = torch.zeros(shape, device=self.group.device, dtype=self.group.dtype)
        if self.bad_steps.shape != shape:
            self.bad_steps = torch.full(shape, -1, dtype=torch.int64, device=self.group.device)

    def _accumulate(self, logged: list[Tensor], step: int | Tensor) -> None:
        values = self.world.average(torch.stack(logged))  # [term, member]
        bad = ~(values.abs() < MAX_TERM_NATS)  # also catches NaN
        self.bad_steps.copy_(torch.where(bad & (self.bad_steps < 0), step, self.bad_steps))
        self.sums += values
        self.clock += 1


def _refuse_step(*given: Any) -> None:
    raise RuntimeError("A state that was released takes no more steps.")
