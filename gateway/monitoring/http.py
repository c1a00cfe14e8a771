"""Minimal HTTP/1.1 server for ``/metrics`` and ``/healthz``: one request per connection."""

from __future__ import annotations

import asyncio
import contextlib
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, NamedTuple

from prometheus_client import CONTENT_TYPE_LATEST

from synergai.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

_MAX_HEAD_BYTES: Final = 8192
_MAX_CONNECTIONS: Final = 64
_TIMEOUT_S: Final = 5.0
_TEXT: Final = "text/plain; charset=utf-8"


class Response(NamedTuple):
    """An HTTP response."""

    status: HTTPStatus
    body: bytes
    content_type: str = _TEXT


class HttpServer:
    """Serves metrics and health checks.

    Args:
        metrics: returns the metrics in Prometheus' text format.
        ready: returns whether the gateway accepts requests, for ``/healthz``.
    """

    def __init__(self, metrics: Callable[[], Awaitable[bytes]], ready: Callable[[], bool]) -> None:
        self._metrics = metrics
        self._ready = ready
        self._connections = 0
        self._server: asyncio.Server | None = None

    async def start(self, address: str) -> str:
        """Listen on ``host:port`` and return the bound address.

        Raises:
            Unavailable: the port is in use, or the host is not an address of this machine.
        """
        host, _, port = address.rpartition(":")
        try:
            self._server = await asyncio.start_server(
                self._serve, host.strip("[]"), int(port), limit=_MAX_HEAD_BYTES
            )
        except OSError:
            raise Unavailable(
                f"cannot listen on {address}: the port is in use, or the host is not an address "
                "of this machine; choose another one"
            ) from None
        return f"{host}:{self._server.sockets[0].getsockname()[1]}"

    async def close(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        try:
            if self._connections <= _MAX_CONNECTIONS:
                async with asyncio.timeout(_TIMEOUT_S):
                    head = await reader.readuntil(b"\r\n\r\n")
                    writer.write(_serialise(await self._respond(head)))
                    await writer.drain()
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError, TimeoutError):
            pass  # the client disconnected, is slow, or does not speak HTTP
        finally:
            self._connections -= 1
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _respond(self, head: bytes) -> Response:
        method, _, rest = head.partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0]
        if method not in (b"GET", b"HEAD"):
            return Response(HTTPStatus.METHOD_NOT_ALLOWED, b"only GET is supported\n")
        match path:
            case b"/metrics":
                response = Response(HTTPStatus.OK, await self._metrics(), CONTENT_TYPE_LATEST)
            case b"/healthz" if self._ready():
                response = Response(HTTPStatus.OK, b"serving\n")
            case b"/healthz":
                response = Response(HTTPStatus.SERVICE_UNAVAILABLE, b"not serving\n")
            case _:
                response = Response(HTTPStatus.NOT_FOUND, b"not found; try /metrics or /healthz\n")
        return response if method == b"GET" else response._replace(body=b"")


def _serialise(response: Response) -> bytes:
    head = (
        f"HTTP/1.1 {response.status.value} {response.status.phrase}\r\n"
        f"Content-Type: {response.content_type}\r\n"
        f"Content-Length: {len(response.body)}\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode("ascii") + response.body
