"""The available bytes of main memory."""

import os
from pathlib import Path


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
