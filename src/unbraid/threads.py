"""The number of threads that torch, the BLAS of numpy and scipy, and Python use."""

import functools
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from unbraid.printable import say

LOAD = Path("/proc/loadavg")

_python_threads: int | None = None


@contextmanager
def some_threads(count: int) -> Iterator[None]:
    """Let torch use `count` threads inside the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def one_thread() -> Iterator[None]:
    """Use one thread for work in cache-sized pieces, where several would mostly wait for each other."""
    with some_threads(1):
        yield


@contextmanager
def blas_threads(count: int) -> Iterator[None]:
    """Let the matrix products of numpy and scipy use `count` threads, which wait for each other by spinning."""
    with _find_libraries(len(sys.modules)).limit(limits=count, user_api="blas"):
        yield


@functools.lru_cache(maxsize=1)
def _find_libraries(modules: int) -> Any:
    """Find the libraries that this process has loaded; it takes 5 to 30 ms, and only a new module can bring another."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


def count_python_threads() -> int:
    """Return the number of Python threads for work that is mostly done outside Python's lock, such as trees and sorts.

    They are as many as torch uses, unless they are set.
    """
    return _python_threads or torch.get_num_threads()


def set_python_threads(count: int) -> None:
    """Set the number of Python threads, for a process in which torch must have one."""
    global _python_threads
    _python_threads = count


def count_busy_tasks(looks: int = 3, seconds: float = 0.02) -> int:
    """Return how many tasks of others want a core, in the quietest of some looks; 0 where Linux does not say."""
    found = []
    for _ in range(looks):
        try:
            running = LOAD.read_text("ascii").split()[3].partition("/")[0]
        except OSError:
            return 0
        found.append(int(running) - 1)  # this one reads
        time.sleep(seconds)
    return min(found)


@functools.cache
def say_if_cores_are_busy() -> None:
    """Say once how to train beside other programs: threads that spin while they wait for each other block these."""
    chosen = "OMP_WAIT_POLICY" in os.environ or torch.get_num_threads() == 1
    if not chosen and count_busy_tasks() + torch.get_num_threads() > (os.cpu_count() or 1):
        say(
            "Other programs use the cores of this machine. OMP_WAIT_POLICY=passive or OMP_NUM_THREADS=1 before the "
            "command often trains several times faster beside them."
        )
