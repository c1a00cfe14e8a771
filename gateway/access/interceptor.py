"""Authentication and roles of all calls of a gRPC server."""

from __future__ import annotations

from abc import abstractmethod
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
    from gateway.access.certified_calls import CertifiedCalls
    from gateway.access.handlers import Handler
    from gateway.access.peer_certificate import PeerCertificate
    from gateway.access.revocation import RevocationLists

    Metadata: TypeAlias = tuple[tuple[str, str | bytes], ...]


class CheckingInterceptor(grpc.aio.ServerInterceptor):
    """Has the handlers of all calls check the call before they handle it.

    Certificates are known only once a call has begun.

    Args:
        certified: keeps track of the open calls with certificates; None if nothing does.
    """

    def __init__(self, certified: CertifiedCalls | None = None) -> None:
        self._certified = certified

    @abstractmethod
    async def check(self, method: str, context: rpc.Context) -> None:
        """Check a call that has begun.

        Raises:
            SynergaiError: it is refused.
        """

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        """Return the handler of a call, preceded by the check."""
        handler: Handler = await continuation(handler_call_details)
        return surrounded(handler, partial(self._checked, handler_call_details.method))

    @asynccontextmanager
    async def _checked(
        self, method: str, _request: object, context: rpc.Context
    ) -> AsyncGenerator[None, None]:
        try:
            await self.check(method, context)
        except SynergaiError as error:
            await rpc.abort(context, error)
        certificate = None
        if self._certified is not None:
            certificate = grpc_certificate(context.auth_context())
        if self._certified is None or certificate is None:
            yield
            return
        with self._certified.open(context.peer(), certificate.pem):
            yield


class RevocationInterceptor(CheckingInterceptor):
    """Refuses calls on connections with revoked certificates.

    Args:
        revocations: the revocation lists.
        certified: see `CheckingInterceptor`.
    """

    def __init__(
        self, revocations: RevocationLists, certified: CertifiedCalls | None = None
    ) -> None:
        super().__init__(certified)
        self._revocations = revocations

    async def check(self, _method: str, context: rpc.Context) -> None:
        """Check the connection's certificate."""
        certificate = grpc_certificate(context.auth_context())
        if certificate is not None:
            self._revocations.check(certificate.pem)


class AccessInterceptor(CheckingInterceptor):
    """Refuses calls whose caller may not make them, and binds the caller of the others.

    A call without the right token is refused before its request is read.

    Args:
        authenticator: finds the callers.
        certificates: whether the port requires client certificates.
        certified: see `CheckingInterceptor`.
    """

    def __init__(
        self,
        authenticator: Authenticator,
        *,
        certificates: bool,
        certified: CertifiedCalls | None = None,
    ) -> None:
        super().__init__(certified)
        self._authenticator = authenticator
        self._certificates = certificates

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        """Return the handler of a call, or one that refuses it."""
        if self._certificates:
            return await super().intercept_service(continuation, handler_call_details)
        details: Any = handler_call_details
        try:
            await self._admit(details.method, details.invocation_metadata, None)
        except SynergaiError as error:
            return _refusing(error)
        handler: Handler = await continuation(handler_call_details)
        return handler

    async def check(self, method: str, context: rpc.Context) -> None:
        """Check the token and the connection's certificate."""
        metadata: Any = context.invocation_metadata() or ()
        await self._admit(method, metadata, grpc_certificate(context.auth_context()))

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
