"""How an engine host is started: the command, and what it inherits."""

from __future__ import annotations

import os
import socket
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from worker_agent.cpu_affinity import format_cores
from worker_agent.ipc.arena import Arena

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from types import TracebackType

    from synergai.domain import Session


@dataclass(frozen=True, slots=True)
class Launch:
    """A host about to be started.

    A context manager: leaving it closes the host's end of the socket here, so that each side
    sees the other go. What remains is `connection`, `arena` and `interrupts`.

    Attributes:
        connection: this side of the socket.
        theirs: the host's side.
        arena: memory shared with the host.
        interrupts: descriptor on which the host is told of runs to give up, see
            ``worker_agent.host.interrupts``.
        their_interrupts: the host's side of it.
        command: what to execute, with `inherited` descriptors.
    """

    connection: socket.socket
    theirs: socket.socket
    arena: Arena
    interrupts: int
    their_interrupts: int
    command: tuple[str, ...]

    @classmethod
    def of(cls, models: Path, session: Session, cores: Sequence[int] = ()) -> Launch:
        """Prepare a host.

        Args:
            models: the model directory.
            session: engine and configuration.
            cores: those that it is kept to; all if empty.
        """
        connection, theirs = socket.socketpair()
        arena = Arena()
        their_interrupts, interrupts = os.pipe()
        os.set_blocking(interrupts, False)
        command = (
            sys.executable,
            "-m",
            "worker_agent.host.main",
            *("--models", str(models), "--engine", session.engine),
            *("--threads", str(session.configuration.threads)),
            *("--cores", format_cores(cores)),
            *("--socket", str(theirs.fileno()), "--arena", str(arena.fd)),
            *("--interrupts", str(their_interrupts)),
            *("--parent", str(os.getpid()), "--spawned-at", repr(time.monotonic())),
        )
        return cls(connection, theirs, arena, interrupts, their_interrupts, command)

    @property
    def inherited(self) -> tuple[int, int, int]:
        """Descriptors to pass on."""
        return self.theirs.fileno(), self.arena.fd, self.their_interrupts

    def __enter__(self) -> Launch:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self.theirs.close()
        os.close(self.their_interrupts)
        if error is not None:
            os.close(self.interrupts)
            self.connection.close()
            self.arena.close()
