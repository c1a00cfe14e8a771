"""The audit log of the HTTP port."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from starlette.routing import Route

from gateway.audit.calls import AuditedCall, bind_call
from gateway.http.guard import peer_of
from synergai.errors import SynergaiError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.routing import BaseRoute
    from starlette.types import ASGIApp, Receive, Scope, Send

    from gateway.audit.log import AuditLog

_CHANGES: Final = frozenset(
    {"/v2/repository/models/{name}/load", "/v2/repository/models/{name}/unload"}
)
"""Routes that change something."""


class AuditMiddleware:
    """Records requests that change something, and those that are refused.

    Args:
        app: handles the requests.
        route: path of their route.
        audit: the log.
    """

    def __init__(self, app: ASGIApp, route: str, audit: AuditLog) -> None:
        self._app = app
        self._route = route
        self._audit = audit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        call = AuditedCall(self._audit, f"{scope['method']} {self._route}", peer_of(scope))
        call.object = scope.get("path_params", {}).get("name", "")
        bind_call(call)
        change = self._route in _CHANGES
        try:
            await self._app(scope, receive, send)
        except SynergaiError as error:
            call.fail(error, change=change)
            raise
        if change:
            call.end()


def audit_routes(routes: Sequence[BaseRoute], audit: AuditLog) -> None:
    """Put the middleware before the handlers of all routes, and before those that guard them."""
    for route in routes:
        if isinstance(route, Route):
            route.app = AuditMiddleware(route.app, route.path, audit)
