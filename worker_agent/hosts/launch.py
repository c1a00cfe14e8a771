"""Start of engine hosts: command line, inherited file descriptors, and the child process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

from synergai.errors import SynergaiError, Unavailable
from worker_agent.hosts.loads import LoadCrashed
from worker_agent.ipc import Arena
from worker_agent.power.files import format_cpus

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from synergai.domain import EngineName, Session
    from worker_agent.providers import ProviderChoice

_HOST: Final = sys.executable, "-m", "worker_agent.host.main"


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
        inherited = host_socket.fileno(), arena.fd, interrupt_reader
        socket_fd, arena_fd, interrupts = map(str, inherited)
        command = (
            *_HOST,
            *("--models", str(models), "--engine", session.engine),
            *("--variant", session.configuration.variant),
            *("--threads", str(session.configuration.threads)),
            *("--cores", format_cpus(cores), "--data-bytes", str(data_bytes)),
            *("--socket", socket_fd, "--arena", arena_fd, "--interrupts", interrupts),
            *(() if provider is None else ("--provider", provider.encode())),
            *("--parent", str(os.getpid()), "--spawned-at", repr(time.monotonic())),
        )
        return cls(agent_socket, host_socket, arena, interrupt_writer, inherited, command)

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


_EXIT_TIMEOUT_S: Final = 5.0
_LOG_CHUNK_BYTES: Final = 4096
# Sent by the kernel when memory is short, or to all processes of a service that ends: the engine
# may load another time.
_FROM_OUTSIDE: Final = (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP)

_log = logging.getLogger(__name__)


class Child:
    """A process that has been started. Created by `start`; it logs the engine's output.

    Attributes:
        kill_error: why it was killed, if a load fails for that reason.
    """

    def __init__(self, process: asyncio.subprocess.Process, engine: EngineName) -> None:
        self._process = process
        self._engine = engine
        self._kill_reason = ""
        self.kill_error: SynergaiError | None = None

    @classmethod
    async def start(cls, launch: Launch, engine: EngineName) -> Child:
        process = await asyncio.create_subprocess_exec(
            *launch.command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            pass_fds=launch.inherited_fds,
            # Ctrl-C in a terminal signals its process group; the agent stops its hosts.
            start_new_session=True,
        )
        return cls(process, engine)

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self, reason: str = "", error: SynergaiError | None = None) -> None:
        """Kill the process; `wait_exit` then returns the reason, and `load_error` the error."""
        self._kill_reason, self.kill_error = reason, error
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    def send_signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    async def wait_exit(self) -> str:
        """Wait until the process has exited, and describe how; kill it if that takes too long."""
        try:
            async with asyncio.timeout(_EXIT_TIMEOUT_S):
                code = await self._process.wait()
        except TimeoutError:
            self.kill()
            code = await self._process.wait()
        if self._kill_reason:
            return self._kill_reason
        if code >= 0:
            return f"exited with code {code}"
        return f"died by signal {-code}"

    def load_error(self, reason: str) -> SynergaiError:
        """Return why a load failed during which the process died."""
        ended = -(self._process.returncode or 0) in _FROM_OUTSIDE
        return self.kill_error or (Unavailable if ended else LoadCrashed)(reason)

    async def log_output(self) -> None:
        """Log the output of the runtime until the process closes it."""
        reader = cast("asyncio.StreamReader", self._process.stdout)
        while chunk := await reader.read(_LOG_CHUNK_BYTES):
            for line in chunk.decode(errors="replace").splitlines():
                _log.info("[%s] %s", self._engine, line)
