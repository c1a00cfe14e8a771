"""What this machine is, as far as a default can tell."""

from __future__ import annotations

import platform
from typing import Final

from synergai.domain import WorkerClass

_CLASSES: Final = {"x86_64": "x86", "amd64": "x86", "i686": "x86", "aarch64": "arm64"}


def default_worker_class() -> WorkerClass:
    """The processor's family: ``x86``, ``arm64``; machines that differ more need a name."""
    machine = platform.machine().lower() or "unknown"
    return WorkerClass(_CLASSES.get(machine, machine))
