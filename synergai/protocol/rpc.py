"""What every gRPC server of ours does alike: safe parsing, errors to status codes, binding.

A message that cannot be parsed never raises inside gRPC, where it would reach the client as
Python text; it becomes `Malformed`, and the call ends with INVALID_ARGUMENT. A handler raises
`SynergaiError` and the client sees its code and message; whatever else a handler raises is
logged under an id, and the client sees the id. Raw handlers keep a request's bytes beside the
parsed message and take responses that are serialised already, so that tensors are passed on
untouched.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from contextlib import aclosing
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, Generic, NoReturn, TypeAlias, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from synergai.errors import InternalFault, InvalidInput, SynergaiError, Unavailable
from synergai.protocol.status import RETRY_AFTER_MS, RETRY_METADATA, code_of
from synergai.values import value

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable

    Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]
    Responses: TypeAlias = AsyncGenerator[Message | bytes, None]

_log = logging.getLogger(__name__)

MessageT = TypeVar("MessageT", bound=Message)
ReadT = TypeVar("ReadT")
RequestT = TypeVar("RequestT")

DEFAULT_MAX_MESSAGE_BYTES: Final = 64 * 1024 * 1024
"""gRPC's own 4 MiB are exceeded by a batch of eight ordinary images."""
_MAX_DETAILS: Final = 1000


@dataclass(frozen=True, slots=True)
class Malformed:
    """Stands for a message whose bytes are not one of its type.

    Attributes:
        expected: full name of the protobuf message that was expected.
    """

    expected: str

    def error(self) -> InvalidInput:
        """What the sender should be told."""
        return InvalidInput(f"the message is not a valid {self.expected}")


@value()
class RawRequest(Generic[ReadT]):
    """A request as received and as parsed.

    Attributes:
        data: the serialised request, to be forwarded unchanged.
        parsed: the result of parsing `data`.
    """

    data: bytes
    parsed: ReadT


def parse(cls: type[MessageT]) -> Callable[[bytes], MessageT | Malformed]:
    """A deserialiser for `cls` that does not raise: it answers `Malformed` instead."""
    return safe_deserializer(cls.FromString, cls)


def safe_deserializer(
    read: Callable[[bytes], ReadT], cls: type[Message]
) -> Callable[[bytes], ReadT | Malformed]:
    """A deserialiser that answers `Malformed` where `read` finds that the bytes are no `cls`."""
    malformed = Malformed(cls.DESCRIPTOR.full_name)

    def deserialise(data: bytes) -> ReadT | Malformed:
        try:
            return read(data)
        except DecodeError:
            return malformed

    return deserialise


def raw_deserializer(
    read: Callable[[bytes], ReadT], cls: type[Message]
) -> Callable[[bytes], RawRequest[ReadT] | Malformed]:
    """Like `safe_deserializer`, but keeps the bytes beside what was read."""
    return safe_deserializer(lambda data: RawRequest(data, read(data)), cls)


def serialise(response: Message | bytes) -> bytes:
    """The bytes of a response; one that is serialised already passes as it is."""
    return response if isinstance(response, bytes) else response.SerializeToString()


async def abort(context: Context, error: SynergaiError) -> NoReturn:
    """End the call with the status code and the message of `error`.

    A message may quote what the client sent; metadata beyond its bound would hide it entirely.
    Where trying again may help, the trailers say after how long.
    """
    code = code_of(error)
    after_ms = RETRY_AFTER_MS.get(code)
    trailers = () if after_ms is None else ((RETRY_METADATA, str(after_ms)),)
    await context.abort(code, str(error)[:_MAX_DETAILS], trailers)


def log_internal_error(what: str) -> InternalFault:
    """Log the exception being handled, and return what a client may know of it: an id."""
    fault_id = secrets.token_hex(4)
    _log.exception("fault %s in %s", fault_id, what)
    return InternalFault(f"internal fault {fault_id}; the server's log has the detail")


async def _fail(context: Context, failure: BaseException, what: str) -> NoReturn:
    """End the call for whatever a handler raised; to be called in its `except` block."""
    match failure:
        case grpc.aio.AbortError():
            raise failure
        case SynergaiError():
            await abort(context, failure)
        case asyncio.CancelledError():
            # When the call itself was cancelled, gRPC waits to see the exception. One that
            # leaks from something the handler awaited would leave the client without a status.
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise failure
            await abort(context, Unavailable("the server called the work off"))
        case Exception():
            await abort(context, log_internal_error(what))
        case _:
            raise failure


def unary(
    behaviour: Callable[[MessageT, Context], Awaitable[Message | bytes]], cls: type[MessageT]
) -> grpc.RpcMethodHandler[Any, Any]:
    """A handler of a unary call whose request is a `cls`."""
    return _unary(behaviour, parse(cls))


def raw_unary(
    behaviour: Callable[[RawRequest[ReadT], Context], Awaitable[Message | bytes]],
    read: Callable[[bytes], ReadT],
    cls: type[Message],
) -> grpc.RpcMethodHandler[Any, Any]:
    """Like `unary`, but `behaviour` also gets the request's bytes; `read` parses them."""
    return _unary(behaviour, raw_deserializer(read, cls))


