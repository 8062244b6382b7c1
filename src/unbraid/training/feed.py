"""The batches of streamed data: read from disk on background threads, a few steps ahead of training.

A step takes its rows from one buffer, at a fixed address on a GPU, so that a recorded step reads what `load` put there.
The rows of a step are those that the step itself computes: the feed computes them a second time, on the CPU, because
they are a function of seed and step.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

from unbraid.data.streamed_pixels import StreamedPixels

READERS = 2
STEPS_AHEAD = 4
"""Batches that are read before they are needed."""


class Feed:
    """Observations of the current step; `load` moves on to a step, and `observed` returns them."""

    def __init__(self, pixels: StreamedPixels, choose_rows: Callable[[int], Tensor], steps: int) -> None:
        self.pixels, self.choose_rows, self.steps = pixels, choose_rows, steps
        self._pool = ThreadPoolExecutor(READERS, thread_name_prefix="rows")
        self._waiting: dict[int, Future[Tensor]] = {}
        self._buffer: Tensor | None = None
        self._pinned = PinnedBuffers() if pixels.stored.is_cuda else None

    def load(self, step: int) -> None:
        """Wait for the rows of a step, and start to read those of the following ones."""
        wanted = range(step, max(step + 1, min(step + 1 + STEPS_AHEAD, self.steps)))
        self._waiting = {each: future for each, future in self._waiting.items() if each in wanted}
        for each in wanted:
            if each not in self._waiting:
                self._waiting[each] = self._submit(each)
        rows = self._waiting.pop(step).result()
        if self._pinned is None or self._buffer is None:
            self._buffer = rows.to(self.pixels.stored.device)
        else:
            self._buffer.copy_(rows, non_blocking=True)
        if self._pinned is not None:
            self._pinned.mark_copied(step, rows)

    def observed(self) -> dict[str, Tensor]:
        """Return the observations of the step that was loaded last, as `FactorDataset.observed` does."""
        assert self._buffer is not None
        return {"x": self.pixels.unpack(self._buffer)}

    def _submit(self, step: int) -> "Future[Tensor]":
        index = self.choose_rows(step)
        if self._pinned is None:
            return self._pool.submit(self.pixels.read, index)
        target = self._pinned.take(step)
        return self._pool.submit(lambda: _copy(self.pixels.read(index), target))


class PinnedBuffers:
    """Pinned memory from which a GPU copies while the host goes on.

    All calls of CUDA happen on the main thread: one on another thread would break a recording in progress.
    """

    def __init__(self) -> None:
        self._copied: dict[int, tuple[Tensor, torch.cuda.Event]] = {}

    def take(self, step: int) -> Tensor | None:
        """Return a buffer that no copy reads any more, or None before the first batch, whose shape is unknown."""
        buffer, event = self._copied.pop(step - STEPS_AHEAD - 1, (None, None))
        if event is not None:
            event.synchronize()
        return buffer

    def mark_copied(self, step: int, rows: Tensor) -> None:
        """Note that the rows of a step are being copied; rows in pageable memory are replaced by a pinned buffer."""
        buffer = rows if rows.is_pinned() else torch.empty_like(rows, pin_memory=True)
        event = torch.cuda.Event()
        event.record()
        self._copied[step] = (buffer, event)


def _copy(rows: Tensor, target: Tensor | None) -> Tensor:
    return rows if target is None else target.copy_(rows)
