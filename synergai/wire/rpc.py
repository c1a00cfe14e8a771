"""Conventions of gRPC servers and channels: safe parsing, mapping of errors to status codes.

A request that cannot be parsed does not raise inside gRPC, which would send the Python exception's
text to the client. It becomes `Malformed`, and the call ends with INVALID_ARGUMENT. A
`SynergaiError` raised by a handler ends the call with its status code and message; any other
exception is logged with an id, and the client gets only the id. Raw handlers receive the serialised
request as well as the parsed one, and handlers may return serialised responses, so tensors are
forwarded without being serialised again.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from contextlib import aclosing
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, Generic, NoReturn, Protocol, TypeAlias, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message
from msgspec import Struct

from synergai.errors import InternalError, InvalidInput, QuotaExceeded, SynergaiError, Unavailable
from synergai.runtime.tasks import TaskBag
from synergai.wire.limits import DEFAULT_MAX_MESSAGE_BYTES
from synergai.wire.parameters import REQUEST_ID, ids_from_metadata
from synergai.wire.status import (
    QUOTA_METADATA,
    RETRY_METADATA,
    error_details,
    retry_after_ms,
    status_code,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping

    from synergai.wire.memory_bounds import UnreadResponses
    from synergai.wire.request_codec import Buffer
    from synergai.wire.server_call import ServerCall

    _MethodHandler: TypeAlias = grpc.RpcMethodHandler[Any, Any]
    Responses: TypeAlias = AsyncGenerator[Message | bytes, None]
else:
    _MethodHandler = grpc.RpcMethodHandler  # which takes no types

_log = logging.getLogger(__name__)

_READ_STATUS_WITHIN_S: Final = 10.0
"""Time that a client gets to read the status of a call that was ended because it reads slowly."""

MessageT = TypeVar("MessageT", bound=Message)
ReadT = TypeVar("ReadT")
RequestT = TypeVar("RequestT")


@dataclass(frozen=True, slots=True)
class Malformed:
    """Placeholder for a message that could not be parsed, with the name of the expected one."""

    expected: str

    def error(self) -> InvalidInput:
        return InvalidInput(f"the message is not a valid {self.expected}")


class RawRequest(Struct, Generic[ReadT], frozen=True):
    """A request as received and as parsed."""

    data: Buffer
    parsed: ReadT


def deserializer(cls: type[MessageT]) -> Callable[[Buffer], MessageT | Malformed]:
    """Return a deserialiser for `cls` that returns `Malformed` instead of raising."""
    return safe_deserializer(cls.FromString, cls)


def safe_deserializer(
    read: Callable[[Any], ReadT], cls: type[Message]
) -> Callable[[Buffer], ReadT | Malformed]:
    """Return a deserialiser that returns `Malformed` where `read` raises `DecodeError`.

    Args:
        read: parses any buffer; the stubs of protobuf name bytes only.
    """
    malformed = Malformed(cls.DESCRIPTOR.full_name)

    def deserialise(data: Buffer) -> ReadT | Malformed:
        try:
            return read(data)
        except DecodeError:
            return malformed

    return deserialise


def raw_deserializer(
    read: Callable[[Any], ReadT], cls: type[Message]
) -> Callable[[Buffer], RawRequest[ReadT] | Malformed]:
    """Return a `safe_deserializer` that keeps the serialised message with the parsed one."""
    malformed = Malformed(cls.DESCRIPTOR.full_name)

    def deserialise(data: Buffer) -> RawRequest[ReadT] | Malformed:
        try:
            return RawRequest(data, read(data))
        except DecodeError:
            return malformed

    return deserialise


def serialise(response: Message | bytes) -> bytes:
    """Serialise a response unless it is serialised already."""
    return response if isinstance(response, bytes) else response.SerializeToString()


# `Any`, as the stubs of handlers know synchronous functions only.
def behaviour_of(handler: _MethodHandler) -> Any:
    """Return the function that handles a call: it takes the request or requests, and the call."""
    return (
        handler.stream_stream or handler.unary_stream or handler.stream_unary or handler.unary_unary
    )


class Service(grpc.GenericRpcHandler):
    """The handlers of a service."""

    def __init__(self, name: str, methods: Mapping[str, grpc.RpcMethodHandler[Any, Any]]) -> None:
        self.paths = {f"/{name}/{method}": handler for method, handler in methods.items()}

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        return self.paths.get(handler_call_details.method)


async def abort(context: ServerCall, error: SynergaiError) -> NoReturn:
    """Abort the call with the status code and message of `error`.

    The message is truncated: it may quote the client's input, and gRPC drops oversized metadata
    altogether. The trailers carry the id of the request, and if retrying may help, the delay.

    Raises:
        grpc.aio.AbortError: always, because of `error`; the handler has to let it pass.
    """
    trailers: list[tuple[str, str]] = []
    chosen = ids_from_metadata(context.invocation_metadata()).chosen
    if request_id := chosen or error.request_id:
        trailers.append((REQUEST_ID, request_id))
    if (after_ms := retry_after_ms(error)) is not None:
        trailers.append((RETRY_METADATA, str(after_ms)))
    if isinstance(error, QuotaExceeded):
        trailers.append((QUOTA_METADATA, error.quota))
    try:
        await context.abort(status_code(error), error_details(error), tuple(trailers))
    except grpc.aio.AbortError as aborted:  # grpcio wants the same one
        raise aborted from error


class SlowCalls:
    """Ends calls whose clients do not read, with the reason."""

    def __init__(self) -> None:
        self._ending = TaskBag()

    async def ending(self, context: ServerCall) -> Callable[[SynergaiError], None]:
        """Return a function that ends the current call with an error, while its handler waits.

        The status is sent behind the responses. If the client does not read that either, its
        connection is closed after a while, which frees their memory.
        """
        handler = _current_task()
        await context.send_initial_metadata(())

        def end(error: SynergaiError) -> None:
            self._ending.start(_end(context, handler, error))

        return end


async def _end(context: ServerCall, handler: asyncio.Task[Any], error: SynergaiError) -> None:
    try:
        async with asyncio.timeout(_READ_STATUS_WITHIN_S):
            await abort(context, error)
    except TimeoutError:
        context.peer.disconnect()
    except grpc.aio.BaseError:
        pass  # it was aborted, or has ended
    finally:
        handler.cancel()


def count_unread(unread: UnreadResponses, context: ServerCall, size: int) -> None:
    """Count the current unary call's response of `size` bytes until its client has read it.

    If the client reads too slowly, its connection is closed: the call's status is part of the
    response.
    """
    of_client = unread.open(lambda _: context.peer.disconnect())
    _current_task().add_done_callback(lambda _: of_client.close())
    of_client.add(size)


def _current_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    if task is None:
        raise RuntimeError("not called from a handler")
    return task


def log_internal_error(where: str, error: BaseException | None = None) -> InternalError:
    """Log an exception, by default the current one; return an error with its id for the client."""
    error_id = secrets.token_hex(4)
    _log.error("internal error %s in %s", error_id, where, exc_info=error or True)
    return InternalError(f"internal error {error_id}; the server's log has the details")


async def _abort_for(context: ServerCall, failure: BaseException, where: str) -> NoReturn:
    """Abort the call because its handler raised `failure`; call this in the `except` block."""
    try:
        match failure:
            case grpc.aio.BaseError():
                # The call was aborted, or gRPC has ended it, such as by stopping the server.
                raise failure
            case SynergaiError():
                await abort(context, failure)
            case asyncio.CancelledError():
                # If the call itself was cancelled, gRPC expects the exception. One that leaks from
                # something that the handler awaited would leave the client without a status.
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise failure
                await abort(context, Unavailable("the server cancelled the work"))
            case Exception():
                await abort(context, log_internal_error(where))
            case _:
                raise failure
    finally:
        del failure  # whose traceback has this frame: a cycle


def unary(
    handler: Callable[[MessageT, ServerCall], Awaitable[Message | bytes]], cls: type[MessageT]
) -> grpc.RpcMethodHandler[Any, Any]:
    return grpc.unary_unary_rpc_method_handler(_answer(handler), deserializer(cls), serialise)


class PendingCall(Protocol):
    """A call that was begun, and waits for its response."""

    @property
    def result(self) -> asyncio.Future[Buffer]:
        """The response, or a `SynergaiError`."""

    def abandon(self) -> None:
        """End it, because the client is gone."""


class BegunUnary(_MethodHandler, Generic[ReadT]):
    """A method handler of unary calls that begin without waiting.

    A server that needs no task for such a call while it waits calls `read` and `begin` itself, and
    `respond` only if it cannot respond at once.

    Args:
        begin: begins a call, and may raise what any handler may. The response may be given to its
            last argument, as soon as it is there, in place of the result.
        finish: makes a response of the result.
        read: parses a request.
        cls: type of the request.
    """

    request_streaming = response_streaming = False
    unary_stream = stream_unary = stream_stream = None
    request_deserializer: Callable[[Buffer], RawRequest[Any] | Malformed]

    def __init__(
        self,
        begin: Callable[
            [RawRequest[ReadT], ServerCall, Callable[[Buffer], None] | None], PendingCall
        ],
        finish: Callable[[Buffer, ServerCall], bytes],
        read: Callable[[Any], ReadT],
        cls: type[Message],
    ) -> None:
        @wraps(begin)
        async def respond(result: asyncio.Future[Buffer], context: ServerCall) -> bytes:
            return finish(await result, context)

        @wraps(begin)
        async def handle(request: RawRequest[ReadT], context: ServerCall) -> bytes:
            begun = begin(request, context, None)
            try:
                return await respond(begun.result, context)
            except asyncio.CancelledError:
                begun.abandon()
                raise

        self.begin = begin
        self.read = read
        self.malformed = Malformed(cls.DESCRIPTOR.full_name)
        self.respond = _answer(respond)
        self.unary_unary = _answer(handle)
        self.request_deserializer = raw_deserializer(read, cls)
        self.response_serializer = serialise


def server_stream(
    handler: Callable[[MessageT, ServerCall], Responses], cls: type[MessageT]
) -> grpc.RpcMethodHandler[Any, Any]:
    return grpc.unary_stream_rpc_method_handler(_respond(handler), deserializer(cls), serialise)


def stream(
    handler: Callable[[AsyncIterator[MessageT], ServerCall], Responses],
    cls: type[MessageT],
) -> grpc.RpcMethodHandler[Any, Any]:
    """Return the method handler of a bidirectional stream; a malformed request ends the call."""

    @wraps(handler)
    def behave(requests: AsyncIterator[MessageT | Malformed], context: ServerCall) -> Responses:
        return handler(_checked(requests), context)

    return grpc.stream_stream_rpc_method_handler(_respond(behave), deserializer(cls), serialise)


def client_stream(
    handler: Callable[[AsyncIterator[MessageT], ServerCall], Awaitable[Message | bytes]],
    cls: type[MessageT],
) -> grpc.RpcMethodHandler[Any, Any]:
    """Return the method handler of a client-streaming call; a malformed request ends it."""

    @wraps(handler)
    async def behave(
        requests: AsyncIterator[MessageT | Malformed], context: ServerCall
    ) -> Message | bytes:
        return await handler(_checked(requests), context)

    return grpc.stream_unary_rpc_method_handler(_answer(behave), deserializer(cls), serialise)


def bytes_stream(
    handler: Callable[[AsyncIterator[bytes], ServerCall], Responses],
) -> grpc.RpcMethodHandler[Any, Any]:
    """Like `stream`, but pass `handler` each request as it was received."""
    return grpc.stream_stream_rpc_method_handler(_respond(handler), None, serialise)


def raw_written_stream(
    handler: Callable[[AsyncIterator[RawRequest[ReadT] | Malformed], ServerCall], Awaitable[None]],
    read: Callable[[Any], ReadT],
    cls: type[Message],
) -> grpc.RpcMethodHandler[Any, Any]:
    """Return the method handler of a stream whose requests are parsed by `read`, with their bytes.

    A malformed request is passed as `Malformed`: the protocol's stream answers every message
    separately, so a malformed one must not end the call. The handler writes its responses to the
    context, which costs less than to yield them through generators. Interceptors do not see them.
    """
    deserialise = raw_deserializer(read, cls)
    return grpc.stream_stream_rpc_method_handler(_answer(handler), deserialise, serialise)


async def _checked(requests: AsyncIterator[MessageT | Malformed]) -> AsyncIterator[MessageT]:
    """Yield the requests of a stream until one is malformed, and raise its error."""
    async for request in requests:
        if isinstance(request, Malformed):
            raise request.error()
        yield request
        del request  # the next one may be a long time coming


# `Any`, as requests are messages or iterators over them, and the stubs of stream handlers know
# generators only.
def _answer(handler: Callable[[Any, ServerCall], Awaitable[Any]]) -> Any:
    """Return a handler that returns, or has written, what it responds."""

    async def handle(request: Any, context: ServerCall) -> Any:
        if isinstance(request, Malformed):
            await abort(context, request.error())
        try:
            return await handler(request, context)
        except BaseException as failure:  # noqa: BLE001 - _abort_for raises for every one of them
            await _abort_for(context, failure, handler.__qualname__)

    return handle


def _respond(handler: Callable[[Any, ServerCall], Responses]) -> Any:

    async def handle(request: Any, context: ServerCall) -> AsyncIterator[Any]:
        if isinstance(request, Malformed):
            await abort(context, request.error())
        try:
            async with aclosing(handler(request, context)) as responses:
                async for response in responses:
                    yield response
                    del response
        except BaseException as failure:  # noqa: BLE001 - _abort_for raises for every one of them
            await _abort_for(context, failure, handler.__qualname__)

    return handle


def channel_options(
    max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES, *, failover: bool = False
) -> list[tuple[str, int | str]]:
    """Return channel options: message size limits, keepalive, fast reconnection, connections.

    With `failover`, a server that hangs or is back is noticed within seconds, but one that pauses
    for no longer than a leader may, or whose answer waits behind a response, is kept.
    """
    ping_ms, answer_ms, reconnect_ms = (
        (2_000, 6_000, 1_000) if failover else (30_000, 10_000, 2_000)
    )
    return [
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_send_message_length", max_message_bytes),
        ("grpc.keepalive_time_ms", ping_ms),
        # gRPC ignores the timeout of its keepalive, and waits a minute for the answer to a ping.
        ("grpc.http2.ping_timeout_ms", answer_ms),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.initial_reconnect_backoff_ms", 500),
        ("grpc.max_reconnect_backoff_ms", reconnect_ms),
        # A server limits the calls of a connection: further ones open another, up to this number.
        ("grpc.service_config", '{"connectionScaling": {"maxConnectionsPerSubchannel": 8}}'),
    ]
