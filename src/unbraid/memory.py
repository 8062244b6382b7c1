"""The available bytes of main memory, and errors that say that there were too few."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from unbraid.errors import RunError

OUT_OF_MEMORY = re.compile(r"out of memory|not enough memory|can't allocate memory|_ALLOC(ATION)?_FAILED")
"""Messages of CUDA, MPS, torch's CPU allocator, cuBLAS and cuDNN when memory is full."""


class MemoryFullError(RunError):
    """There was not enough memory; the message says which setting to lower."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error means that memory is full; only CUDA's allocator has a type for it."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError) and OUT_OF_MEMORY.search(str(error)) is not None


@contextmanager
def explain_out_of_memory(what: str, advice: str) -> Iterator[None]:
    """Turn a lack of memory inside the block, or inside a decorated function, into a sentence with advice."""
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        free = available_memory() / 1e9
        raise MemoryFullError(f"{what} needs more memory than there is ({free:.3g} GB are free); {advice}.") from error


def available_memory() -> int:
    """Return the available bytes of main memory, or half of all memory if the system does not report them."""
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        facts = dict(line.split(":", 1) for line in meminfo.read_text(encoding="ascii").splitlines() if ":" in line)
        if "MemAvailable" in facts:
            return 1024 * int(facts["MemAvailable"].split()[0])
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    except (AttributeError, ValueError, OSError):
        return 4 * 2**30
