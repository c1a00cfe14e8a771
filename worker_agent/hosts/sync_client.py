"""An engine host driven synchronously, for measuring: what the profiler and benchmarks use."""

from __future__ import annotations

import os
import subprocess
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from synergai.domain import Outcome
from synergai.errors import EngineUnusable, InternalError, Unavailable
from worker_agent.hosts.launch import Launch
from worker_agent.ipc.arena import INLINE_BYTES
from worker_agent.ipc.frames import (
    ArenaRef,
    Decoder,
    LoadFailed,
    Message,
    Ready,
    RunEnded,
    RunProgress,
    RunQuery,
    RunSamples,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from types import TracebackType
    from typing import Self

    from synergai.domain import Session

_RECEIVE_BYTES: Final = 256 << 10
_LEAVE_S: Final = 5.0


class HostClient:
    """One engine host and its only user. Use it as a context manager.

    Args:
        models: the model directory.
        session: engine and configuration.
        cores: those that the host is kept to; all if empty.
        timeout: how long the host may be silent, in seconds.

    Raises:
        EngineUnusable: on construction, if the engine cannot be loaded.
        Unavailable: here and below, if the host died or is silent for too long.
    """

    def __init__(
        self,
        models: Path,
        session: Session,
        *,
        cores: Sequence[int] = (),
        timeout: float = 300.0,
    ) -> None:
        self._decoder = Decoder()
        self._received: deque[Message] = deque()
        self._runs = 0
        with Launch.of(models, session, cores) as launch:
            self._process = subprocess.Popen(
                launch.command, stdin=subprocess.DEVNULL, pass_fds=launch.inherited
            )
        self._connection, self._arena = launch.connection, launch.arena
        os.close(launch.interrupts)  # a lone user waits for what it asked for
        self._connection.settimeout(timeout)
        try:
            self.ready = self._wait_ready()
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """Process id of the host."""
        return self._process.pid

    def query(self, request: bytes, *, inline_bytes: int = INLINE_BYTES) -> tuple[RunEnded, bytes]:
        """Run a serialised ``ModelInferRequest``; return how it ended, and the response."""
        self._runs += 1
        content: bytes | ArenaRef = request
        if len(request) > inline_bytes:
            content = self._arena.put(request)
        self._send(RunQuery(self._runs, content).encode())
        ended = self._wait_ended()
        response = ended.response
        data = self._arena.read(response) if isinstance(response, ArenaRef) else bytes(response)
        if isinstance(content, ArenaRef):
            self._arena.release(content.slot)
        return ended, data

    def run_samples(self, first: int, count: int = 1, batch: int = 1) -> RunEnded:
        """Run the queries [first, first + count) of the sample set, as a job would.

        Of an engine that allows of it, `batch` of them are computed at once.

        Raises:
            EngineUnusable: the engine failed.
        """
        self._runs += 1
        self._send(RunSamples(self._runs, first, count, batch=batch).encode())
        ended = self._wait_ended()
        if ended.outcome is Outcome.FAILED:
            raise EngineUnusable(ended.detail)
        return ended

    def close(self) -> None:
        """End the host. Harmless when it is over already."""
        self._connection.close()
        try:
            self._process.wait(_LEAVE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if not self._arena.closed:
            self._arena.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _wait_ready(self) -> Ready:
        match self._receive():
            case Ready() as ready:
                return ready
            case LoadFailed(reason):
                raise EngineUnusable(reason)
            case other:
                raise InternalError(f"an engine host began with {other}")

    def _wait_ended(self) -> RunEnded:
        while True:
            match self._receive():
                case RunEnded() as ended:
                    return ended
                case RunProgress():
                    continue
                case other:
                    raise InternalError(f"an engine host answered with {other}")

    def _send(self, frame: bytes) -> None:
        # A host that has died is noticed, and reported, by whoever waits for its answer.
        with suppress(ConnectionError):
            self._connection.sendall(frame)

    def _receive(self) -> Message:
        while not self._received:
            try:
                data = self._connection.recv(_RECEIVE_BYTES)
            except TimeoutError:
                raise Unavailable("the engine host has been silent for too long") from None
            except ConnectionError:
                data = b""
            if not data:
                raise Unavailable(f"the engine host died (exit code {self._process.wait()})")
            self._received.extend(self._decoder.feed(data))
        return self._received.popleft()
