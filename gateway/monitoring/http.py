"""``/metrics`` and ``/healthz`` over HTTP/1.1: one request per connection, all of it bounded."""

from __future__ import annotations

import asyncio
import contextlib
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, NamedTuple

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from synergai.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from prometheus_client import CollectorRegistry

_MAX_HEAD_BYTES: Final = 8192
_MAX_CONNECTIONS: Final = 64
_PATIENCE_S: Final = 5.0
_TEXT: Final = "text/plain; charset=utf-8"


class Answer(NamedTuple):
    """A response."""

    status: HTTPStatus
    body: bytes
    content_type: str = _TEXT


class HttpServer:
    """Serves what monitoring asks for.

    Args:
        registry: what ``/metrics`` shows; collected in a thread, beside the loop.
        ready: whether ``/healthz`` says that requests are served.
    """

    def __init__(self, registry: CollectorRegistry, ready: Callable[[], bool]) -> None:
        self._registry = registry
        self._ready = ready
        self._connections = 0
        self._server: asyncio.Server | None = None

    async def start(self, address: str) -> str:
        """Listen on ``host:port``; the address that it really is.

        Raises:
            Unavailable: the port is in use, or the host is not one of this machine.
        """
        host, _, port = address.rpartition(":")
        try:
            self._server = await asyncio.start_server(
                self._serve, host.strip("[]"), int(port), limit=_MAX_HEAD_BYTES
            )
        except OSError:
            raise Unavailable(
                f"cannot listen on {address}: the port is in use, or the address is not this "
                "machine's; choose another one"
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
                async with asyncio.timeout(_PATIENCE_S):
                    head = await reader.readuntil(b"\r\n\r\n")
                    writer.write(_serialised(await self._answer(head)))
                    await writer.drain()
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError, TimeoutError):
            pass  # whoever asked is gone, slow, or does not speak HTTP
        finally:
            self._connections -= 1
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _answer(self, head: bytes) -> Answer:
        method, _, rest = head.partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0]
        if method not in (b"GET", b"HEAD"):
            return Answer(HTTPStatus.METHOD_NOT_ALLOWED, b"only GET is offered here\n")
        match path:
            case b"/metrics":
                body = await asyncio.to_thread(generate_latest, self._registry)
                answer = Answer(HTTPStatus.OK, body, CONTENT_TYPE_LATEST)
            case b"/healthz" if self._ready():
                answer = Answer(HTTPStatus.OK, b"serving\n")
            case b"/healthz":
                answer = Answer(HTTPStatus.SERVICE_UNAVAILABLE, b"not serving\n")
            case _:
                answer = Answer(HTTPStatus.NOT_FOUND, b"there are /metrics and /healthz\n")
        return answer if method == b"GET" else answer._replace(body=b"")


def _serialised(answer: Answer) -> bytes:
    head = (
        f"HTTP/1.1 {answer.status.value} {answer.status.phrase}\r\n"
        f"Content-Type: {answer.content_type}\r\n"
        f"Content-Length: {len(answer.body)}\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode("ascii") + answer.body
