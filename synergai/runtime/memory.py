"""Memory that this process can use, memory of processes, and the heap of the C library."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Final

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


def peak_rss_bytes(pid: int) -> int:
    """Return the most memory that a process has had resident so far; 0 if it has exited."""
    try:
        status = Path("/proc", str(pid), "status").read_text("ascii", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return 0
    peaks = (line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(next(peaks, 0)) << 10  # a zombie has none


def forget_peak_rss(pid: int) -> bool:
    """Let `peak_rss_bytes` of a process begin anew; return whether the kernel permits it."""
    try:
        Path("/proc", str(pid), "clear_refs").write_text("5", "ascii")
    except OSError:
        return False
    return True


_M_TRIM_THRESHOLD: Final = -1
_M_TOP_PAD: Final = -2
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8
_MMAP_THRESHOLD_BYTES: Final = 32 << 20
"""The largest threshold that glibc accepts."""
_RETAINED_BYTES: Final = 64 << 20
_TOP_PAD_BYTES: Final = 4 << 20
_ARENAS: Final = 2


def retain_freed_memory() -> None:
    """Make the C library retain up to about 64 MiB of freed memory for the next message.

    By default glibc returns every large block to the kernel, and the next message of an image's
    size page-faults its memory in again: a 600 kB request took a bare grpc.aio server 1.0 ms of CPU
    time instead of 0.45 ms.

    Also limits the number of arenas, since each retains memory separately. By default the threads
    of gRPC, which allocate the messages, get up to eight per processor: a gateway then grows
    whenever another thread happens to receive a large message. Two arenas took 89 MB instead of
    102 MB for 602 kB requests, and no more CPU time.

    Does nothing with other C libraries, which lack these settings.
    """
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallopt"):
        return
    library.mallopt(_M_ARENA_MAX, _ARENAS)
    library.mallopt(_M_MMAP_THRESHOLD, _MMAP_THRESHOLD_BYTES)
    library.mallopt(_M_TRIM_THRESHOLD, _RETAINED_BYTES)
    library.mallopt(_M_TOP_PAD, _TOP_PAD_BYTES)


class _Mallinfo2(ctypes.Structure):
    """``struct mallinfo2`` of glibc 2.33 and newer."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


class GlibcHeap:
    """The heap of glibc."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._mallinfo2 = library.mallinfo2
        self._mallinfo2.restype = _Mallinfo2
        self._malloc_trim = library.malloc_trim

    @classmethod
    def find(cls) -> GlibcHeap | None:
        """Return the heap of this process; None if its C library cannot do this."""
        library = ctypes.CDLL(None)
        if not hasattr(library, "mallinfo2") or not hasattr(library, "malloc_trim"):
            return None
        return cls(library)

    def free_bytes(self) -> int:
        """Return the bytes that are free in all arenas."""
        return int(self._mallinfo2().fordblks)

    def trim(self) -> None:
        """Return free pages of all arenas to the kernel."""
        self._malloc_trim(ctypes.c_size_t(0))
