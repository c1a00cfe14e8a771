"""Command line and inherited file descriptors of a new engine host."""

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

    from synergai.domain import Session
    from worker_agent.providers.choice import ProviderChoice


@dataclass(frozen=True, slots=True)
class Launch:
    """Resources of an engine host that is about to be started.

    Use it as a context manager around starting the process. On exit it closes the host's ends in
    this process, so that each side sees the other disconnect; `agent_socket`, `arena` and
    `interrupt_writer` stay open unless an exception was raised.
    """

    agent_socket: socket.socket
    host_socket: socket.socket
    arena: Arena
    interrupt_writer: int
    interrupt_reader: int
    command: tuple[str, ...]

    @classmethod
    def prepare(
        cls,
        models: Path,
        session: Session,
        cores: Sequence[int] = (),
        data_bytes: int = 0,
        provider: ProviderChoice | None = None,
    ) -> Launch:
        """Create the socket pair, arena and interrupt pipe for a host."""
        agent_socket, host_socket = socket.socketpair()
        arena = Arena()
        interrupt_reader, interrupt_writer = os.pipe()
        os.set_blocking(interrupt_writer, False)
        command = (
            sys.executable,
            "-m",
            "worker_agent.host.main",
            *("--models", str(models), "--engine", session.engine),
            *("--variant", session.configuration.variant),
            *("--threads", str(session.configuration.threads)),
            *("--cores", format_cores(cores), "--data-bytes", str(data_bytes)),
            *("--socket", str(host_socket.fileno()), "--arena", str(arena.fd)),
            *("--interrupts", str(interrupt_reader)),
            *(() if provider is None else ("--provider", provider.encode())),
            *("--parent", str(os.getpid()), "--spawned-at", repr(time.monotonic())),
        )
        return cls(agent_socket, host_socket, arena, interrupt_writer, interrupt_reader, command)

    @property
    def inherited_fds(self) -> tuple[int, int, int]:
        """File descriptors to pass to the host."""
        return self.host_socket.fileno(), self.arena.fd, self.interrupt_reader

    def __enter__(self) -> Launch:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        self.host_socket.close()
        os.close(self.interrupt_reader)
        if error is not None:
            os.close(self.interrupt_writer)
            self.agent_socket.close()
            self.arena.close()
