"""Child processes that do not outlive their parents."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import Final

_PR_SET_PDEATHSIG: Final = 1


def die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent dies, however that happens.

    Args:
        parent: the parent's process id; if it died before this call, the process exits here.
    """
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        # It died before the kernel knew.
        sys.exit(1)
