"""How a step is executed: plain, recorded as one CUDA graph, compiled, or both. None of it changes a result beyond
rounding.

| execution | kernels            | launches       | ready after | used                                       |
|-----------|--------------------|----------------|-------------|--------------------------------------------|
| plain     | torch's and ours   | one by one     | at once     | on a CPU                                   |
| recorded  | torch's and ours   | one per step   | seconds     | on CUDA, for most runs                     |
| captured  | fused by Inductor  | one per step   | a minute    | on CUDA, for runs of many steps            |
| compiled  | fused by Inductor  | one by one     | a minute    | on CUDA, where several processes train     |

A recorded step costs the host one launch. It needs every number that changes between steps to be a tensor on the
device (the clock, the epoch's permutation, the learning rate), and no read-back; the state keeps to that.
"""

import os
import warnings
from collections import Counter
from collections.abc import Callable, Hashable
from typing import Any, Literal, get_args

import torch

from unbraid.errors import UsageError

Execution = Literal["plain", "recorded", "compiled", "captured"]

WARM_UP = 3
"""Calls before a recording: the first loads or compiles kernels, the others settle the allocator."""

COMPILE_FROM_STEPS = 100_000
"""A run of fewer steps is over before the time that Inductor takes has paid for itself (`benchmarks/whole.py`)."""

PROGRAMS = 512
"""Compiled versions of one function that a process may hold: each group of a sweep has its own."""


def default_execution(device: torch.device, steps: int, ranks: int = 1) -> Execution:
    """Return the execution of a run of so many steps; the variable `UNBRAID_EXECUTION` overrides it."""
    wanted = os.environ.get("UNBRAID_EXECUTION", "")
    if wanted and wanted not in get_args(Execution):
        raise UsageError(f"UNBRAID_EXECUTION must be one of {', '.join(get_args(Execution))}, not '{wanted}'.")
    if wanted in ("captured", "recorded") and device.type != "cuda":
        raise UsageError(f"UNBRAID_EXECUTION={wanted} needs a CUDA device, not {device.type}.")
    if wanted:
        return wanted  # type: ignore[return-value]
    if device.type != "cuda":
        return "plain"
    # A recording that holds messages between ranks hangs all of them when one rank fails to record and steps plainly.
    if ranks > 1:
        return "compiled"
    return "captured" if steps >= COMPILE_FROM_STEPS else "recorded"


def compiles(execution: Execution) -> bool:
    """Return whether an execution compiles the parts of a step."""
    return execution in ("compiled", "captured")


def records(execution: Execution) -> bool:
    """Return whether an execution records a step as a CUDA graph."""
    return execution in ("recorded", "captured")


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
