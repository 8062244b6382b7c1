"""Training of small networks inside a score: many short steps, captured once on CUDA and replayed as one launch each.

Runs have their own loop (`unbraid.training`); this one keeps no state and resumes nothing.
"""

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from unbraid.progress import progress

WARM_UP_STEPS = 3
"""Steps before the capture: the first ones choose kernels and make the optimizer's state."""

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

    def step() -> None:
        gradients = torch.autograd.grad(loss(clock), trained)
        adam.step(gradients, rates.index_select(0, clock)[0])
        clock.add_(1)

    with progress(name, len(rates)) as bar, torch.enable_grad():
        advance = CapturedStep(step) if device.type == "cuda" else step
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


class CapturedStep:
    """A step that runs a few times and is then captured as a CUDA graph."""

    def __init__(self, step: Callable[[], None]) -> None:
        self.step, self.calls = step, 0
        self.graph: torch.cuda.CUDAGraph | None = None
        self.stream = torch.cuda.Stream()

    def __call__(self) -> None:
        self.calls += 1
        if self.graph is None and self.calls > WARM_UP_STEPS:
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph, stream=self.stream):
                self.step()
        if self.graph is not None:
            self.graph.replay()  # a capture executes nothing
            return
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            self.step()
        torch.cuda.current_stream().wait_stream(self.stream)
