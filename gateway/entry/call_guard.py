"""Authentication, permission and audit of calls, over gRPC and HTTP."""

from __future__ import annotations

from contextlib import aclosing, contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from starlette.datastructures import Headers
from starlette.routing import BaseRoute, Route

from gateway.entry.access.authenticator import (
    AUTHORIZATION,
    Authenticator,
    PeerCertificate,
    peer_certificate,
)
from gateway.entry.access.caller import bind_caller
from gateway.entry.access.methods import METHODS, ROUTES, Permission, check_call
from gateway.entry.audit import AuditedCall, AuditLog, GrpcRecord, bind_call
from synergai.errors import SynergaiError
from synergai.wire import rpc
from synergai.wire.server_call import ServerCall, SocketPeer, with_behaviour

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import grpc
    from starlette.types import ASGIApp, Receive, Scope, Send

    Handler: TypeAlias = grpc.RpcMethodHandler[Any, Any]

PEER: Final = "peer"
"""Key of the request's state: the connection's `SocketPeer`."""
_CHANGES: Final = frozenset(
    {"/v2/repository/models/{name}/load", "/v2/repository/models/{name}/unload"}
)
"""Routes that change something."""


class CallGuard:
    """What each call passes before its handler: `audit` and `admit`, in this order."""

    def __init__(self, authenticator: Authenticator | None, log: AuditLog | None) -> None:
        self._authenticator = authenticator
        self._log = log

    @property
    def is_needed(self) -> bool:
        return self._authenticator is not None or self._log is not None

    def audit(self, name: str, peer: str) -> AuditedCall | None:
        """Return the current task's call for the audit log; None without one."""
        if self._log is None:
            return None
        call = AuditedCall(self._log, name, peer)
        bind_call(call)
        return call

    async def admit(
        self,
        permission: Permission | None,
        authorization: Sequence[str],
        certificate: PeerCertificate | None,
    ) -> None:
        """Authenticate the caller, bind it to the current task and check that it may call."""
        if self._authenticator is not None:
            caller = await self._authenticator.authenticate(authorization, certificate)
            bind_caller(caller)  # first: the audit log of a refusal has the caller
            check_call(permission, caller)


class CallGuardInterceptor:
    """Lets gRPC calls pass to their handlers.

    Others end before their requests are read; unary ones of grpcio, after that.
    """

    def __init__(self, call_guard: CallGuard) -> None:
        self._call_guard = call_guard

    async def __call__(
        self, context: ServerCall, method: str, handler: Handler | None
    ) -> Handler | None:
        """Return the handler of a call with the guard before it."""
        peer = context.peer
        call = self._call_guard.audit(method, peer.address)
        metadata = context.invocation_metadata()
        authorization = [str(value) for key, value in metadata if key == AUTHORIZATION]
        permission = METHODS.get(method)
        try:
            certificate = peer_certificate(peer.certificate)
            await self._call_guard.admit(permission, authorization, certificate)
        except SynergaiError as error:
            with _recording(None if call is None else GrpcRecord(call, None)):
                await rpc.abort(context, error)
        return handler if handler is None or call is None else _recorded(handler, call)


@contextmanager
def _recording(record: GrpcRecord | None) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        if record is not None:
            record.on_failure(error)
        raise


def _recorded(handler: Handler, call: AuditedCall) -> Handler:
    """Return a handler that handles a call like `handler`, and records it in the audit log."""
    inner = rpc.behaviour_of(handler)

    async def recorded(request: Any, context: ServerCall) -> Any:
        record = GrpcRecord(call, request)
        with _recording(record):
            responses = inner(request, context)
            if not hasattr(responses, "__aiter__"):
                response = await responses
                record.on_response(response)
                return response
            async with aclosing(responses):
                async for response in responses:
                    record.on_response(response)
                    await context.write(response)
                    del response
        return None

    return with_behaviour(handler, recorded)


class CallGuardMiddleware:
    """Lets HTTP requests pass to their handler before their bodies are read."""

    def __init__(self, app: ASGIApp, route: str, call_guard: CallGuard) -> None:
        self._app = app
        self._route = route
        self._permission = ROUTES.get(route)
        self._call_guard = call_guard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        peer = peer_address(scope)
        call = self._call_guard.audit(f"{scope['method']} {self._route}", peer)
        if call is not None:
            call.object = scope.get("path_params", {}).get("name", "")
        change = self._route in _CHANGES
        try:
            authorization = Headers(scope=scope).getlist(AUTHORIZATION)
            certificate = peer_certificate(peer_of(scope).certificate)
            await self._call_guard.admit(self._permission, authorization, certificate)
            await self._app(scope, receive, send)
        except SynergaiError as error:
            if call is not None:
                call.fail(error, change=change)
            raise
        if call is not None and change:
            call.end()


def peer_of(scope: Scope) -> SocketPeer:
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
