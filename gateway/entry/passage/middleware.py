"""The guard of HTTP requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from starlette.datastructures import Headers
from starlette.routing import Route

from gateway.entry.access.authenticator import AUTHORIZATION
from gateway.entry.access.methods import ROUTES
from gateway.entry.access.peer_certificate import peer_certificate
from synergai.errors import SynergaiError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.routing import BaseRoute
    from starlette.types import ASGIApp, Receive, Scope, Send

    from gateway.entry.passage.call_guard import CallGuard
    from synergai.wire.peer import SocketPeer

PEER: Final = "peer"
"""Key of the request's state: the connection's `SocketPeer`."""
_CHANGES: Final = frozenset(
    {"/v2/repository/models/{name}/load", "/v2/repository/models/{name}/unload"}
)
"""Routes that change something."""


class CallGuardMiddleware:
    """Lets requests pass to their handler before their bodies are read."""

    def __init__(self, app: ASGIApp, route: str, call_guard: CallGuard) -> None:
        self._app = app
        self._route = route
        self._permission = ROUTES.get(route)
        self._call_guard = call_guard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        peer = peer_address(scope)
        call = self._call_guard.audit(f"{scope['method']} {self._route}", peer)
        if call is not None:
            call.object = scope.get("path_params", {}).get("name", "")
        change = self._route in _CHANGES
        try:
            authorization = Headers(scope=scope).getlist(AUTHORIZATION)
            certificate = peer_certificate(peer_of(scope).certificate)
            await self._call_guard.admit(self._permission, authorization, certificate)
            with self._call_guard.count(self._permission, peer):
                await self._app(scope, receive, send)
        except SynergaiError as error:
            if call is not None:
                call.fail(error, change=change)
            raise
        if call is not None and change:
            call.end()


def peer_of(scope: Scope) -> SocketPeer:
    """Return the client of a request."""
    peer: SocketPeer = scope["state"][PEER]
    return peer


def peer_address(scope: Scope) -> str:
    """Return the address of a request's client, ``http:HOST:PORT``."""
    host, port = scope.get("client") or ("", 0)
    return f"http:{host}:{port}"


def guard(routes: Sequence[BaseRoute], call_guard: CallGuard) -> None:
    """Put the guard before the handlers of all routes."""
    for route in routes:
        if not isinstance(route, Route):
            raise TypeError(f"{route} cannot be guarded")
        route.app = CallGuardMiddleware(route.app, route.path, call_guard)
