"""Authentication, permission, quotas and audit of calls, over gRPC and HTTP."""

from __future__ import annotations

from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    aclosing,
    asynccontextmanager,
    contextmanager,
    nullcontext,
)
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from starlette.datastructures import Headers
from starlette.routing import BaseRoute, Route

from gateway.entry.access.authenticator import (
    AUTHORIZATION,
    Authenticator,
    PeerCertificate,
    peer_certificate,
)
from gateway.entry.access.caller import bind_caller, current_caller
from gateway.entry.access.methods import METHODS, ROUTES, Permission, check_call
from gateway.entry.audit import AuditedCall, AuditLog, GrpcRecord, bind_call
from synergai.errors import SynergaiError
from synergai.wire import rpc
from synergai.wire.server_call import ServerCall, SocketPeer, behaviour_of, with_behaviour

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterator, Sequence

    import grpc
    from starlette.types import ASGIApp, Receive, Scope, Send

    from gateway.entry.admission import Admission

    Handler: TypeAlias = grpc.RpcMethodHandler[Any, Any]
    Around: TypeAlias = Callable[
        [Any, ServerCall], AbstractAsyncContextManager[Callable[[Any], None] | None]
    ]
    """Called with request and context; the value of its context, if any, with each response."""

PEER: Final = "peer"
"""Key of the request's state: the connection's `SocketPeer`."""
_CHANGES: Final = frozenset(
    {"/v2/repository/models/{name}/load", "/v2/repository/models/{name}/unload"}
)
"""Routes that change something."""


class CallGuard:
    """What each call passes before its handler: `audit`, `admit` and `count`, in this order."""

    def __init__(
        self, authenticator: Authenticator | None, admission: Admission, log: AuditLog | None
    ) -> None:
        self._authenticator = authenticator
        self._admission = admission
        self._log = log

    @property
    def is_needed(self) -> bool:
        """Whether calls have anything to pass."""
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

    def count(
        self, permission: Permission | None, peer: str, *, stream: bool = False
    ) -> AbstractContextManager[None]:
        """Return a context in which the call of the bound caller counts, unless it is public."""
        if self._authenticator is None or (permission is not None and permission.public):
            return nullcontext()
        return self._admission.call(current_caller().tenant, peer, stream=stream)


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
        if handler is None:
            return None
        stream = bool(handler.request_streaming)
        count = partial(self._call_guard.count, permission, peer.address, stream=stream)
        return _surrounded(handler, partial(_counted, call, count))


@asynccontextmanager
async def _counted(
    call: AuditedCall | None,
    count: Callable[[], AbstractContextManager[None]],
    request: object,
    context: ServerCall,
) -> AsyncGenerator[Callable[[Any], None] | None, None]:
    record = None if call is None else GrpcRecord(call, request)
    with _recording(record):
        try:
            with count():
                yield None if record is None else record.on_response
        except SynergaiError as error:
            await rpc.abort(context, error)


@contextmanager
def _recording(record: GrpcRecord | None) -> Iterator[None]:
    """Record what ends a call."""
    try:
        yield
    except BaseException as error:
        if record is not None:
            record.on_failure(error)
        raise


def _surrounded(handler: Handler, around: Around) -> Handler:
    """Return a handler that handles calls with `handler` inside the context of `around`."""
    inner = behaviour_of(handler)

    async def surrounded(request: Any, context: ServerCall) -> Any:
        async with around(request, context) as responded:
            responses = inner(request, context)
            if not hasattr(responses, "__aiter__"):
                response = await responses
                if responded is not None:
                    responded(response)
                return response
            async with aclosing(responses):
                async for response in responses:
                    if responded is not None:
                        responded(response)
                    await context.write(response)
                    del response
            return None

    return with_behaviour(handler, surrounded)


class CallGuardMiddleware:
    """Lets HTTP requests pass to their handler before their bodies are read."""

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
