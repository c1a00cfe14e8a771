"""Child processes that neither outlive their parents nor cost them their lives."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
_DIE_FIRST: Final = 500
"""How much of the memory, in thousandths, the kernel adds to what it takes the process to use."""


def prefer_oom_kill() -> None:
    """Have the kernel kill this process before its parent where memory is short."""
    Path("/proc/self/oom_score_adj").write_text(str(_DIE_FIRST), "ascii")


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent dies, however that happens.

    Args:
        parent: the parent's process id; if it died before this call, the process exits here.
    """
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        # It died before the kernel knew.
        sys.exit(1)
