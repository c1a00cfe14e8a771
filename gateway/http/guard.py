"""Authentication, roles and quotas of all HTTP requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from starlette.datastructures import Headers
from starlette.routing import Route

from gateway.access.authenticator import AUTHORIZATION
from gateway.access.caller import bind_caller, current_caller
from gateway.access.methods import KNOWN, ROUTES, check_call

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.routing import BaseRoute
    from starlette.types import ASGIApp, Receive, Scope, Send

    from gateway.access.authenticator import Authenticator
    from gateway.access.methods import Needs
    from gateway.admission.quotas import TenantQuotas

CERTIFICATE: Final = "certificate"
"""Key of the request's state: the verified certificate of the connection, or None."""


class AccessMiddleware:
    """Refuses requests whose caller may not send them, and binds the caller of the others.

    Args:
        app: handles the requests.
        needs: what a request needs; None refuses all.
        authenticator: finds the callers.
    """

    def __init__(self, app: ASGIApp, needs: Needs | None, authenticator: Authenticator) -> None:
        self._app = app
        self._needs = needs
        self._authenticator = authenticator

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        authorization = Headers(scope=scope).getlist(AUTHORIZATION)
        certificate = scope.get("state", {}).get(CERTIFICATE)
        caller = await self._authenticator.authenticate(authorization, certificate)
        bind_caller(caller)  # first: the audit log of a refusal has the caller
        check_call(self._needs, caller)
        await self._app(scope, receive, send)


class QuotaMiddleware:
    """Counts requests and connections for the tenants of their callers.

    Args:
        app: handles the requests.
        quotas: counts them.
    """

    def __init__(self, app: ASGIApp, quotas: TenantQuotas) -> None:
        self._app = app
        self._quotas = quotas

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        with self._quotas.call(current_caller().tenant, peer_of(scope)):
            await self._app(scope, receive, send)


def peer_of(scope: Scope) -> str:
    """Return the address of a request's client, ``http:HOST:PORT``."""
    host, port = scope.get("client") or ("", 0)
    return f"http:{host}:{port}"


def guard(routes: Sequence[BaseRoute], authenticator: Authenticator, quotas: TenantQuotas) -> None:
    """Put the middlewares before the handlers of all routes, before a request's body is read.

    Requests that everyone may send do not count towards quotas.
    """
    for route in routes:
        if not isinstance(route, Route):
            raise TypeError(f"{route} cannot be guarded")
        if not ROUTES.get(route.path, KNOWN).public:
            route.app = QuotaMiddleware(route.app, quotas)
        route.app = AccessMiddleware(route.app, ROUTES.get(route.path), authenticator)
