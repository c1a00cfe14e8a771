"""Two small services that both servers run: an echo, and gRPC's own service for tests."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, Final

import grpc

from synergai.wire import rpc

messages: Final = grpc.protos("tests/gate/test_service.proto")
"""The messages of gRPC's `TestService`."""
ECHO: Final = "/gate.Echo/Echo"
STREAM: Final = "/gate.Echo/Stream"
WAIT: Final = "/gate.Echo/Wait"
WAITING: Final = "/gate.Echo/Waiting"
_INITIAL: Final = "x-grpc-test-echo-initial"
_TRAILING: Final = "x-grpc-test-echo-trailing-bin"


class Echo:
    """Returns requests as they are, or waits."""

    def __init__(self) -> None:
        self._waiting = 0

    def handlers(self) -> rpc.Service:
        """Return the handlers of the service."""
        methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "Echo": grpc.unary_unary_rpc_method_handler(self._echo, bytes),
            "Stream": rpc.bytes_stream(self._echo_each),
            "Wait": grpc.unary_unary_rpc_method_handler(self._wait, bytes),
            "Waiting": grpc.unary_unary_rpc_method_handler(self._count, bytes),
        }
        return rpc.Service("gate.Echo", methods)

    async def _echo(self, request: bytes, _context: object) -> bytes:
        return request

    async def _echo_each(
        self, requests: AsyncIterator[bytes], _context: object
    ) -> AsyncGenerator[bytes, None]:
        async for request in requests:
            yield bytes(request)

    async def _wait(self, request: bytes, _context: object) -> bytes:
        self._waiting += 1
        try:
            await asyncio.sleep(60.0)
        finally:
            self._waiting -= 1
        return request

    async def _count(self, _request: bytes, _context: object) -> bytes:
        """Return how many calls wait, as text."""
        return b"%d" % self._waiting


class TestService:
    """The service of gRPC's interoperability tests."""

    __test__ = False

    def handlers(self) -> rpc.Service:
        """Return the handlers of the service."""
        output = messages.StreamingOutputCallRequest
        methods = {
            "EmptyCall": rpc.unary(self._answer_empty, messages.Empty),
            "UnaryCall": rpc.unary(self._answer, messages.SimpleRequest),
            "StreamingOutputCall": rpc.server_stream(self._stream_output, output),
            "StreamingInputCall": rpc.client_stream(
                self._sum_input, messages.StreamingInputCallRequest
            ),
            "FullDuplexCall": rpc.stream(self._answer_each, output),
        }
        return rpc.Service("grpc.testing.TestService", methods)

    async def _answer_empty(self, request: Any, _context: Any) -> Any:
        return request

    async def _answer(self, request: Any, context: Any) -> Any:
        await _echo_metadata(context)
        await _end_as_told(request, context)
        return messages.SimpleResponse(payload=_payload(request.response_size))

    async def _stream_output(self, request: Any, _context: Any) -> Any:
        for each in request.response_parameters:
            await asyncio.sleep(each.interval_us / 1e6)
            yield messages.StreamingOutputCallResponse(payload=_payload(each.size))

    async def _sum_input(self, requests: AsyncIterator[Any], _context: Any) -> Any:
        size = 0
        async for request in requests:
            size += len(request.payload.body)
        return messages.StreamingInputCallResponse(aggregated_payload_size=size)

    async def _answer_each(self, requests: AsyncIterator[Any], context: Any) -> Any:
        await _echo_metadata(context)
        async for request in requests:
            await _end_as_told(request, context)
            async for response in self._stream_output(request, context):
                yield response


def _payload(size: int) -> Any:
    return messages.Payload(body=bytes(size))


async def _end_as_told(request: Any, context: Any) -> None:
    status = request.response_status
    if status.code:
        codes = {code.value[0]: code for code in grpc.StatusCode}
        await context.abort(codes[status.code], status.message)


async def _echo_metadata(context: Any) -> None:
    """Send the two fields back that the client asks for: one begins the response, one ends it."""
    metadata = dict(context.invocation_metadata())
    if (initial := metadata.get(_INITIAL)) is not None:
        await context.send_initial_metadata(((_INITIAL, initial),))
    if (trailing := metadata.get(_TRAILING)) is not None:
        context.set_trailing_metadata(((_TRAILING, trailing),))
