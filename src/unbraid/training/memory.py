"""Memory: kept in the process while training on a CPU, given back after a failure, and told apart from other errors."""

import ctypes
import functools
import gc
import re
import sys

import torch

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


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory is full: only CUDA's own allocator has a type for it."""
    if isinstance(error, (torch.cuda.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and FULL.search(str(error)) is not None


def free_memory() -> None:
    """Give back what a failed step or score held: its tensors hang in reference cycles."""
    gc.collect()
    torch.cuda.empty_cache()
