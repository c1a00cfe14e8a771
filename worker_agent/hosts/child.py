"""The child process of an engine host: its output, signals to it, and how it ended.

A spare host is one that starts before its engine is known.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import signal
from typing import TYPE_CHECKING, Final, cast

from synergai.domain import EngineName
from synergai.errors import Unavailable
from worker_agent.hosts.launch import Launch
from worker_agent.hosts.loads import LoadCrashed

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from synergai.domain import Session
    from synergai.errors import SynergaiError


_EXIT_TIMEOUT_S: Final = 5.0
_LOG_CHUNK_BYTES: Final = 4096
# Sent by the kernel when memory is short, or to all processes of a service that ends: the engine
# may load another time.
_FROM_OUTSIDE: Final = (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP)

_log = logging.getLogger(__name__)


class Child:
    """A process that has been started. Created by `start`.

    Attributes:
        engine: whose output it logs.
    """

    def __init__(self, process: asyncio.subprocess.Process, engine: EngineName) -> None:
        self._process = process
        self.engine = engine
        self._kill_reason = ""
        self._kill_error: SynergaiError | None = None

    @classmethod
    async def start(cls, launch: Launch, engine: EngineName) -> Child:
        """Start the process."""
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
        """Process id."""
        return self._process.pid

    def kill(self, reason: str = "", error: SynergaiError | None = None) -> None:
        """Kill the process; `wait_exit` then returns the reason, and `load_error` the error."""
        self._kill_reason, self._kill_error = reason, error
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal, if the process has not exited."""
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
        return self._kill_error or (Unavailable if ended else LoadCrashed)(reason)

    async def log_output(self) -> None:
        """Log the output of the runtime until the process closes it."""
        reader = cast("asyncio.StreamReader", self._process.stdout)
        while chunk := await reader.read(_LOG_CHUNK_BYTES):
            for line in chunk.decode(errors="replace").splitlines():
                _log.info("[%s] %s", self.engine, line)


class SpareHost:
    """A host without an engine. Created by `start`."""

    def __init__(self, launch: Launch, child: Child) -> None:
        self._launch = launch
        self._child = child

    @classmethod
    async def start(cls) -> SpareHost:
        """Start the process, which is ready a quarter of a second later."""
        with Launch.prepare_spare() as launch:
            return cls(launch, await Child.start(launch, EngineName("")))

    def become(
        self, models: Path, session: Session, cores: Sequence[int], data_bytes: int
    ) -> tuple[Launch, Child]:
        """Let it load an engine; it is that of a `HostProcess` then.

        Raises:
            OSError: it has exited.
        """
        arguments = self._launch.arguments(models, session, cores, data_bytes)
        try:
            self._launch.agent_socket.sendall(json.dumps(arguments).encode() + b"\n")
        except OSError:
            self._launch.close()
            raise
        self._child.engine = session.engine
        return self._launch, self._child

    @property
    def pid(self) -> int:
        """Process id of the host."""
        return self._child.pid

    async def close(self) -> None:
        """End it."""
        self._launch.close()
        self._child.kill()
        await self._child.wait_exit()
