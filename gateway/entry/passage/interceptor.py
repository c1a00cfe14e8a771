"""The guard of gRPC calls."""

from __future__ import annotations

from contextlib import aclosing, asynccontextmanager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from gateway.entry.access.authenticator import AUTHORIZATION
from gateway.entry.access.methods import METHODS
from gateway.entry.access.peer_certificate import peer_certificate
from gateway.entry.audit.grpc_calls import GrpcRecord
from synergai.errors import SynergaiError
from synergai.wire import rpc
from synergai.wire.server_call import behaviour_of, with_behaviour

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterator
    from contextlib import AbstractAsyncContextManager, AbstractContextManager

    import grpc

    from gateway.entry.audit.calls import AuditedCall
    from gateway.entry.passage.call_guard import CallGuard
    from synergai.wire.server_call import ServerCall

    Handler: TypeAlias = grpc.RpcMethodHandler[Any, Any]
    Around: TypeAlias = Callable[
        [Any, ServerCall], AbstractAsyncContextManager[Callable[[Any], None] | None]
    ]
    """Called with request and context; the value of its context, if any, with each response."""


class CallGuardInterceptor:
    """Lets calls pass to their handlers.

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
            with _recording(None if call is None else GrpcRecord(call, None), context):
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
    with _recording(record, context):
        try:
            with count():
                yield None if record is None else record.on_response
        except SynergaiError as error:
            await rpc.abort(context, error)


@contextmanager
def _recording(record: GrpcRecord | None, context: ServerCall) -> Iterator[None]:
    """Record what ends a call."""
    try:
        yield
    except BaseException as error:
        if record is not None:
            record.on_failure(context, error)
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
