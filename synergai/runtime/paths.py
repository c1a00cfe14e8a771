"""What this machine is, and where things are on it, as far as a default can tell."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Final

from synergai.domain import WorkerClass

_CLASSES: Final = {"x86_64": "x86", "amd64": "x86", "i686": "x86", "aarch64": "arm64"}


def default_worker_class() -> WorkerClass:
    """The processor's family: ``x86``, ``arm64``; machines that differ more need a name."""
    machine = platform.machine().lower() or "unknown"
    return WorkerClass(_CLASSES.get(machine, machine))


def gateway_state() -> Path:
    """A gateway's state directory."""
    return _state("gateway")


def agent_state() -> Path:
    """An agent's state directory."""
    return _state("agent")


def _state(role: str) -> Path:
    """Where systemd says, else where the XDG base directories do."""
    if given := os.environ.get("STATE_DIRECTORY"):
        return Path(given.partition(":")[0])
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(home) / "synergai" / role


def dictionary_in(state: Path) -> Path:
    """The configuration dictionary of a gateway that keeps its state in `state`."""
    return state / "dictionary.db"


def default_dictionary() -> Path:
    """The dictionary that profiler, gateway and commands share until told otherwise."""
    return dictionary_in(gateway_state())