def server_stream(
    behaviour: Callable[[MessageT, Context], Responses], cls: type[MessageT]
) -> grpc.RpcMethodHandler[Any, Any]:
    """A handler of a call with one request, a `cls`, and a stream of responses."""

    async def handle(request: MessageT | Malformed, context: Context) -> AsyncIterator[Any]:
        if isinstance(request, Malformed):
            await abort(context, request.error())
        try:
            async with aclosing(behaviour(request, context)) as responses:
                async for response in responses:
                    yield response
        except BaseException as failure:  # noqa: BLE001 - _fail raises for every one of them
            await _fail(context, failure, behaviour.__qualname__)

    return grpc.unary_stream_rpc_method_handler(
        handle, request_deserializer=parse(cls), response_serializer=serialise
    )


def stream(
    behaviour: Callable[[AsyncIterator[MessageT], Context], Responses],
    cls: type[MessageT],
) -> grpc.RpcMethodHandler[Any, Any]:
    """A handler of a call with streams both ways; a malformed request ends it."""
    return stream_by(behaviour, cls.FromString, cls)


def stream_by(
    behaviour: Callable[[AsyncIterator[ReadT], Context], Responses],
    read: Callable[[bytes], ReadT],
    cls: type[Message],
) -> grpc.RpcMethodHandler[Any, Any]:
    """Like `stream`, but `read` parses the requests."""

    async def checked(requests: AsyncIterator[ReadT | Malformed]) -> AsyncIterator[ReadT]:
        async for request in requests:
            if isinstance(request, Malformed):
                raise request.error()
            yield request

    @wraps(behaviour)
    def behave(requests: AsyncIterator[ReadT | Malformed], context: Context) -> Responses:
        return behaviour(checked(requests), context)

    return _stream(behave, safe_deserializer(read, cls))


def raw_stream(
    behaviour: Callable[[AsyncIterator[RawRequest[ReadT] | Malformed], Context], Responses],
    read: Callable[[bytes], ReadT],
    cls: type[Message],
) -> grpc.RpcMethodHandler[Any, Any]:
    """Like `stream_by`, but with the requests' bytes, and malformed requests are handed on.

    The protocol answers each message of a stream by itself, so that one that cannot be parsed
    must not end the others.
    """
    return _stream(behaviour, raw_deserializer(read, cls))


def _stream(
    behaviour: Callable[[AsyncIterator[RequestT | Malformed], Context], Responses],
    deserialise: Callable[[bytes], RequestT | Malformed],
) -> grpc.RpcMethodHandler[Any, Any]:
    async def handle(
        requests: AsyncIterator[RequestT | Malformed], context: Context
    ) -> AsyncIterator[Any]:
        try:
            async with aclosing(behaviour(requests, context)) as responses:
                async for response in responses:
                    yield response
        except BaseException as failure:  # noqa: BLE001 - _fail raises for every one of them
            await _fail(context, failure, behaviour.__qualname__)

    return grpc.stream_stream_rpc_method_handler(
        handle, request_deserializer=deserialise, response_serializer=serialise
    )


def _unary(
    behaviour: Callable[[RequestT, Context], Awaitable[Message | bytes]],
    deserialise: Callable[[bytes], RequestT | Malformed],
) -> grpc.RpcMethodHandler[Any, Any]:
    async def handle(request: RequestT | Malformed, context: Context) -> Message | bytes:
        if isinstance(request, Malformed):
            await abort(context, request.error())
        try:
            return await behaviour(request, context)
        except BaseException as failure:  # noqa: BLE001 - _fail raises for every one of them
            await _fail(context, failure, behaviour.__qualname__)

    return grpc.unary_unary_rpc_method_handler(
        handle, request_deserializer=deserialise, response_serializer=serialise
    )


def server_options(
    max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
) -> list[tuple[str, int]]:
    """Options of a server: bounded messages, a port of its own, pings that clients may send."""
    return [
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_send_message_length", max_message_bytes),
        # On by default, and then a second server shares the port without a word.
        ("grpc.so_reuseport", 0),
        ("grpc.server_handshake_timeout_ms", 10_000),
        # Clients ping every 30 s; gRPC would refuse that as too eager on an idle connection.
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", 15_000),
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 10_000),
    ]


def channel_options(
    max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
) -> list[tuple[str, int]]:
    """Options of a channel: bounded messages, a dead peer noticed, quick reconnects."""
    return [
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_send_message_length", max_message_bytes),
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.initial_reconnect_backoff_ms", 500),
        ("grpc.max_reconnect_backoff_ms", 10_000),
    ]


def bind(
    server: grpc.aio.Server, address: str, credentials: grpc.ServerCredentials | None = None
) -> str:
    """Let `server` listen on `address`, ``host:port``, and return the address it really has.

    Port 0 takes a free one. Connections are encrypted if there are `credentials`.

    Raises:
        Unavailable: the port is in use, or the host is not one of this machine.
    """
    host, _, _ = address.rpartition(":")
    try:
        if credentials is None:
            port = server.add_insecure_port(address)
        else:
            port = server.add_secure_port(address, credentials)
    except RuntimeError:
        port = 0
    if not port:
        raise Unavailable(
            f"cannot listen on {address}: the port is in use, or the address is not this "
            "machine's; choose another one"
        )
    return f"{host}:{port}"
