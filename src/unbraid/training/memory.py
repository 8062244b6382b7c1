"""Keep freed memory in the process while training on a CPU."""

import ctypes
import functools
import sys

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
