"""What training changes: parameters, optimizer state, the step, and the sums behind the next line of the history."""

from collections.abc import Sequence

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
from unbraid.training.group import Group
from unbraid.training.optim import PlayerOptimizer
from unbraid.types import Batch, Terms

HUGE = 1e12
"""Beyond this many nats a term counts as diverged: no data set has a loss near it."""


class State:
    """A group in training. `advance` is one step; everything else reads or restores."""

    def __init__(
        self, group: Group, objective: Objective, configs: Sequence[Config], dataset: FactorDataset, rows: Tensor
    ) -> None:
        training = configs[0].training
        self.group, self.objective, self.dataset, self.rows = group, objective, dataset, rows
        self.model: Model = group.skeleton.model
        place = "cpu" if group.device.type == "mps" else group.device  # noise needs 64-bit floats, which MPS has not
        self.seeds = noise.seed_tensor(*(config.training.seed for config in configs), device=place)
        self.epochs = Epochs(len(rows), training.batch, self.seeds)
        space = self.model.space
        own, extra = self.model.needs(training.batch), objective.needs(training.batch, space)
        if own.keys() & extra.keys():
            raise UsageError(f"Model and objective both name a noise {sorted(own.keys() & extra.keys())[0]!r}.")
        self.needs = {**own, **extra}
        trainings = [config.training for config in configs]
        self.players = [PlayerOptimizer(player, group, trainings) for player in objective.players()]
        self.step = 0
        self.names: list[str] = []
        self.sums = torch.zeros(0)  # [term, member] since the last line of the history
        self.count = 0
        self.bad_steps = torch.zeros(0, dtype=torch.int64)  # [term, member] first step without a usable number, or -1

    def advance(self) -> None:
        """One shared forward; then each player moves, on its own loss and its own parameters."""
        with self.group.matrix_products():
            self._advance()
        self.step += 1

    def _advance(self) -> None:
        index = self.rows[self.epochs[self.step].to(self.rows.device)]  # [member, batch]
        batch = Batch({"x": self.dataset.images(index).to(self.group.dtype)}, index)
        drawn = noise.draw(self.needs, self.seeds, self.step)
        drawn = {name: tensor.to(self.group.device, self.group.dtype) for name, tensor in drawn.items()}
        out = self.group.apply("model", batch.x, {name: drawn[name] for name in self.model.needs(1)})
        context = Context(self.model.space, self.model.likelihoods, len(self.rows), self.step, drawn, self._network)
        logged: dict[str, Tensor] = {}
        moving = [p for p in self.players if self.step % p.player.every == 0]
        for optimizer in self.players:
            terms = optimizer.player.loss(out, batch, context)
            if optimizer in moving:
                optimizer.step(terms.loss, self.step, self.alive, retain_graph=optimizer is not moving[-1])
            prefix = "" if optimizer is self.players[0] else f"{optimizer.player.name}/"
            logged |= _logged(terms, prefix)
        self._tally(logged)

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
        self.sums, self.count = torch.zeros_like(self.sums), 0
        return lines

    def diverged(self) -> tuple[int, str, int] | None:
        """First (step, term, member) at which a term was not a usable number."""
        bad = self.bad_steps
        if not bool((bad >= 0).any()):
            return None
        first = torch.where(bad >= 0, bad, torch.iinfo(torch.int64).max)
        term, member = divmod(int(first.argmin()), self.group.members)
        return int(first.min()), self.names[term], member

    def tensors(self) -> dict[str, Tensor]:
        """Everything a checkpoint needs besides the step."""
        stored = {f"system/{n}": t for n, t in {**self.group.parameters, **self.group.buffers}.items()}
        for optimizer in self.players:
            stored |= {f"optimizer/{name}": tensor for name, tensor in optimizer.tensors().items()}
        return stored | {"sums": self.sums, "count": torch.tensor(self.count), "noise": torch.tensor(noise.SCHEME)}

    def restore(self, step: int, tensors: dict[str, Tensor]) -> None:
        """Inverse of `tensors`."""
        if int(tensors["noise"]) != noise.SCHEME:
            raise RunError("The checkpoint was made by a version with other random numbers; start the run afresh.")
        self.group.load(under("system/", tensors))
        for optimizer in self.players:
            optimizer.load(under("optimizer/", tensors))
        self.sums, self.count = tensors["sums"].to(self.group.device), int(tensors["count"])
        self.step = step

    def finite(self) -> bool:
        """Whether every parameter is a usable number."""
        return all(bool(p.isfinite().all()) for p in self.group.parameters.values())

    def _network(self, name: str, *inputs: Tensor) -> Tensor:
        return self.group.apply(f"objective.{name}", *inputs)

    def _tally(self, logged: dict[str, Tensor]) -> None:
        values = torch.stack(list(logged.values()))  # [term, member]
        if self.sums.shape != values.shape:
            self.sums = torch.zeros_like(values)
        if self.bad_steps.shape != values.shape:
            self.bad_steps = torch.full_like(values, -1, dtype=torch.int64)
        self.names = list(logged)
        bad = ~(values.abs() < HUGE)  # also catches NaN
        self.bad_steps = torch.where(bad & (self.bad_steps < 0), self.step, self.bad_steps)
        self.sums = self.sums + values
        self.count += 1


def _logged(terms: Terms, prefix: str) -> dict[str, Tensor]:
    values = {"loss": terms.loss.detach(), **terms.logged}
    return {prefix + name: value for name, value in values.items()}
