"""Authentication and roles of all calls of a gRPC server."""

from __future__ import annotations

from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import grpc

from gateway.access.authenticator import AUTHORIZATION
from gateway.access.caller import bind_caller
from gateway.access.handlers import surrounded
from gateway.access.methods import METHODS, check_call
from gateway.access.peer_certificate import grpc_certificate
from synergai.errors import SynergaiError
from synergai.protocol import rpc

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from gateway.access.authenticator import Authenticator
    from gateway.access.handlers import Handler
    from gateway.access.peer_certificate import PeerCertificate

    Metadata: TypeAlias = tuple[tuple[str, str | bytes], ...]


class AccessInterceptor(grpc.aio.ServerInterceptor):
    """Refuses calls whose caller may not make them, and binds the caller of the others.

    A call without the right token is refused before its request is read.

    Args:
        authenticator: finds the callers.
        certificates: whether the port requires client certificates.
    """

    def __init__(self, authenticator: Authenticator, *, certificates: bool) -> None:
        self._authenticator = authenticator
        self._certificates = certificates

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        """Return the handler of a call, or one that refuses it."""
        details: Any = handler_call_details
        if self._certificates:  # which are known only once a call has begun
            opened: Handler = await continuation(handler_call_details)
            return surrounded(opened, partial(self._checked, details.method))
        try:
            await self._admit(details.method, details.invocation_metadata, None)
        except SynergaiError as error:
            return _refusing(error)
        handler: Handler = await continuation(handler_call_details)
        return handler

    @asynccontextmanager
    async def _checked(
        self, method: str, _request: object, context: rpc.Context
    ) -> AsyncGenerator[None, None]:
        metadata: Any = context.invocation_metadata() or ()
        try:
            await self._admit(method, metadata, grpc_certificate(context.auth_context()))
        except SynergaiError as error:
            await rpc.abort(context, error)
        yield

    async def _admit(
        self, method: str, metadata: Metadata, certificate: PeerCertificate | None
    ) -> None:
        """Authenticate the caller of a call, check its role and bind it.

        Raises:
            SynergaiError: it may not make the call.
        """
        authorization = [str(value) for key, value in metadata if key == AUTHORIZATION]
        caller = await self._authenticator.authenticate(authorization, certificate)
        bind_caller(caller)  # first: the audit log of a refusal has the caller
        check_call(METHODS.get(method), caller)


def _refusing(error: SynergaiError) -> Handler:
    """Return a handler, suitable for any kind of call, that refuses it without reading it."""

    async def refuse(_requests: object, context: rpc.Context) -> NoReturn:
        await rpc.abort(context, error)

    return grpc.stream_stream_rpc_method_handler(refuse)
