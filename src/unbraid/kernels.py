"""Launching Triton kernels, and compiling those of a step in parallel before it runs.

Triton compiles a kernel when it is first launched, one after the other; a step of a convolutional network has some
thirty. `compile_ahead` collects the launches of a dry run and compiles their kernels on all cores.
"""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

_collected: list[Callable[[], Any]] | None = None


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, writes: Tensor, **constants: Any) -> None:
    """Launch a kernel that writes to a tensor. During a dry run, note it for compilation and write zeros instead."""
    if _collected is None:
        with torch.cuda.device_of(writes):
            kernel[grid](*arguments, **constants)
        return
    # Stand-ins have the type and alignment of the arguments, which kernels are specialised for, and no memory.
    arguments = tuple(x.new_empty(0) if isinstance(x, Tensor) else x for x in arguments)
    _collected.append(lambda: kernel.warmup(*arguments, grid=grid, **constants))
    writes.zero_()


@contextmanager
def compile_ahead() -> Iterator[None]:
    """Collect the launches inside the block instead of carrying them out, and compile their kernels at its end.

    A block that raises compiles nothing. An older Triton without parallel compilation compiles one after the other.
    """
    global _collected
    _collected = []
    try:
        yield
        jobs = _collected
    finally:
        _collected = None
    if not jobs:
        return
    try:
        from triton.runtime._async_compile import AsyncCompileMode
    except ImportError:
        for compile_kernel in jobs:
            compile_kernel()
        return
    with ThreadPoolExecutor(min(len(jobs), os.cpu_count() or 1)) as pool, AsyncCompileMode(pool):
        for compile_kernel in jobs:
            compile_kernel()
