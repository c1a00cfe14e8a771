"""Answers to the probes of Kubernetes: does the event loop turn, and is the process ready?

They have a port of their own for plain HTTP, because the kubelet has neither certificates nor
credentials.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, cast

from synergai.runtime.addresses import bind

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

_BACKLOG: Final = 16
_MAX_CONNECTIONS: Final = 64
_MAX_HEAD_BYTES: Final = 4096
_TIMEOUT_S: Final = 5.0


@asynccontextmanager
async def answering_probes(address: str | None, ready: Callable[[], bool]) -> AsyncIterator[None]:
    """Answer ``/livez`` and ``/readyz`` at an address, if any, as long as the context is open.

    ``/livez`` is always answered by 200, so that only a process that hangs fails it. ``/readyz`` is
    answered by 503 while `ready` is false.
    """
    loop = asyncio.get_running_loop()
    open_probes: set[_Probe] = set()
    sockets = [] if address is None else await asyncio.to_thread(bind, address, _BACKLOG)
    servers = [
        await loop.create_server(lambda: _Probe(ready, open_probes), sock=each) for each in sockets
    ]
    try:
        yield
    finally:
        for server in servers:
            server.close()
        for probe in tuple(open_probes):
            probe.close()


class _Probe(asyncio.Protocol):
    """A connection with one request."""

    _transport: asyncio.Transport
    _timeout: asyncio.TimerHandle

    def __init__(self, ready: Callable[[], bool], open_probes: set[_Probe]) -> None:
        self._ready = ready
        self._open_probes = open_probes
        self._head = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass
        self._timeout = asyncio.get_running_loop().call_later(_TIMEOUT_S, self.close)
        self._open_probes.add(self)
        if len(self._open_probes) > _MAX_CONNECTIONS:
            self.close()

    def data_received(self, data: bytes) -> None:
        self._head += data
        if b"\r\n\r\n" in self._head:
            self._transport.write(self._answer())
            self._transport.close()
        elif len(self._head) > _MAX_HEAD_BYTES:
            self.close()

    def connection_lost(self, _error: Exception | None) -> None:
        self._timeout.cancel()
        self._open_probes.discard(self)

    def close(self) -> None:
        """Close the connection at once."""
        self._transport.abort()

    def _answer(self) -> bytes:
        match self._head.split(b" ", 2)[1:2]:
            case [b"/livez"]:
                status, text = "200 OK", "alive\n"
            case [b"/readyz"] if self._ready():
                status, text = "200 OK", "ready\n"
            case [b"/readyz"]:
                status, text = "503 Service Unavailable", "not ready\n"
            case _:
                status, text = "404 Not Found", "ask for /livez or /readyz\n"
        return (
            f"HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {len(text)}\r\n"
            f"Connection: close\r\n\r\n{text}"
        ).encode()
