"""Memory that this process can use, and memory of processes, as reported by Linux."""

from __future__ import annotations

import os
from pathlib import Path

from synergai.runtime.cgroups import memory_limits


def usable_memory_bytes(root: Path = Path("/")) -> int:
    """Return the physical memory, or the lower limit of this process's cgroups."""
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([physical, *(limit for limit, _ in memory_limits(root))])


def available_memory_bytes(root: Path = Path("/")) -> int:
    """Return the memory that this process can still take without swapping or being killed."""
    left = [max(0, limit - used) for limit, used in memory_limits(root)]
    for line in (root / "proc/meminfo").read_text("ascii").splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            left.append(int(value.split()[0]) << 10)
    return min(left, default=usable_memory_bytes(root))


def rss_bytes(pid: int | None = None) -> int:
    """Return the resident memory of a process, by default this one; 0 if it has exited."""
    try:
        fields = Path("/proc", str(pid or "self"), "statm").read_text("ascii").split()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")
