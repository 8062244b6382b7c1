"""Memory: allocator settings, measured bytes, and out-of-memory errors."""

import ctypes
import functools
import gc
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3  # names of mallopt's parameters in glibc


@functools.cache
def keep_freed_memory() -> None:
    """Ask glibc not to return large blocks to the system after each use.

    By default every step maps each large activation again, page by page, which can take longer than the arithmetic.
    Other C libraries have no such option.
    """
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, 1 << 30)
        mallopt(_TRIM_THRESHOLD, (1 << 31) - 1)
        mallopt(_TOP_PAD, 1 << 26)


class SavedBytes:
    """A count of the bytes of tensors, each storage once, without parameters."""

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        self._counted = {parameter.untyped_storage().data_ptr() for parameter in parameters}
        self.total = 0

    def add(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._counted:
            self._counted.add(storage.data_ptr())
            self.total += storage.nbytes()
        return tensor


@contextmanager
def count_saved_bytes(parameters: Iterable[Tensor]) -> Iterator[SavedBytes]:
    """Count the bytes that autograd saves for a backward pass inside the block."""
    saved = SavedBytes(parameters)
    with torch.autograd.graph.saved_tensors_hooks(saved.add, lambda tensor: tensor):
        yield saved


def free_memory() -> None:
    """Free the tensors of a failed step or score, which are part of reference cycles."""
    gc.collect()
    torch.cuda.empty_cache()
