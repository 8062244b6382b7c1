"""One Adam (kingma2015) per player, and gradients that reach only its own parameters."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from unbraid.config import Training
from unbraid.training.group import Group
from unbraid.types import Player

STATE = ("step", "exp_avg", "exp_avg_sq")


class PlayerOptimizer:
    """Moves one player's parameters."""

    def __init__(self, player: Player, group: Group, training: Training) -> None:
        self.player = player
        self.training = training
        owned = {n: p for n, p in group.parameters.items() if n.startswith(player.owns)}
        self.parameters = {n: p for n, p in owned.items() if p.requires_grad}  # a frozen parameter stays as it is
        fused = group.device.type in ("cpu", "cuda")
        settings: dict[str, Any] = {"lr": training.lr, **player.optimizer}
        self.rate: float = settings["lr"]
        self.adam = torch.optim.Adam(list(self.parameters.values()), fused=fused, **settings)

    def step(self, loss: Tensor, step: int, retain_graph: bool) -> None:
        """One update by the sum of the members' losses: members are independent, so each sees its own gradient."""
        parameters = list(self.parameters.values())
        gradients = torch.autograd.grad(loss.sum(), parameters, retain_graph=retain_graph, allow_unused=True)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = None if gradient is None else _laid_out_as(gradient, parameter)
        if self.training.clip is not None:
            clip_by_norm([p.grad for p in parameters if p.grad is not None], self.training.clip)
        self.adam.param_groups[0]["lr"] = self.rate * remaining(self.training, step)
        self.adam.step()
        # The fused update does not tell autograd that it moved the parameters; without this, a later player that
        # differentiates through them would silently mix old activations with new weights instead of raising.
        torch.autograd.graph.increment_version(parameters)

    def tensors(self) -> dict[str, Tensor]:
        """Optimizer state for a checkpoint."""
        return {
            f"{self.player.name}/{name}/{key}": self.adam.state[parameter][key]
            for name, parameter in self.parameters.items()
            if parameter in self.adam.state
            for key in STATE
        }

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Inverse of `tensors`."""
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


def remaining(training: Training, step: int) -> float:
    """Share of the learning rate that its decay leaves at a step: 1 throughout, or from 1 towards 0."""
    done = step / training.steps
    return {"none": 1.0, "linear": 1 - done, "cosine": 0.5 + 0.5 * math.cos(math.pi * done)}[training.decay]


def clip_by_norm(gradients: list[Tensor], limit: float) -> None:
    """Scale each member's gradients [member, …] so that their joint norm is at most `limit`."""
    squares = torch.stack([g.flatten(1).square().sum(1) for g in gradients]).sum(0)  # [member]
    scale = (limit / (squares.sqrt() + 1e-6)).clamp(max=1.0)
    for gradient in gradients:
        gradient.mul_(scale.view(-1, *[1] * (gradient.ndim - 1)))


def _laid_out_as(gradient: Tensor, parameter: Tensor) -> Tensor:
    """The fused update walks raw memory, so a gradient must have its parameter's strides."""
    if gradient.stride() == parameter.stride():
        return gradient
    return torch.empty_like(parameter).copy_(gradient)
