"""The function of a gRPC method handler, whatever its kind, and how to put another in its place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

import grpc

if TYPE_CHECKING:
    Handler: TypeAlias = grpc.RpcMethodHandler[Any, Any]

_MAKERS: Final = {
    (False, False): grpc.unary_unary_rpc_method_handler,
    (False, True): grpc.unary_stream_rpc_method_handler,
    (True, False): grpc.stream_unary_rpc_method_handler,
    (True, True): grpc.stream_stream_rpc_method_handler,
}
"""Constructors of handlers by whether requests and responses are streamed."""


# `Any`, as the stubs of handlers know synchronous functions only.
def behaviour_of(handler: Handler) -> Any:
    """Return the function that handles a call: it takes the request or requests, and the call."""
    return (
        handler.stream_stream or handler.unary_stream or handler.stream_unary or handler.unary_unary
    )


def with_behaviour(handler: Handler, behaviour: Any) -> Handler:
    """Return a handler of the same kind and messages with another function."""
    make: Any = _MAKERS[bool(handler.request_streaming), bool(handler.response_streaming)]
    made: Handler = make(behaviour, handler.request_deserializer, handler.response_serializer)
    return made
