"""Lifetime and OOM priority of processes, and limits of what they use."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
import time
from pathlib import Path
from typing import Final

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
