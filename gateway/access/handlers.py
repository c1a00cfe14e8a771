"""Handlers of gRPC calls with something around them, for interceptors."""

from __future__ import annotations

from contextlib import aclosing
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import grpc

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from contextlib import AbstractAsyncContextManager

    from synergai.protocol.rpc import Context

    Handler: TypeAlias = grpc.RpcMethodHandler[Any, Any]
    Around: TypeAlias = Callable[
        [Any, Context], AbstractAsyncContextManager[Callable[[Any], None] | None]
    ]
    """Called with request and context; the value of its context, if any, with each response."""


def surrounded(handler: Handler, around: Around) -> Handler:
    """Return a handler that handles calls with `handler` inside the context of `around`."""
    # The stubs of handlers know synchronous functions only.
    inner: Any = (
        handler.stream_stream or handler.unary_stream or handler.stream_unary or handler.unary_unary
    )

    async def single(request: Any, context: Context) -> Any:
        async with around(request, context) as responded:
            response = await inner(request, context)
            if responded is not None:
                responded(response)
            return response

    async def several(request: Any, context: Context) -> AsyncIterator[Any]:
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


_MAKERS: Final = {
    (False, False): grpc.unary_unary_rpc_method_handler,
    (False, True): grpc.unary_stream_rpc_method_handler,
    (True, False): grpc.stream_unary_rpc_method_handler,
    (True, True): grpc.stream_stream_rpc_method_handler,
}
"""Constructors of handlers by whether requests and responses are streamed."""
