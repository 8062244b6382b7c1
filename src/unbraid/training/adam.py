"""Adam (kingma2015) for stacked members, with a learning rate per member, and for a single run on a CPU.

Weight decay is AdamW's (loshchilov2019), without biases (see `is_decayed`).
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from unbraid.kernels import allows_kernels
from unbraid.noise import TRITON


class _Adam:
    """The settings, and the moments of each parameter.

    m <- b1 m + (1 - b1) g        v <- b2 v + (1 - b2) g^2
    p <- (1 - rate * weight_decay) p - rate * (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)
    """

    def __init__(
        self,
        parameters: Sequence[Tensor],
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        self.parameters, self.betas, self.eps, self.weight_decay = list(parameters), betas, eps, weight_decay
        self.means = [torch.zeros_like(p, requires_grad=False) for p in self.parameters]
        self.squares = [torch.zeros_like(p, requires_grad=False) for p in self.parameters]

    def _mark_moved(self) -> None:
        """Tell autograd that a kernel has moved the parameters.

        Without this, a later player that differentiates through them would silently mix old activations with new
        weights instead of raising.
        """
        torch.autograd.graph.increment_version([*self.parameters, *self._moved_copies()])

    def _moved_copies(self) -> list[Tensor]:
        return []


class FusedAdam(_Adam):
    """Adam of a single run, by the kernel behind `torch.optim.Adam(fused=True)`.

    It calls the kernel directly, since creating a `torch.optim.Optimizer` imports the compiler, which takes seconds.
    """

    def __init__(self, parameters: Sequence[Tensor], rate: float, **settings: Any) -> None:
        super().__init__(parameters, **settings)
        self.rate = rate
        self.steps = [torch.zeros((), dtype=torch.float32, device=p.device) for p in self.parameters]

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor | None], share: float = 1.0) -> None:
        """Update every parameter that has a gradient by `share` of the rate."""
        for decays in (True, False):
            chosen = [
                (p, match_strides(g, p), mean, square, steps)
                for p, g, mean, square, steps in zip(
                    self.parameters, gradients, self.means, self.squares, self.steps, strict=True
                )
                if g is not None and (self.weight_decay > 0 and is_decayed(p)) == decays
            ]
            if not chosen:
                continue
            parameters, own_gradients, means, squares, steps = (list(column) for column in zip(*chosen, strict=True))
            torch._foreach_add_(steps, 1)
            update: Any = torch._fused_adamw_ if decays else torch._fused_adam_
            first, second = self.betas
            rates = {"lr": self.rate * share, "beta1": first, "beta2": second, "eps": self.eps}
            options = {"weight_decay": self.weight_decay * decays, "amsgrad": False, "maximize": False}
            update(parameters, own_gradients, means, squares, [], steps, **rates, **options)
        self._mark_moved()


class StackedAdam(_Adam):
    """Adam on parameters [member, …] with a rate per member; members that are not alive are not updated.

    torch's Adam has one rate per tensor.
    """

    def __init__(
        self, parameters: Sequence[Tensor], rate: Tensor, copies: Sequence[Tensor | None] = (), **settings: Any
    ) -> None:
        super().__init__(parameters, **settings)
        self.rate = rate
        self.copies = list(copies) or [None] * len(self.parameters)  # in bfloat16, updated with the parameters
        self.steps = torch.zeros_like(rate)  # [member]
        suited = rate.is_cuda and rate.dtype == torch.float32
        self.fused = suited and TRITON and allows_kernels()
        self.by_torch = suited and not self.fused and len(rate) == 1

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor | None], alive: Tensor, share: float | Tensor = 1.0) -> None:
        """Update the members that are alive [member] by `share` of their rate."""
        first, second = self.betas
        self.steps += alive
        if self.fused:
            self._update_fused(gradients, alive, share)
            return
        if self.by_torch:
            self._update_by_torch(gradients, alive, share)
            return
        rate = (self.rate * share / (1 - first**self.steps)).to(self.rate.dtype)
        correction = (1 - second**self.steps).sqrt()
        keep = 1 - (self.rate * share * self.weight_decay).to(self.rate.dtype)
        for parameter, gradient, mean, square in zip(self.parameters, gradients, self.means, self.squares, strict=True):
            if gradient is None:
                continue
            moves = _broadcast(alive, parameter)
            # `where`, not a product: the gradient of a diverged member is NaN, and NaN times 0 is NaN
            mean.copy_(torch.where(moves, mean.lerp(gradient, 1 - first), mean))
            square.copy_(torch.where(moves, square * second + (1 - second) * gradient.square(), square))
            change = _broadcast(rate, parameter) * mean / (square.sqrt() / _broadcast(correction, parameter) + self.eps)
            decay = self.weight_decay and is_decayed(parameter)
            before = parameter * _broadcast(keep, parameter) if decay else parameter
            parameter.copy_(torch.where(moves, before - change, parameter))

    def _update_fused(self, gradients: Sequence[Tensor | None], alive: Tensor, share: float | Tensor) -> None:
        from unbraid.training.adam_kernel import Update, update_all

        updates = []
        stored = zip(self.parameters, gradients, self.means, self.squares, self.copies, strict=True)
        for parameter, gradient, mean, square, copy in stored:
            if gradient is not None:
                same = gradient.stride()[1:] == parameter.stride()[1:]
                laid_out = gradient if same else match_strides(gradient, parameter)
                updates.append(Update(parameter, laid_out, mean, square, copy, is_decayed(parameter)))
        if not updates:
            return
        unchanged = isinstance(share, float) and share == 1.0
        rate = self.rate if unchanged else (self.rate * share).to(self.rate.dtype)
        update_all(updates, self.steps, rate, alive, self.betas, self.eps, self.weight_decay)
        self._mark_moved()

    def _update_by_torch(self, gradients: Sequence[Tensor | None], alive: Tensor, share: float | Tensor) -> None:
        """Update a single run by torch's kernel, with the rate and the number of steps on the device."""
        stored = zip(self.parameters, gradients, self.means, self.squares, strict=True)
        rows = [(p[0], match_strides(g[0], p[0]), mean[0], square[0]) for p, g, mean, square in stored if g is not None]
        rate = (self.rate * share).to(self.rate.dtype)[0]
        for decays in (True, False):
            chosen = [row for row in rows if (self.weight_decay > 0 and is_decayed(row[0][None])) == decays]
            if not chosen:
                continue
            update: Any = torch._fused_adamw_ if decays else torch._fused_adam_
            rates = {"lr": rate, "beta1": self.betas[0], "beta2": self.betas[1], "eps": self.eps}
            options = {"weight_decay": self.weight_decay * decays, "amsgrad": False, "maximize": False}
            steps = [self.steps[0]] * len(chosen)
            idle = (~alive).to(self.rate.dtype)  # found_inf = 1 makes torch skip the update
            columns = (list(column) for column in zip(*chosen, strict=True))
            update(*columns, [], steps, **rates, **options, found_inf=idle)
        self._mark_moved()

    def _moved_copies(self) -> list[Tensor]:
        return [copy for copy in self.copies if copy is not None]

    def tensors(self) -> dict[str, Tensor]:
        """Return the state for a checkpoint, by the position of each parameter."""
        stored = {"steps": self.steps}
        for i, (mean, square) in enumerate(zip(self.means, self.squares, strict=True)):
            stored |= {f"{i}/mean": mean, f"{i}/square": square}
        return stored


def match_strides(gradient: Tensor, parameter: Tensor) -> Tensor:
    """Return a gradient with its parameter's strides, as a fused update reads raw memory."""
    if gradient.stride() == parameter.stride():
        return gradient
    return torch.empty_like(parameter).copy_(gradient)


def is_decayed(parameter: Tensor) -> bool:
    """Return whether weight decay applies to a parameter [member, …]: to matrices and kernels, not to vectors."""
    return parameter.ndim > 2


def _broadcast(values: Tensor, parameter: Tensor) -> Tensor:
    """Return values [member] in a shape that broadcasts against a parameter [member, …]."""
    return values.view(-1, *[1] * (parameter.ndim - 1))
