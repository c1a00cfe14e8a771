"""Default paths and defaults derived from this machine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from synergai.domain import WorkerClass

_CLASSES: Final = {"x86_64": "x86", "amd64": "x86", "i686": "x86", "aarch64": "arm64"}


def default_worker_class() -> WorkerClass:
    """Return the processor's family, such as ``x86`` or ``arm64``."""
    machine = os.uname().machine.lower()
    return WorkerClass(_CLASSES.get(machine, machine))


def gateway_state() -> Path:
    return _state("gateway")


def agent_state() -> Path:
    return _state("agent")


def _state(role: str) -> Path:
    """Return the directory given by systemd, or else by the XDG base directory specification."""
    if given := os.environ.get("STATE_DIRECTORY"):
        return Path(given.partition(":")[0])
    try:
        directory = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state"
    except RuntimeError:  # a user without a name and without HOME, as in some containers
        directory = "/var/lib"
    return Path(directory) / "synergai" / role


def dictionary_path(state: Path) -> Path:
    """Return the path of the configuration dictionary in a gateway's `state` directory."""
    return state / "dictionary.db"


def worker_state(state: Path) -> Path:
    """Return the worker's part of the `state` directory of ``synergai serve``."""
    return state / "worker"


def default_dictionary() -> Path:
    """Return the dictionary that profiler, gateway and commands share by default."""
    return dictionary_path(gateway_state())
