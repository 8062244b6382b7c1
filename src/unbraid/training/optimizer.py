"""One Adam (kingma2015) per player, which gets gradients for its own parameters only."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from unbraid.config import Training
from unbraid.store import select_prefix
from unbraid.training.distributed import World
from unbraid.training.execution import CompiledFunction, Execution, compiles
from unbraid.training.group import Group
from unbraid.training.stacked_adam import StackedAdam, is_decayed, match_strides
from unbraid.types import Player

ADAM_STATE = ("step", "exp_avg", "exp_avg_sq")


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
        self.adam: torch.optim.Adam | torch.optim.AdamW | StackedAdam
        self.names = list(self.parameters)
        self.single = group.members == 1
        if self.single and group.device.type != "cuda":
            self.rate = rates[0]
            settings |= {"fused": group.device.type == "cpu", "lr": self.rate}
            if "weight_decay" in settings:
                self.adam = torch.optim.AdamW(split_by_decay(parameters), **settings)
            else:
                self.adam = torch.optim.Adam(parameters, **settings)
        else:
            self.adam = StackedAdam(parameters, rate, **settings)
            self.update = CompiledFunction(self.adam.step) if compiled and not self.adam.fused else self.adam.step
        self.clipping = CompiledFunction(clip_by_norm) if compiled else clip_by_norm

    def step(self, loss: Tensor, step: int | Tensor, alive: Tensor, retain_graph: bool) -> None:
        """Update by the sum of the members' losses; members are independent, so each gets its own gradient."""
        parameters = list(self.parameters.values())
        gradients = self.world.average_all(
            torch.autograd.grad(loss.sum(), parameters, retain_graph=retain_graph, allow_unused=True)
        )
        if self.clip is not None:
            clipped = iter(self.clipping([g for g in gradients if g is not None], self.clip))
            gradients = [None if g is None else next(clipped) for g in gradients]
        share = decay_share(self.training, step)
        if isinstance(self.adam, StackedAdam):
            self.update(gradients, alive & loss.detach().isfinite(), share)
            return
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = None if gradient is None else match_strides(gradient, parameter)
        self._set_rate(share)
        self.adam.step()
        # The fused update does not tell autograd that it moved the parameters; without this, a later player that
        # differentiates through them would silently mix old activations with new weights instead of raising.
        torch.autograd.graph.increment_version(parameters)

    def _single_tensors(self, adam: StackedAdam) -> dict[str, Tensor]:
        """Return the state of one run under the names of torch's Adam."""
        stored: dict[str, Tensor] = {}
        for name, mean, square in zip(self.names, adam.means, adam.squares, strict=True):
            stored |= {f"{name}/step": adam.steps[0], f"{name}/exp_avg": mean, f"{name}/exp_avg_sq": square}
        return stored

    def _set_rate(self, share: float | Tensor) -> None:
        assert not isinstance(self.adam, StackedAdam)
        for settings in self.adam.param_groups:
            settings["lr"] = self.rate * float(share)

    def tensors(self) -> dict[str, Tensor]:
        """Return the optimizer state for a checkpoint."""
        if isinstance(self.adam, StackedAdam):
            tensors = self._single_tensors(self.adam) if self.single else self.adam.tensors()
            return {f"{self.player.name}/{name}": tensor for name, tensor in tensors.items()}
        return {
            f"{self.player.name}/{name}/{key}": self.adam.state[parameter][key]
            for name, parameter in self.parameters.items()
            if parameter in self.adam.state
            for key in ADAM_STATE
        }

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Load what `tensors` returned."""
        if isinstance(self.adam, StackedAdam):
            current = self._single_tensors(self.adam) if self.single else self.adam.tensors()
            stored = select_prefix(f"{self.player.name}/", tensors)
            for name, tensor in current.items():
                if name in stored or not self.single:  # torch's Adam stores nothing before the first gradient
                    tensor.copy_(stored[name])
            return
        for name, parameter in self.parameters.items():
            prefix = f"{self.player.name}/{name}/"
            if prefix + "step" not in tensors:
                continue  # this parameter has had no gradient yet
            stored = {key: tensors[prefix + key] for key in ADAM_STATE}
            self.adam.state[parameter] = {
                "step": stored["step"].to(parameter.device),
                "exp_avg": torch.empty_like(parameter).copy_(stored["exp_avg"]),
                "exp_avg_sq": torch.empty_like(parameter).copy_(stored["exp_avg_sq"]),
            }


def split_by_decay(parameters: Sequence[Tensor]) -> list[dict[str, Any]]:
    """Return parameters [member, …] in groups with and without weight decay."""
    without = [p for p in parameters if not is_decayed(p)]
    groups = [{"params": [p for p in parameters if is_decayed(p)]}, {"params": without, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


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
