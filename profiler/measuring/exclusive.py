"""One profiler per worker at a time, and none while the worker serves."""

from __future__ import annotations

import hashlib
import socket
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from synergai.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from synergai.domain import WorkerClass

_PROC: Final = Path("/proc")
_HOST: Final = b"worker_agent.host.main"
"""Module of an engine host; an agent has one per engine in service."""
_MEASURING: Final = b"profiler.measuring.measuring_process"
"""Module whose engine host is measured."""


@contextmanager
def only_profiler(worker_class: WorkerClass, root: Path) -> Iterator[None]:
    """Be the only profiler of a worker class on this machine for as long as the block runs.

    The kernel ends the claim together with the process, however that ends.
    """
    key = hashlib.sha256(f"{worker_class}\0{root.resolve()}".encode()).hexdigest()[:16]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as claim:
        try:
            # The name is in no file system, so nothing can be left over.
            claim.bind(f"\0synergai-profile-{key}")
        except OSError as error:
            raise Unavailable(
                f"another profiler is measuring {worker_class} on this machine; wait for its end: "
                "they would disturb each other"
            ) from error
        yield


def engines_in_service(proc: Path = _PROC) -> list[int]:
    """Return the process ids of this machine's engine hosts, except profilers' ones."""
    found = []
    for path in proc.glob("[0-9]*/cmdline"):
        pid = path.parent
        if _HOST in _arguments(pid) and _MEASURING not in _arguments(proc / _parent(pid)):
            found.append(int(pid.name))
    return sorted(found)


def _arguments(process: Path) -> list[bytes]:
    """Return the command line of a process; empty if it has ended."""
    try:
        return (process / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


def _parent(process: Path) -> str:
    """Return the id of a process's parent; 0, which no process has, if it has ended."""
    try:
        return (process / "stat").read_text().rpartition(")")[2].split()[1]
    except OSError:
        return "0"


def check_not_serving(proc: Path = _PROC) -> None:
    """Check that no engine is in service on this machine."""
    if pids := engines_in_service(proc):
        others = f" and {len(pids) - 1} more" if len(pids) > 1 else ""
        raise Unavailable(
            f"a worker on this machine has engines in service (process {pids[0]}{others}); stop "
            "'synergai serve' or the agent first, or measure nevertheless with --while-serving"
        )
