"""Launching Triton kernels, doing without them, and compiling those of a step in parallel before it runs.

Triton compiles a kernel when it is first launched, one after the other; a step of a convolutional network has some
forty. `compile_ahead` collects the launches of a dry run and compiles their kernels on all cores.
"""

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
"""True if the kernels run in Triton's interpreter, on the CPU, as in tests."""

_DryRun = list[Callable[[], Any]]
"""Functions that compile the kernels of the launches so far."""


class _Thread(threading.local):
    """The dry run of this thread, if it is in one, and whether it does without kernels; other threads go on."""

    dry_run: _DryRun | None = None
    without: bool = False


_thread = _Thread()


@contextmanager
def without_kernels(wanted: bool = True) -> Iterator[None]:
    """Use torch's operations instead of our kernels inside the block, if `wanted`."""
    before, _thread.without = _thread.without, wanted
    try:
        yield
    finally:
        _thread.without = before


def allows_kernels() -> bool:
    """Return whether this thread may launch kernels of this library; a step that is compiled always may."""
    return torch.compiler.is_compiling() or not _thread.without


def launch(
    kernel: Any, grid: tuple[int, ...], *arguments: Any, writes: Sequence[Tensor] = (), **constants: Any
) -> None:
    """Launch a kernel on the device of its first argument, a tensor or a tuple of tensors.

    During a dry run, note it for compilation instead, and fill the new tensors that it `writes` with zeros.
    """
    if _thread.dry_run is None:
        first = arguments[0][0] if isinstance(arguments[0], tuple) else arguments[0]
        with torch.cuda.device_of(first):
            kernel[grid](*arguments, **constants)
        return
    stand_ins = tuple(_without_memory(argument) for argument in arguments)
    _thread.dry_run.append(lambda: kernel.warmup(*stand_ins, grid=grid, **constants))
    for tensor in writes:
        tensor.zero_()


def _without_memory(argument: Any) -> Any:
    """Return a stand-in with the type and the alignment of an argument, for which a kernel is specialised."""
    if isinstance(argument, tuple):
        return tuple(map(_without_memory, argument))
    return argument.new_empty(0) if isinstance(argument, Tensor) else argument


@contextmanager
def skip_launches() -> Iterator[_DryRun]:
    """Skip the launches inside the block, whose results are zeros, and yield the functions that compile them.

    A backward pass inside the block stays in this thread.
    """
    before, _thread.dry_run = _thread.dry_run, []
    try:
        with torch.autograd.set_multithreading_enabled(False):
            yield _thread.dry_run
    finally:
        _thread.dry_run = before


@contextmanager
def compile_ahead() -> Iterator[None]:
    """Skip the launches inside the block, and compile their kernels at its end.

    A block that raises compiles nothing. An older Triton without parallel compilation compiles one after the other.
    """
    with skip_launches() as jobs:
        yield
    if not jobs:
        return
    try:
        from triton.runtime._async_compile import AsyncCompileMode
    except ImportError:
        for compile_kernel in jobs:
            compile_kernel()
        return
    with ThreadPoolExecutor(min(len(jobs), os.cpu_count() or 1)) as pool:
        with AsyncCompileMode(pool) as compiling:
            for compile_kernel in jobs:
                compile_kernel()
        kernels = [future.result() for future in compiling.future_kernels.values()]
        if kernels:
            list(pool.map(partial(_load, device=torch.cuda.current_device()), kernels))


def _load(kernel: Any, device: int) -> None:
    """Make a compiled kernel ready for its first launch, for which some versions of Triton call the C compiler."""
    with torch.cuda.device(device):
        _ = kernel.run
