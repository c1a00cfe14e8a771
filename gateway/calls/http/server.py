"""uvicorn in the gateway's event loop: start, and shutdown with the gateway."""

from __future__ import annotations

import asyncio
import socket
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Final

import uvicorn

from gateway.calls.http.connections import LimitedConnection
from synergai.errors import InvalidInput
from synergai.runtime.ports import bind
from synergai.runtime.tasks import TaskBag
from synergai.wire.tls import server_context

if TYPE_CHECKING:
    import ssl

    from gateway.calls.http.app import HttpApp
    from gateway.gateway_settings import GatewaySettings
    from synergai.wire.unread import UnreadResponses

_GRACE_S: Final = 1
"""Time that responses being sent get at shutdown."""
_KEEP_ALIVE_MARGIN_S: Final = 5
"""Time for which an idle connection stays open beyond what its client is told: a request that is
sent at the last moment is still answered."""
_BACKLOG: Final = 128


class _Server(uvicorn.Server):
    """uvicorn's server without its signal handlers: the gateway has its own."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to listen."""
        await super().startup(sockets)
        self.ready.set()

    def capture_signals(self) -> AbstractContextManager[None]:  # type: ignore[override]  # wider than uvicorn's generator
        """Leave the signals alone."""
        return nullcontext()


class HttpServer:
    """Serves an application over HTTP."""

    def __init__(self, app: HttpApp, unread: UnreadResponses, settings: GatewaySettings) -> None:
        self._app = app
        self._unread = unread
        self._keep_alive_s = int(settings.http_keep_alive_s)
        self._tls = _tls_context(settings)
        self._server: _Server | None = None
        self._tasks = TaskBag()

    async def start(self, address: str) -> str:
        """Listen on ``host:port`` and return the bound address."""
        host, _, _ = address.rpartition(":")
        sockets = await asyncio.to_thread(bind, address, _BACKLOG)
        for each in sockets:
            # Accepted sockets inherit it. asyncio itself sets it on those only whose protocol it
            # is told; without it, the second part of a response waits 40 ms for the client.
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        tls = self._tls
        config = uvicorn.Config(
            self._app,
            http=partial(LimitedConnection, self._unread),  # type: ignore[arg-type]  # called only
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            log_level="error",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            backlog=_BACKLOG,
            headers=[("keep-alive", f"timeout={self._keep_alive_s}")],
            timeout_keep_alive=self._keep_alive_s + _KEEP_ALIVE_MARGIN_S,
            timeout_graceful_shutdown=_GRACE_S,
            ssl_context_factory=None if tls is None else lambda _config, _default: tls,
        )
        self._server = server = _Server(config)
        serving = self._tasks.start(server.serve(sockets))
        started = self._tasks.start(server.ready.wait())
        await asyncio.wait([serving, started], return_when=asyncio.FIRST_COMPLETED)
        started.cancel()
        if serving.done():
            serving.result()
        return f"{host}:{sockets[0].getsockname()[1]}"

    async def close(self) -> None:
        """End outstanding requests and stop listening."""
        self._app.stop()
        if self._server is not None:
            self._server.should_exit = True
            await self._tasks.wait()


def _tls_context(settings: GatewaySettings) -> ssl.SSLContext | None:
    """Return the TLS context of the HTTP port; None if it is not encrypted."""
    if not settings.http_tls:
        return None
    if settings.tls_cert is None:
        raise InvalidInput("--http-tls needs --tls-cert and --tls-key")
    return server_context(settings.tls_cert, settings.tls_key, settings.tls_clients_ca)
