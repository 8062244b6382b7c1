"""Memory: kept in the process while training on a CPU, given back after a failure, and told apart from other errors."""

import ctypes
import functools
import gc
import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

FULL = re.compile(r"out of memory|not enough memory|can't allocate memory|_ALLOC(ATION)?_FAILED")
"""What CUDA, MPS, torch's allocator of main memory, cuBLAS and cuDNN say when there is no memory left."""

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3  # names of mallopt's parameters in glibc


@functools.cache
def keep_freed_memory() -> None:
    """Ask glibc not to hand large blocks back to the system after each use.

    By default every large activation is mapped anew and its pages are faulted in one by one, at each step; that can
    take longer than the arithmetic. Other C libraries have no such switch, and nothing happens there.
    """
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, 1 << 30)
        mallopt(_TRIM_THRESHOLD, (1 << 31) - 1)
        mallopt(_TOP_PAD, 1 << 26)


class SavedBytes:
    """Counts the bytes of tensors, each storage once, without those of parameters."""

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        self._seen = {parameter.untyped_storage().data_ptr() for parameter in parameters}
        self.total = 0

    def add(self, tensor: Tensor) -> Tensor:
        """Count a tensor and return it."""
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._seen:
            self._seen.add(storage.data_ptr())
            self.total += storage.nbytes()
        return tensor


@contextmanager
def count_saved_bytes(parameters: Iterable[Tensor]) -> Iterator[SavedBytes]:
    """Count what autograd saves for a backward pass inside the block."""
    saved = SavedBytes(parameters)
    with torch.autograd.graph.saved_tensors_hooks(saved.add, lambda tensor: tensor):
        yield saved


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory is full: only CUDA's own allocator has a type for it."""
    if isinstance(error, (torch.cuda.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and FULL.search(str(error)) is not None


def free_memory() -> None:
    """Give back what a failed step or score held: its tensors hang in reference cycles."""
    gc.collect()
    torch.cuda.empty_cache()


def available_memory() -> int:
    """Return the bytes of main memory that a new program may take; half of all of it if the system does not say."""
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        facts = dict(line.split(":", 1) for line in meminfo.read_text(encoding="ascii").splitlines() if ":" in line)
        if "MemAvailable" in facts:
            return 1024 * int(facts["MemAvailable"].split()[0])
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    except (AttributeError, ValueError, OSError):
        return 4 * 2**30
