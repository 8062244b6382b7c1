"""Training of small networks inside a score: many short steps, recorded once on CUDA and replayed as one launch each.

Runs have their own loop (`unbraid.training`); this one keeps no state and resumes nothing.
"""

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from unbraid.progress import progress
from unbraid.recorded_step import RecordedStep

Loss = Callable[[Tensor], Tensor]
"""Loss of a step, as a function of the step's number [1], a tensor that looks up whatever changes between steps."""


def descend(
    name: str, parameters: Iterable[Tensor], loss: Loss, rates: Tensor, betas: tuple[float, float] = (0.9, 0.999)
) -> None:
    """Take one Adam step of each rate [steps] on a loss; `name` is the title of the progress bar.

    The loss must be a function of tensors only: no read-back, no random draw, the same shapes at every step.
    """
    trained = list(parameters)
    device = trained[0].device
    rates = rates.to(device, torch.float32)
    clock = torch.zeros(1, dtype=torch.int64, device=device)
    adam = _LeafAdam(trained, betas)

    def step(_: object = None) -> None:
        gradients = torch.autograd.grad(loss(clock), trained)
        adam.step(gradients, rates.index_select(0, clock)[0])
        clock.add_(1)

    with progress(name, len(rates)) as bar, torch.enable_grad():
        advance = RecordedStep(step, device) if device.type == "cuda" else step
        for _ in range(len(rates)):
            advance()
            bar.advance()


class _LeafAdam:
    """Adam (kingma2015) by the fused kernel of torch's optimizers.

    Their own `step` imports the compiler first, which takes longer than most fits.
    """

    def __init__(self, parameters: list[Tensor], betas: tuple[float, float]) -> None:
        self.parameters, self.betas = parameters, betas
        self.means, self.squares = ([torch.zeros_like(p, requires_grad=False) for p in parameters] for _ in range(2))
        self.steps = [torch.zeros((), dtype=torch.float32, device=p.device) for p in parameters]

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor], rate: Tensor) -> None:
        torch._foreach_add_(self.steps, 1)
        state = self.means, self.squares, [], self.steps
        first, second = self.betas
        settings = {"weight_decay": 0.0, "eps": 1e-8, "amsgrad": False, "maximize": False}
        torch._fused_adam_(self.parameters, list(gradients), *state, lr=rate, beta1=first, beta2=second, **settings)
