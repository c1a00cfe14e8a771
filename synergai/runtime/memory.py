"""Memory of the machine and of its processes, as reported by Linux."""

from __future__ import annotations

import os
from pathlib import Path


def physical_memory_bytes() -> int:
    """Return the size of the physical memory."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def available_memory_bytes() -> int:
    """Return the memory that programs can still take without swapping."""
    for line in Path("/proc/meminfo").read_text("ascii").splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) << 10
    return physical_memory_bytes()


def rss_bytes(pid: int | None = None) -> int:
    """Return the resident memory of a process, by default this one; 0 if it has exited."""
    try:
        fields = Path("/proc", str(pid or "self"), "statm").read_text("ascii").split()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")
