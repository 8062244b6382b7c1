"""One Adam (kingma2015) per player, and gradients that reach only its own parameters."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from unbraid.config import Training
from unbraid.store import under
from unbraid.training.distributed import World
from unbraid.training.execution import Compiled, Execution, compiles
from unbraid.training.group import Group
from unbraid.training.stacked_adam import StackedAdam, decays, gradient_like
from unbraid.types import Player

STATE = ("step", "exp_avg", "exp_avg_sq")


class PlayerOptimizer:
    """Moves one player's parameters."""

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
        self.parameters = {n: p for n, p in owned.items() if p.requires_grad}  # a frozen parameter stays as it is
        own: dict[str, Any] = {key: value for key, value in player.optimizer.items() if key != "lr"}
        rates = [float(player.optimizer.get("lr", t.lr)) for t in trainings]
        limits = [math.inf if t.clip is None else t.clip for t in trainings]
        self.clip = None if min(limits) == math.inf else torch.tensor(limits, device=group.device, dtype=group.dtype)
        parameters = list(self.parameters.values())
        rate = torch.tensor(rates, device=group.device, dtype=group.dtype)
        compiled = compiles(execution)
        self.adam: torch.optim.Adam | torch.optim.AdamW | StackedAdam
        self.names = list(self.parameters)
        self.alone = group.members == 1
        if self.alone and group.device.type != "cuda":
            self.rate = rates[0]
            own["fused"] = group.device.type == "cpu"
            own["lr"] = self.rate
            if "weight_decay" in own:
                self.adam = torch.optim.AdamW(decaying(parameters), **own)
            else:
                self.adam = torch.optim.Adam(parameters, **own)
        else:
            self.adam = StackedAdam(parameters, rate, **own)
            self.update = Compiled(self.adam.step) if compiled and not self.adam.fused else self.adam.step
        self.clipping = Compiled(clip_by_norm) if compiled else clip_by_norm

    def step(self, loss: Tensor, when: int | Tensor, alive: Tensor, retain_graph: bool) -> None:
        """One update by the sum of the members' losses: members are independent, so each sees its own gradient."""
        parameters = list(self.parameters.values())
        own = torch.autograd.grad(loss.sum(), parameters, retain_graph=retain_graph, allow_unused=True)
        gradients = self.world.means(own)
        if self.clip is not None:
            kept = iter(self.clipping([g for g in gradients if g is not None], self.clip))
            gradients = [None if g is None else next(kept) for g in gradients]
        share = remaining(self.training, when)
        if isinstance(self.adam, StackedAdam):
            self.update(gradients, alive & loss.detach().isfinite(), share)
            return
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = None if gradient is None else gradient_like(gradient, parameter)
        self._set_rate(share)
        self.adam.step()
        # The fused update does not tell autograd that it moved the parameters; without this, a later player that
        # differentiates through them would silently mix old activations with new weights instead of raising.
        torch.autograd.graph.increment_version(parameters)

    def _tensors_alone(self, adam: StackedAdam) -> dict[str, Tensor]:
        """Return the state of one run under the names that torch's Adam gives it, on any device."""
        stored: dict[str, Tensor] = {}
        for name, mean, square in zip(self.names, adam.means, adam.squares, strict=True):
            stored |= {f"{name}/step": adam.steps[0], f"{name}/exp_avg": mean, f"{name}/exp_avg_sq": square}
        return stored

    def _set_rate(self, share: float | Tensor) -> None:
        assert not isinstance(self.adam, StackedAdam)
        for settings in self.adam.param_groups:
            settings["lr"] = self.rate * float(share)

    def tensors(self) -> dict[str, Tensor]:
        """Optimizer state for a checkpoint."""
        if isinstance(self.adam, StackedAdam):
            own = self._tensors_alone(self.adam) if self.alone else self.adam.tensors()
            return {f"{self.player.name}/{name}": tensor for name, tensor in own.items()}
        return {
            f"{self.player.name}/{name}/{key}": self.adam.state[parameter][key]
            for name, parameter in self.parameters.items()
            if parameter in self.adam.state
            for key in STATE
        }

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Inverse of `tensors`."""
        if isinstance(self.adam, StackedAdam):
            own = self._tensors_alone(self.adam) if self.alone else self.adam.tensors()
            found = under(f"{self.player.name}/", tensors)
            for name, tensor in own.items():
                if name in found or not self.alone:  # torch's Adam stores no parameter that has had no gradient yet
                    tensor.copy_(found[name])
            return
        for name, parameter in self.parameters.items():
            prefix = f"{self.player.name}/{name}/"
            if prefix + "step" not in tensors:
                continue  # a parameter that has had no gradient yet
            stored = {key: tensors[prefix + key] for key in STATE}
            self.adam.state[parameter] = {
                "step": stored["step"].to(parameter.device),
                "exp_avg": torch.empty_like(parameter).copy_(stored["exp_avg"]),
                "exp_avg_sq": torch.empty_like(parameter).copy_(stored["exp_avg_sq"]),
            }


def decaying(parameters: Sequence[Tensor]) -> list[dict[str, Any]]:
    """Parameters [member, …] in two groups: those that a weight decay moves, and those that it spares."""
    spared = [p for p in parameters if not decays(p)]
    groups = [{"params": [p for p in parameters if decays(p)]}, {"params": spared, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def remaining(training: Training, step: int | Tensor) -> float | Tensor:
    """Share of the learning rate that its decay leaves at a step: 1 throughout, or from 1 towards 0."""
    if training.decay == "none":
        return 1.0
    done = step.double() / training.steps if isinstance(step, Tensor) else step / training.steps
    if training.decay == "linear":
        return 1 - done
    return 0.5 + 0.5 * (done * math.pi).cos() if isinstance(done, Tensor) else 0.5 + 0.5 * math.cos(math.pi * done)


def clip_by_norm(gradients: list[Tensor], limit: float | Tensor) -> list[Tensor]:
    """Each member's gradients [member, …], scaled so that their joint norm is at most `limit`.

    Not in place: parameters that are added up share one gradient, which would be scaled twice.
    """
    squares = torch.stack([g.reshape(len(g), -1).square().sum(1) for g in gradients]).sum(0)  # [member]
    scale = (limit / (squares.sqrt() + 1e-6)).clamp(max=1.0)
    return [gradient * scale.view(-1, *[1] * (gradient.ndim - 1)) for gradient in gradients]
