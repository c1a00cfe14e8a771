"""The passage of gRPC calls."""

from __future__ import annotations

from contextlib import aclosing, asynccontextmanager
from functools import partial
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import grpc

from gateway.access.authenticator import AUTHORIZATION
from gateway.access.methods import METHODS
from gateway.access.peer_certificate import peer_certificate
from gateway.audit.grpc_calls import GrpcRecord
from synergai.errors import SynergaiError
from synergai.protocol import rpc

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
    from contextlib import AbstractAsyncContextManager

    from gateway.access.peer_certificate import PeerCertificate
    from gateway.passage.passage import Passage

    Handler: TypeAlias = grpc.RpcMethodHandler[Any, Any]
    Metadata: TypeAlias = tuple[tuple[str, str | bytes], ...]
    Around: TypeAlias = Callable[
        [Any, rpc.Context], AbstractAsyncContextManager[Callable[[Any], None] | None]
    ]
    """Called with request and context; the value of its context, if any, with each response."""


class PassageInterceptor(grpc.aio.ServerInterceptor):
    """Lets calls pass to their handler.

    A call without the right token is refused before its request is read.

    Args:
        certificates: whether the port requires client certificates, which are known only once a
            call has begun.
    """

    def __init__(self, passage: Passage, *, certificates: bool = False) -> None:
        self._passage = passage
        self._certificates = certificates

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        """Return the handler of a call with the passage before it."""
        details: Any = handler_call_details
        method: str = details.method
        refusal = None
        if not self._certificates:
            try:
                await self._admit(method, details.invocation_metadata, None)
            except SynergaiError as error:
                refusal = error
        handler = _UNREAD
        if refusal is None:
            handler = await continuation(details)
        stream = bool(handler.request_streaming)
        return _surrounded(handler, partial(self._pass, method, stream, refusal))

    @asynccontextmanager
    async def _pass(
        self,
        method: str,
        stream: bool,
        refusal: SynergaiError | None,
        request: object,
        context: rpc.Context,
    ) -> AsyncGenerator[Callable[[Any], None] | None, None]:
        peer = rpc.peer_of(context).address
        call = self._passage.audit(method, peer)
        record = None if call is None else GrpcRecord(call, request if refusal is None else None)
        try:
            try:
                if refusal is not None:
                    raise refusal
                if self._certificates:
                    metadata: Any = context.invocation_metadata() or ()
                    certificate = peer_certificate(rpc.peer_of(context).tls)
                    await self._admit(method, metadata, certificate)
                with self._passage.count(METHODS.get(method), peer, stream=stream):
                    yield None if record is None else record.on_response
            except SynergaiError as error:
                await rpc.abort(context, error)
        except BaseException as error:
            if record is not None:
                record.on_failure(context, error)
            raise

    async def _admit(
        self, method: str, metadata: Metadata, certificate: PeerCertificate | None
    ) -> None:
        authorization = [str(value) for key, value in metadata if key == AUTHORIZATION]
        await self._passage.admit(METHODS.get(method), authorization, certificate)


def _surrounded(handler: Handler, around: Around) -> Handler:
    """Return a handler that handles calls with `handler` inside the context of `around`."""
    # The stubs of handlers know synchronous functions only.
    inner: Any = (
        handler.stream_stream or handler.unary_stream or handler.stream_unary or handler.unary_unary
    )

    async def single(request: Any, context: rpc.Context) -> Any:
        async with around(request, context) as responded:
            response = await inner(request, context)
            if responded is not None:
                responded(response)
            return response

    async def several(request: Any, context: rpc.Context) -> AsyncIterator[Any]:
        async with (
            around(request, context) as responded,
            aclosing(inner(request, context)) as responses,
        ):
            async for response in responses:
                if responded is not None:
                    responded(response)
                yield response

    behaviour: Any = single if iscoroutinefunction(inner) else several
    make: Any = _MAKERS[bool(handler.request_streaming), bool(handler.response_streaming)]
    result: Handler = make(behaviour, handler.request_deserializer, handler.response_serializer)
    return result


async def _never(_requests: object, _context: rpc.Context) -> None:
    """Do nothing: the call is refused before."""


_UNREAD: Final[Any] = grpc.stream_stream_rpc_method_handler(_never)
"""Handler, suitable for any kind of call, that does not read the request."""
_MAKERS: Final = {
    (False, False): grpc.unary_unary_rpc_method_handler,
    (False, True): grpc.unary_stream_rpc_method_handler,
    (True, False): grpc.stream_unary_rpc_method_handler,
    (True, True): grpc.stream_stream_rpc_method_handler,
}
"""Constructors of handlers by whether requests and responses are streamed."""
