from collections.abc import Callable
from typing import Protocol, TypeVar

import grpc

MessageT = TypeVar("MessageT")


class ReadableCall(Protocol):
    """A call with a stream of responses."""

    async def read(self) -> object: ...


async def read_message(call: ReadableCall, kind: type[MessageT]) -> MessageT:
    """Read the next response of a stream that has not ended."""
    message = await call.read()
    assert isinstance(message, kind)
    return message


def raw_unary(
    channel: grpc.aio.Channel, method: str
) -> grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]:
    """Return a method that sends and receives serialised messages."""
    return channel.unary_unary(method)


def raw_stream(
    channel: grpc.aio.Channel, method: str
) -> grpc.aio.StreamStreamMultiCallable[bytes, bytes]:
    """Return a streaming method that sends and receives serialised messages."""
    return channel.stream_stream(method)


def raw_responses(
    channel: grpc.aio.Channel, method: str
) -> grpc.aio.UnaryStreamMultiCallable[bytes, bytes]:
    """Return a method that sends one serialised message and receives a stream of them."""
    return channel.unary_stream(method)


def raw_requests(
    channel: grpc.aio.Channel, method: str, parse: Callable[[bytes], MessageT]
) -> grpc.aio.StreamStreamMultiCallable[bytes, MessageT]:
    """Return a streaming method that sends serialised messages and parses the responses."""
    return channel.stream_stream(method, response_deserializer=parse)
