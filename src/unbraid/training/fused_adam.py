"""Adam of a single run, by the kernel behind `torch.optim.Adam(fused=True)`."""

from collections.abc import Sequence

import torch
from torch import Tensor

from unbraid.training.stacked_adam import is_decayed, match_strides


class FusedAdam:
    """Adam (kingma2015) on the parameters of one run; with `weight_decay` it is AdamW (loshchilov2019).

    It calls torch's kernel directly, since creating a `torch.optim.Optimizer` imports the compiler, which takes
    seconds.
    """

    def __init__(
        self,
        parameters: Sequence[Tensor],
        rate: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        self.parameters, self.rate, self.betas, self.eps = list(parameters), rate, betas, eps
        self.weight_decay = weight_decay
        self.steps = [torch.zeros((), dtype=torch.float32, device=p.device) for p in self.parameters]
        self.means = [torch.zeros_like(p, requires_grad=False) for p in self.parameters]
        self.squares = [torch.zeros_like(p, requires_grad=False) for p in self.parameters]

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
            update = torch._fused_adamw_ if decays else torch._fused_adam_
            update(
                parameters,
                own_gradients,
                means,
                squares,
                [],
                steps,
                lr=self.rate * share,
                beta1=self.betas[0],
                beta2=self.betas[1],
                weight_decay=self.weight_decay if decays else 0.0,
                eps=self.eps,
                amsgrad=False,
                maximize=False,
            )
        # The kernel does not tell autograd that it moved the parameters; without this, a later player that
        # differentiates through them would silently mix old activations with new weights instead of raising.
        torch.autograd.graph.increment_version(self.parameters)
