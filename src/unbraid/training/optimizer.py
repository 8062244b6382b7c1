"""One Adam (kingma2015) per player, which gets gradients for its own parameters only."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from unbraid.config import Training
from unbraid.store import select_prefix
from unbraid.training.adam import FusedAdam, StackedAdam
from unbraid.training.distributed import World
from unbraid.training.execution import CompiledFunction, Execution, compiles
from unbraid.training.group import Group
from unbraid.types import Player


class PlayerOptimizer:
    """The optimizer of one player's parameters."""

    def __init__(
        self,
        player: Player,
        group: Group,
        trainings: Sequence[Training],
        execution: Execution = "plain",
        world: World | None = None,
    ) -> None:
        self.player, self.world = player, world or World()
        self.training = trainings[0]
        owned = {n: p for n, p in group.parameters.items() if n.startswith(player.owns)}
        self.parameters = {n: p for n, p in owned.items() if p.requires_grad}  # without frozen ones
        settings: dict[str, Any] = {key: value for key, value in player.optimizer.items() if key != "lr"}
        rates = [float(player.optimizer.get("lr", t.lr)) for t in trainings]
        limits = [math.inf if t.clip is None else t.clip for t in trainings]
        self.clip = None if min(limits) == math.inf else torch.tensor(limits, device=group.device, dtype=group.dtype)
        parameters = list(self.parameters.values())
        rate = torch.tensor(rates, device=group.device, dtype=group.dtype)
        compiled = compiles(execution)
        self.adam: FusedAdam | StackedAdam
        self.names = list(self.parameters)
        self.leaves = [group.leaves[name] for name in self.names]
        self.single = group.members == 1
        if self.single and group.device.type != "cuda":
            self.adam = FusedAdam(parameters, rates[0], **settings)
        else:
            copies = [group.half_copies.get(name) for name in self.names]
            self.adam = StackedAdam(parameters, rate, copies, **settings)
            self.move = CompiledFunction(self.adam.step) if compiled and not self.adam.fused else self.adam.step
        self.clipping = CompiledFunction(clip_by_norm) if compiled else clip_by_norm

    def step(self, loss: Tensor, step: int | Tensor, alive: Tensor, retain_graph: bool) -> None:
        """Update by the sum of the members' losses; members are independent, so each gets its own gradient."""
        gradients = self.differentiate(loss, self.leaves, retain_graph)
        self.update(gradients, step, alive & loss.detach().isfinite())

    def differentiate(self, loss: Tensor, leaves: Sequence[Tensor], retain_graph: bool) -> Sequence[Tensor | None]:
        """Return the gradients of the leaves that stand for the parameters, averaged over ranks."""
        return self.world.average_all(
            torch.autograd.grad(loss.sum(), leaves, retain_graph=retain_graph, allow_unused=True)
        )

    def update(self, gradients: Sequence[Tensor | None], step: int | Tensor, moves: Tensor) -> None:
        """Update the parameters of the members that move [member] by gradients, which are clipped first."""
        if self.clip is not None:
            clipped = iter(self.clipping([g.to(self.clip.dtype) for g in gradients if g is not None], self.clip))
            gradients = [None if g is None else next(clipped) for g in gradients]
        share = decay_share(self.training, step)
        if isinstance(self.adam, StackedAdam):
            self.move(gradients, moves, share)
            return
        self.adam.step(gradients, float(share))

    def _state(self) -> dict[str, Tensor]:
        """Return the tensors of the optimizer by name; those of a single run have the names of torch's Adam."""
        if not self.single:
            assert isinstance(self.adam, StackedAdam)
            return self.adam.tensors()
        steps = self.adam.steps if isinstance(self.adam, FusedAdam) else [self.adam.steps[0]] * len(self.names)
        named = zip(self.names, steps, self.adam.means, self.adam.squares, strict=True)
        return {
            f"{name}/{key}": tensor
            for name, *tensors in named
            for key, tensor in zip(("step", "exp_avg", "exp_avg_sq"), tensors, strict=True)
        }

    def tensors(self) -> dict[str, Tensor]:
        """Return the optimizer state for a checkpoint."""
        return {f"{self.player.name}/{name}": tensor for name, tensor in self._state().items()}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Load what `tensors` returned."""
        stored = select_prefix(f"{self.player.name}/", tensors)
        for name, tensor in self._state().items():
            if name in stored or not self.single:  # older checkpoints lack parameters without a gradient so far
                tensor.copy_(stored[name])


def decay_share(training: Training, step: int | Tensor) -> float | Tensor:
    """Return the factor of the learning rate at a step: 1 without decay, else falling from 1 to 0."""
    if training.decay == "none":
        return 1.0
    done = step.double() / training.steps if isinstance(step, Tensor) else step / training.steps
    if training.decay == "linear":
        return 1 - done
    return 0.5 + 0.5 * (done * math.pi).cos() if isinstance(done, Tensor) else 0.5 + 0.5 * math.cos(math.pi * done)


def clip_by_norm(gradients: list[Tensor], limit: float | Tensor) -> list[Tensor]:
    """Return gradients [member, …] scaled so that each member's joint norm is at most `limit`.

    Not in place: two parameters may share one gradient tensor, which would be scaled twice.
    """
    squares = torch.stack([g.reshape(len(g), -1).square().sum(1) for g in gradients]).sum(0)  # [member]
    scale = (limit / (squares.sqrt() + 1e-6)).clamp(max=1.0)
    return [gradient * scale.view(-1, *[1] * (gradient.ndim - 1)) for gradient in gradients]
