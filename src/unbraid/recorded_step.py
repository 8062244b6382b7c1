"""Steps on CUDA that are recorded once as a CUDA graph and then replayed, at the cost of one launch each.

A step can be recorded if every number that changes between steps is a tensor on the device, and nothing is read back.
"""

import gc
import warnings
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

WARM_UP_CALLS = 3
"""Calls before a recording: the first loads or compiles kernels, the others settle the allocator."""


class RecordedStep:
    """A step that is recorded as one CUDA graph per pattern, and replayed afterwards.

    `step` is called with the pattern, which says what differs between steps in more than numbers, such as the players
    that move. If recording fails, a warning says so and steps run one by one.
    """

    def __init__(self, step: Callable[[Any], None], device: torch.device) -> None:
        self.step, self.device = step, device
        self.calls: Counter[Hashable] = Counter()
        self.graphs: dict[Hashable, torch.cuda.CUDAGraph] = {}
        self.failed = False

    def __call__(self, pattern: Hashable = None) -> None:
        with torch.cuda.device(self.device):  # streams and recordings belong to the current device
            if pattern in self.graphs:
                self.graphs[pattern].replay()
                return
            self.calls[pattern] += 1
            if self.failed:
                self.step(pattern)
            elif self.calls[pattern] <= WARM_UP_CALLS:
                self._run_on_side_stream(pattern)
            else:
                self._record(pattern)

    def forget(self) -> None:
        """Drop the recordings after the tensors that they write to were replaced."""
        self.graphs.clear()
        self.calls.clear()

    def _run_on_side_stream(self, pattern: Hashable) -> None:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self.step(pattern)
        torch.cuda.current_stream().wait_stream(stream)

    def _record(self, pattern: Hashable) -> None:
        graph = torch.cuda.CUDAGraph()
        try:
            with _without_collection(), torch.cuda.graph(graph, stream=torch.cuda.Stream(self.device)):
                self.step(pattern)
        except torch.cuda.OutOfMemoryError:
            raise
        except RuntimeError as error:
            warnings.warn(f"The step is not captured, and runs slower: {read_first_line(error)}", stacklevel=3)
            self.failed = True
            torch.cuda.synchronize()
            self.step(pattern)
            return
        self.graphs[pattern] = graph
        graph.replay()  # recording a step does not run it


@contextmanager
def _without_collection() -> Iterator[None]:
    """Collect garbage now, and none inside the block: freeing an older recording would break the one in progress."""
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def read_first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its kind."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
