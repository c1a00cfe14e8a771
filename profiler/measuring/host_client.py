"""Synchronous client of one engine host, for measurements."""

from __future__ import annotations

import os
import subprocess
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from synergai.domain import Outcome
from synergai.errors import EngineUnusable, InternalError, Unavailable
from worker_agent.hosts.launch import Launch
from worker_agent.ipc import (
    INLINE_BYTES,
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
    from typing import Self

    from synergai.domain import Session
    from worker_agent.providers import ProviderChoice

_RECEIVE_BYTES: Final = 256 << 10
_EXIT_TIMEOUT_S: Final = 5.0


class HostClient:
    """Starts an engine host and runs one query or range at a time. Use it as a context manager."""

    def __init__(
        self,
        models: Path,
        session: Session,
        *,
        cores: Sequence[int] = (),
        provider: ProviderChoice | None = None,
        timeout: float = 300.0,
    ) -> None:
        self._decoder = Decoder()
        self._received: deque[Message] = deque()
        self._last_run_id = 0
        self._variant = session.configuration.variant
        with Launch.prepare(models, session, cores, provider=provider) as launch:
            self._process = subprocess.Popen(
                launch.command,
                stdin=subprocess.DEVNULL,
                pass_fds=launch.inherited_fds,
                start_new_session=True,  # Ctrl-C in a terminal signals its process group
            )
        self._socket, self._arena = launch.agent_socket, launch.arena
        os.close(launch.interrupt_writer)  # runs are never interrupted
        self._socket.settimeout(timeout)
        try:
            self.ready = self._wait_ready()
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    def query(self, request: bytes, *, inline_bytes: int = INLINE_BYTES) -> tuple[RunEnded, bytes]:
        """Run a serialised ``ModelInferRequest``; return its result and the serialised response."""
        self._last_run_id += 1
        content: bytes | ArenaRef = request
        if len(request) > inline_bytes:
            content = self._arena.put(request)
        self._send(RunQuery(self._last_run_id, content, variant=self._variant).encode())
        ended = self._wait_ended()
        response = ended.response
        data = self._arena.read(response) if isinstance(response, ArenaRef) else bytes(response)
        if isinstance(content, ArenaRef):
            self._arena.release(content.slot)
        return ended, data

    def run_samples(self, first: int, count: int = 1, batch: int = 1) -> RunEnded:
        """Run the queries [first, first + count) of the sample set, as a job does."""
        self._last_run_id += 1
        run = RunSamples(self._last_run_id, first, count, batch=batch, variant=self._variant)
        self._send(run.encode())
        ended = self._wait_ended()
        if ended.outcome is Outcome.FAILED:
            raise EngineUnusable(ended.detail)
        return ended

    def close(self) -> None:
        """Stop the host. Idempotent."""
        self._socket.close()
        try:
            self._process.wait(_EXIT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if not self._arena.closed:
            self._arena.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _wait_ready(self) -> Ready:
        match self._receive():
            case Ready() as ready:
                return ready
            case LoadFailed() as failed:
                raise failed.error()
            case other:
                raise InternalError(f"unexpected first message from an engine host: {other}")

    def _wait_ended(self) -> RunEnded:
        while True:
            match self._receive():
                case RunEnded() as ended:
                    return ended
                case RunProgress():
                    continue
                case other:
                    raise InternalError(f"unexpected message from an engine host: {other}")

    def _send(self, frame: bytes) -> None:
        # If the host has died, `_receive` raises Unavailable.
        with suppress(ConnectionError):
            self._socket.sendall(frame)

    def _receive(self) -> Message:
        while not self._received:
            try:
                data = self._socket.recv(_RECEIVE_BYTES)
            except TimeoutError:
                raise Unavailable(
                    f"no message from the engine host within {self._socket.gettimeout():g} s"
                ) from None
            except ConnectionError:
                data = b""
            if not data:
                raise Unavailable(f"the engine host died (exit code {self._process.wait()})")
            self._received.extend(self._decoder.feed(data))
        return self._received.popleft()
