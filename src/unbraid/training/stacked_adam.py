"""Adam (kingma2015) for stacked members: torch's takes one learning rate for a tensor, members have one each."""

from collections.abc import Sequence

import torch
from torch import Tensor

from unbraid.noise import TRITON


class StackedAdam:
    """Adam on parameters [member, …] with a rate per member; a member that is not alive does not move.

    m <- b1 m + (1 - b1) g        v <- b2 v + (1 - b2) g^2
    p <- (1 - rate * weight_decay) p - rate * (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)

    Weight decay is AdamW's (loshchilov2019), for weights alone (see `decays`).
    """

    def __init__(
        self,
        parameters: Sequence[Tensor],
        rate: Tensor,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        self.parameters, self.rate, self.betas, self.eps = list(parameters), rate, betas, eps
        self.weight_decay = weight_decay
        self.steps = torch.zeros_like(rate)  # [member]
        self.means = [torch.zeros_like(p, requires_grad=False) for p in self.parameters]
        self.squares = [torch.zeros_like(p, requires_grad=False) for p in self.parameters]
        self.fused = rate.is_cuda and rate.dtype == torch.float32 and TRITON

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor | None], alive: Tensor, share: float | Tensor = 1.0) -> None:
        """Move the members that are alive [member] by `share` of their rate."""
        first, second = self.betas
        self.steps += alive
        rate = (self.rate * share / (1 - first**self.steps)).to(self.rate.dtype)
        spread = (1 - second**self.steps).sqrt()
        kept = 1 - (self.rate * share * self.weight_decay).to(self.rate.dtype)
        if self.fused:
            self._update(gradients, rate, spread, kept, alive)
            return
        for parameter, gradient, mean, square in zip(self.parameters, gradients, self.means, self.squares, strict=True):
            if gradient is None:
                continue
            moves = _along(alive, parameter)
            # `where`, not a product: the gradient of a diverged member is NaN, and NaN times 0 is NaN
            mean.copy_(torch.where(moves, mean.lerp(gradient, 1 - first), mean))
            square.copy_(torch.where(moves, square * second + (1 - second) * gradient.square(), square))
            change = _along(rate, parameter) * mean / (square.sqrt() / _along(spread, parameter) + self.eps)
            before = parameter * _along(kept, parameter) if self.weight_decay and decays(parameter) else parameter
            parameter.copy_(torch.where(moves, before - change, parameter))

    def _update(
        self, gradients: Sequence[Tensor | None], rate: Tensor, spread: Tensor, kept: Tensor, alive: Tensor
    ) -> None:
        from unbraid.training.adam_kernel import update

        for parameter, gradient, mean, square in zip(self.parameters, gradients, self.means, self.squares, strict=True):
            if gradient is not None:
                same = gradient.stride()[1:] == parameter.stride()[1:]
                laid_out = gradient if same else gradient_like(gradient, parameter)
                decay = self.weight_decay > 0 and decays(parameter)
                update(parameter, laid_out, mean, square, rate, spread, kept, alive, self.betas, self.eps, decay)
        # The kernel does not tell autograd that it moved the parameters; without this, a later player that
        # differentiates through them would silently mix old activations with new weights instead of raising.
        torch.autograd.graph.increment_version(self.parameters)

    def tensors(self) -> dict[str, Tensor]:
        """State for a checkpoint, by the position of each parameter."""
        stored = {"steps": self.steps}
        for i, (mean, square) in enumerate(zip(self.means, self.squares, strict=True)):
            stored |= {f"{i}/mean": mean, f"{i}/square": square}
        return stored


def gradient_like(gradient: Tensor, parameter: Tensor) -> Tensor:
    """Return a gradient with its parameter's strides, which a fused update needs: it walks raw memory."""
    if gradient.stride() == parameter.stride():
        return gradient
    return torch.empty_like(parameter).copy_(gradient)


def decays(parameter: Tensor) -> bool:
    """Whether weight decay moves a parameter [member, …]: matrices and kernels, not biases and other vectors."""
    return parameter.ndim > 2


def _along(values: Tensor, parameter: Tensor) -> Tensor:
    """One value per member, shaped to broadcast against a parameter [member, …]."""
    return values.view(-1, *[1] * (parameter.ndim - 1))
