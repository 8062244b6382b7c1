"""How a step is carried out: plain, compiled, or compiled and replayed as one CUDA graph. None of it changes a result
beyond rounding.

A captured step costs the host one launch. It needs every number that changes between steps to be a tensor on the
device (the clock, the epoch's permutation, the learning rate), and no read-back; the state keeps to that.
"""

import os
import warnings
from collections import Counter
from collections.abc import Callable, Hashable
from typing import Any, Literal, get_args

import torch

from unbraid.errors import UsageError

Execution = Literal["plain", "compiled", "captured"]

WARM_UP = 3
"""Uncaptured calls before a recording: the first compiles and tunes kernels, the others settle the allocator."""

PROGRAMS = 512
"""Compiled versions of one function that a process may hold: each group of a sweep has its own."""


def default_execution(device: torch.device, ranks: int = 1) -> Execution:
    """Captured on CUDA, plain elsewhere; `UNBRAID_EXECUTION` may say otherwise."""
    wanted = os.environ.get("UNBRAID_EXECUTION", "")
    if wanted and wanted not in get_args(Execution):
        raise UsageError(f"UNBRAID_EXECUTION is plain, compiled or captured, not '{wanted}'.")
    if wanted == "captured" and device.type != "cuda":
        raise UsageError(f"UNBRAID_EXECUTION=captured needs a CUDA device, not {device.type}.")
    if wanted:
        return wanted  # type: ignore[return-value]
    if device.type != "cuda":
        return "plain"
    # A recording that holds messages between ranks hangs all of them when one rank fails to record and steps plainly.
    return "captured" if ranks == 1 else "compiled"


class Compiled:
    """A function that is compiled at its first call; if that fails, it warns, says why, and stays as it is."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.plain = function
        self.call: Callable[..., Any] = torch.compile(function, dynamic=False)
        self.tried = False

    def __call__(self, *inputs: Any) -> Any:
        if self.tried:
            return self.call(*inputs)
        self.tried = True
        limits = {"cache_size_limit": PROGRAMS, "accumulated_cache_size_limit": 4 * PROGRAMS}
        try:
            with warnings.catch_warnings(), torch._dynamo.config.patch(limits):
                # tracing looks at what every tensor has, also at the gradient that an activation has not
                warnings.filterwarnings("ignore", message="The .grad attribute of a Tensor")
                return self.call(*inputs)
        except torch.cuda.OutOfMemoryError:
            raise
        except (torch._dynamo.exc.TorchDynamoException, torch._inductor.exc.InductorError) as error:
            warnings.warn(f"The step runs uncompiled, and slower: {_reason(error)}", stacklevel=2)
            self.call = self.plain
            return self.call(*inputs)


class Captured:
    """A step recorded as one CUDA graph per pattern of moving players, and replayed from then on."""

    def __init__(self, step: Callable[[Any], None], device: torch.device) -> None:
        self.step, self.device = step, device
        self.calls: Counter[Hashable] = Counter()
        self.graphs: dict[Hashable, torch.cuda.CUDAGraph] = {}
        self.refused = False

    def __call__(self, pattern: Hashable) -> None:
        """Carry out one step."""
        with torch.cuda.device(self.device):  # streams and recordings belong to the current device
            if pattern in self.graphs:
                self.graphs[pattern].replay()
                return
            self.calls[pattern] += 1
            if self.refused:
                self.step(pattern)
            elif self.calls[pattern] <= WARM_UP:
                self._aside(pattern)
            else:
                self._record(pattern)

    def forget(self) -> None:
        """Record anew: the tensors that a recording writes to have been exchanged."""
        self.graphs.clear()
        self.calls.clear()

    def _aside(self, pattern: Hashable) -> None:
        """On a stream of its own, as a recording will be."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self.step(pattern)
        torch.cuda.current_stream().wait_stream(stream)

    def _record(self, pattern: Hashable) -> None:
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, stream=torch.cuda.Stream(self.device)):
                self.step(pattern)
        except torch.cuda.OutOfMemoryError:
            raise
        except RuntimeError as error:
            warnings.warn(f"The step is not captured, and runs slower: {_reason(error)}", stacklevel=3)
            self.refused = True
            torch.cuda.synchronize()
            self.step(pattern)
            return
        self.graphs[pattern] = graph
        graph.replay()  # a recording carries nothing out


def _reason(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
