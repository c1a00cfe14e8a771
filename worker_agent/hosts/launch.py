"""Command line and inherited file descriptors of a new engine host."""

from __future__ import annotations

import os
import socket
import sys
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from worker_agent.cpu_affinity import format_cores
from worker_agent.ipc.arena import Arena

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from synergai.domain import Session
    from worker_agent.providers.choice import ProviderChoice


_PYTHON: Final = sys.executable, "-m"


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
    inherited_fds: tuple[int, int, int]
    command: tuple[str, ...] = ()

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
        launch = cls._open()
        arguments = launch.arguments(models, session, cores, data_bytes, provider)
        return replace(launch, command=(*_PYTHON, "worker_agent.host.main", *arguments))

    @classmethod
    def prepare_spare(cls) -> Launch:
        """Create the same for a host that gets its `arguments` later, through the socket."""
        launch = cls._open()
        arguments = str(launch.inherited_fds[0]), str(os.getpid())
        return replace(launch, command=(*_PYTHON, "worker_agent.host.spare", *arguments))

    @classmethod
    def _open(cls) -> Launch:
        agent_socket, host_socket = socket.socketpair()
        arena = Arena()
        interrupt_reader, interrupt_writer = os.pipe()
        os.set_blocking(interrupt_writer, False)
        inherited = host_socket.fileno(), arena.fd, interrupt_reader
        return cls(agent_socket, host_socket, arena, interrupt_writer, inherited)

    def arguments(
        self,
        models: Path,
        session: Session,
        cores: Sequence[int] = (),
        data_bytes: int = 0,
        provider: ProviderChoice | None = None,
    ) -> tuple[str, ...]:
        """Return the command-line arguments of the host."""
        host_socket, arena, interrupts = map(str, self.inherited_fds)
        return (
            *("--models", str(models), "--engine", session.engine),
            *("--variant", session.configuration.variant),
            *("--threads", str(session.configuration.threads)),
            *("--cores", format_cores(cores), "--data-bytes", str(data_bytes)),
            *("--socket", host_socket, "--arena", arena, "--interrupts", interrupts),
            *(() if provider is None else ("--provider", provider.encode())),
            *("--parent", str(os.getpid()), "--spawned-at", repr(time.monotonic())),
        )

    def __enter__(self) -> Launch:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        self.host_socket.close()
        os.close(self.inherited_fds[2])
        if error is not None:
            self.close()

    def close(self) -> None:
        """Close the ends of this process."""
        os.close(self.interrupt_writer)
        self.agent_socket.close()
        self.arena.close()
