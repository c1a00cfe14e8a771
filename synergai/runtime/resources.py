"""Resources of this machine, and the limits, priority and lifetime of processes that use them.

Containers and systemd units are cgroups. A limit holds for a group and all below it, so that the
lowest one of the process's own group and its visible parents counts. What cannot be read limits
nothing. Imports the standard library only, because the power helper, which runs as root, needs it.
"""

from __future__ import annotations

import ctypes
import math
import os
import re
import resource
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator


_ROOT: Final = Path("/")
_ESCAPED: Final = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True)
class Cgroup:
    """The group of this process in the hierarchy of one controller.

    Attributes:
        version: of the hierarchy, 1 or 2; a controller is in one of them only.
        levels: absolute paths of its directory and of its visible parents, from below; empty if
            the hierarchy is not mounted.
    """

    version: int
    levels: tuple[str, ...] = ()


def find_cgroup(controller: str, root: Path = _ROOT) -> Cgroup:
    """Return the process's group of a v1 controller, otherwise that of v2.

    Args:
        root: directory of ``/proc`` and ``/sys``, as emulated in tests.
    """
    try:
        version, own = _own_path(controller, root)
        for line in _lines(root, "/proc/self/mountinfo"):
            shown, _, kind = line.partition(" - ")
            _, _, _, top, mount, *_ = shown.split()
            system, _, options = kind.split(maxsplit=2)
            if system == "cgroup2" if version == 2 else controller in options.split(","):
                mount = _ESCAPED.sub(lambda code: chr(int(code[1], 8)), mount)
                return Cgroup(version, _levels(root, mount, top.rstrip("/"), own))
    except ValueError:  # not the format of Linux
        pass
    return Cgroup(2)


def _own_path(controller: str, root: Path) -> tuple[int, str]:
    """Return the version of the hierarchy that has a controller, and the process's path in it."""
    own = ""
    for line in _lines(root, "/proc/self/cgroup"):
        _, names, path = line.split(":", 2)
        if controller in names.split(","):
            return 1, path
        if not names:
            own = path
    return 2, own


def _levels(root: Path, mount: str, top: str, own: str) -> tuple[str, ...]:
    """Return the directories of a group and of its visible parents, from below.

    A container may see the tree from its own group on only, by paths of the host.
    """
    below = own[len(top) :].strip("/") if f"{own}/".startswith(f"{top}/") else ""
    parts = below.split("/") if below and (root / mount[1:] / below).is_dir() else []
    return tuple("/".join([mount, *parts[:count]]) for count in range(len(parts), -1, -1))


def cpu_quota(root: Path = _ROOT) -> float:
    """Return the CPU seconds per second that the cgroups allow; infinite without a limit."""
    group = find_cgroup("cpu", root)
    quotas = [math.inf]
    for folder in group.levels:
        if group.version == 2:
            numbers = _integers(root, f"{folder}/cpu.max")
        else:
            names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
            numbers = [n for name in names for n in _integers(root, f"{folder}/{name}")]
        if len(numbers) == 2 and min(numbers) > 0:
            quotas.append(numbers[0] / numbers[1])
    return min(quotas)


def usable_cpus(cores: Collection[int] = (), root: Path = _ROOT) -> float:
    """Return the CPU seconds per second that engines can use, such as 0.5.

    Cpusets count as well: the kernel keeps the affinity of processes within them.

    Args:
        cores: cores that they are restricted to; empty for all that this process may use.
    """
    return min(len(cores) or len(os.sched_getaffinity(0)), cpu_quota(root))


def usable_cores(cores: Collection[int] = (), root: Path = _ROOT) -> int:
    """Return the whole cores of `usable_cpus`, at least 1: more threads would stop one another."""
    return max(1, math.floor(usable_cpus(cores, root)))


def memory_limits(root: Path = _ROOT) -> Iterator[tuple[int, int]]:
    """Yield each memory limit in bytes, and how much of it is used but for what can be reclaimed.

    The kernel kills processes beyond ``memory.max``, and slows them down beyond ``memory.high``.
    """
    group = find_cgroup("memory", root)
    for folder in group.levels:
        if group.version == 2:
            names, usage, cache = ["memory.max", "memory.high"], "memory.current", "inactive_file"
        else:
            names, usage = ["memory.limit_in_bytes"], "memory.usage_in_bytes"
            cache = "total_inactive_file"
        limits = [n for name in names for n in _integers(root, f"{folder}/{name}") if n > 0]
        if limits:
            used = sum(_integers(root, f"{folder}/{usage}"))
            stat = dict(line.partition(" ")[::2] for line in _lines(root, f"{folder}/memory.stat"))
            cached = stat.get(cache, "")
            yield min(limits), max(0, used - (int(cached) if cached.isdecimal() else 0))


def _integers(root: Path, path: str) -> list[int]:
    """Return the numbers in a file; none if it has other words, such as ``max``."""
    try:
        return [int(word) for line in _lines(root, path) for word in line.split()]
    except ValueError:
        return []


def _lines(root: Path, path: str) -> list[str]:
    try:
        return (root / path.lstrip("/")).read_text("utf-8", "replace").splitlines()
    except OSError:
        return []


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


def return_freed_memory() -> None:
    """Return free pages to the kernel; does nothing with C libraries other than glibc."""
    library = ctypes.CDLL(None)
    if hasattr(library, "malloc_trim"):
        library.malloc_trim(ctypes.c_size_t(0))


_PR_SET_PDEATHSIG: Final = 1
_OOM_SCORE_ADJ: Final = 500
"""Added to the process's OOM score, in thousandths of the memory; see proc_pid_oom_score_adj(5)."""
MAX_DESCRIPTORS: Final = 65536
"""Limit that a serving process gives itself at most; more would only let a leak go unnoticed."""


def age_s() -> float:
    """Return the seconds since this process was started."""
    ticks = int(_stat("self")[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


def is_stopped(pid: int) -> bool:
    """Return whether a signal has stopped a process."""
    try:
        return _stat(str(pid))[0] == "T"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _stat(process: str) -> list[str]:
    """Return the fields of a process behind its name, from its state on; see proc_pid_stat(5)."""
    return Path("/proc", process, "stat").read_text("utf-8").rpartition(")")[2].split()


def prefer_oom_kill() -> None:
    """Make the OOM killer choose this process over its parent."""
    Path("/proc/self/oom_score_adj").write_text(str(_OOM_SCORE_ADJ), "ascii")


def limit_data(max_bytes: int) -> None:
    """Limit this process's data segment: allocations beyond it fail.

    Linux counts private writable memory, reserved or used, and no files or shared memory.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    soft = max_bytes if hard == resource.RLIM_INFINITY else min(max_bytes, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def die_with_parent(parent: int) -> None:
    """Make the kernel kill this process when its parent dies; exit at once if it has died."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        # The parent died before the request took effect.
        sys.exit(1)


def raise_descriptor_limit() -> None:
    """Raise the soft limit of open file descriptors to the hard one, up to `MAX_DESCRIPTORS`.

    Linux's usual soft limit of 1024 protects programs that use ``select``. A serving process uses
    none, and its connections would exceed the limit.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MAX_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
