"""Other work on a processor core."""

from __future__ import annotations

import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_BUSY = "import os, sys; os.sched_setaffinity(0, {int(sys.argv[1])})\nwhile True: pass"


@contextmanager
def busy(core: int, processes: int = 1) -> Iterator[None]:
    """Keep a core busy: `processes` take as much of it as an engine thread each."""
    found = [subprocess.Popen([sys.executable, "-c", _BUSY, str(core)]) for _ in range(processes)]
    try:
        yield
    finally:
        for each in found:
            each.kill()
            each.wait()
