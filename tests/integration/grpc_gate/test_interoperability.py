"""gRPC's interoperability cases, with the client of grpcio.

The names, sizes and values are those of
https://github.com/grpc/grpc/blob/master/doc/interop-test-descriptions.md.
"""

from collections.abc import AsyncIterator
from typing import Any, Final

import grpc
import pytest

from tests.gate.server import AUTHORITY, SERVERS, Running
from tests.gate.service import messages

_SERVICE: Final = "/grpc.testing.TestService/"
_LARGE_REQUEST: Final = 271_828
_LARGE_RESPONSE: Final = 314_159
_REQUESTS: Final = (27_182, 8, 1_828, 45_904)
_RESPONSES: Final = (31_415, 9, 2_653, 58_979)
_INITIAL: Final = ("x-grpc-test-echo-initial", "test_initial_metadata_value")
_TRAILING: Final = ("x-grpc-test-echo-trailing-bin", b"\xab\xab\xab")
_SPECIAL: Final = "\t\ntest with whitespace\r\nand Unicode BMP ☺ and non-BMP 😈\t\n"


@pytest.fixture(params=[(server, port) for server in SERVERS for port in ("plain", "encrypted")])
async def channel(
    servers: dict[str, Running], request: pytest.FixtureRequest
) -> AsyncIterator[grpc.aio.Channel]:
    """A connection to a port of one of the servers."""
    name, port = request.param
    if port == "plain":
        channel = grpc.aio.insecure_channel(servers[name].plain)
    else:
        credentials = grpc.ssl_channel_credentials(AUTHORITY.read_bytes())
        channel = grpc.aio.secure_channel(servers[name].encrypted, credentials)
    async with channel:
        yield channel


def unary(channel: grpc.aio.Channel, method: str = "UnaryCall", kind: str = "Simple") -> Any:
    return channel.unary_unary(
        _SERVICE + method, _serialise, getattr(messages, f"{kind}Response").FromString
    )


def duplex(channel: grpc.aio.Channel) -> Any:
    read = messages.StreamingOutputCallResponse.FromString
    return channel.stream_stream(f"{_SERVICE}FullDuplexCall", _serialise, read)


def empty(channel: grpc.aio.Channel, method: str) -> Any:
    return channel.unary_unary(method, _serialise, messages.Empty.FromString)


def _serialise(message: Any) -> bytes:
    data: bytes = message.SerializeToString()
    return data


def simple_request(**more: Any) -> Any:
    return messages.SimpleRequest(
        response_size=_LARGE_RESPONSE, payload=payload(_LARGE_REQUEST), **more
    )


def payload(size: int) -> Any:
    return messages.Payload(body=bytes(size))


def output_request(*sizes: int, request_size: int = 0, **more: Any) -> Any:
    return messages.StreamingOutputCallRequest(
        response_parameters=[messages.ResponseParameters(size=size) for size in sizes],
        payload=payload(request_size),
        **more,
    )


async def test_empty_unary(channel: grpc.aio.Channel) -> None:
    assert await empty(channel, f"{_SERVICE}EmptyCall")(messages.Empty()) == messages.Empty()


async def test_large_unary(channel: grpc.aio.Channel) -> None:
    response = await unary(channel)(simple_request())
    assert response.payload.body == bytes(_LARGE_RESPONSE)


async def test_client_compressed_unary(channel: grpc.aio.Channel) -> None:
    for compression in (grpc.Compression.Gzip, grpc.Compression.NoCompression):
        response = await unary(channel)(simple_request(), compression=compression)
        assert response.payload.body == bytes(_LARGE_RESPONSE)


async def test_client_streaming(channel: grpc.aio.Channel) -> None:
    read = messages.StreamingInputCallResponse.FromString
    call = channel.stream_unary(f"{_SERVICE}StreamingInputCall", _serialise, read)
    requests = [messages.StreamingInputCallRequest(payload=payload(size)) for size in _REQUESTS]
    assert (await call(iter(requests))).aggregated_payload_size == sum(_REQUESTS) == 74_922


async def test_server_streaming(channel: grpc.aio.Channel) -> None:
    read = messages.StreamingOutputCallResponse.FromString
    call: Any = channel.unary_stream(f"{_SERVICE}StreamingOutputCall", _serialise, read)
    responses = [each async for each in call(output_request(*_RESPONSES))]
    assert [len(each.payload.body) for each in responses] == list(_RESPONSES)


async def test_ping_pong(channel: grpc.aio.Channel) -> None:
    call = duplex(channel)()
    for request_size, size in zip(_REQUESTS, _RESPONSES, strict=True):
        await call.write(output_request(size, request_size=request_size))
        assert len((await call.read()).payload.body) == size
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF
    assert await call.code() is grpc.StatusCode.OK


async def test_empty_stream(channel: grpc.aio.Channel) -> None:
    call = duplex(channel)()
    await call.done_writing()
    assert [each async for each in call] == []
    assert await call.code() is grpc.StatusCode.OK


async def test_cancel_after_begin(channel: grpc.aio.Channel) -> None:
    call: Any = channel.stream_unary(f"{_SERVICE}StreamingInputCall", _serialise)()
    call.cancel()
    assert await call.code() is grpc.StatusCode.CANCELLED


async def test_cancel_after_first_response(channel: grpc.aio.Channel) -> None:
    call = duplex(channel)()
    await call.write(output_request(_RESPONSES[0], request_size=_REQUESTS[0]))
    await call.read()
    call.cancel()
    assert await call.code() is grpc.StatusCode.CANCELLED


async def test_timeout_on_sleeping_server(channel: grpc.aio.Channel) -> None:
    call = duplex(channel)(timeout=0.5)  # grpcio's client calls a write after it INTERNAL
    await call.write(output_request(request_size=_REQUESTS[0]))
    assert await call.code() is grpc.StatusCode.DEADLINE_EXCEEDED


@pytest.mark.parametrize("message", ["test status message", _SPECIAL])
async def test_status_code_and_message(channel: grpc.aio.Channel, message: str) -> None:
    status = messages.EchoStatus(code=grpc.StatusCode.UNKNOWN.value[0], message=message)
    stream = duplex(channel)()
    await stream.write(output_request(response_status=status))
    for call in (unary(channel)(simple_request(response_status=status)), stream):
        assert await call.code() is grpc.StatusCode.UNKNOWN
        assert await call.details() == message


@pytest.mark.parametrize("service", ["TestService", "UnimplementedService"])
async def test_unimplemented_method_and_service(channel: grpc.aio.Channel, service: str) -> None:
    call = empty(channel, f"/grpc.testing.{service}/UnimplementedCall")(messages.Empty())
    assert await call.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_custom_metadata(channel: grpc.aio.Channel) -> None:
    metadata = (_INITIAL, _TRAILING)
    stream = duplex(channel)(metadata=metadata)
    await stream.write(output_request(_LARGE_RESPONSE, request_size=_LARGE_REQUEST))
    await stream.read()
    await stream.done_writing()
    for call in (unary(channel)(simple_request(), metadata=metadata), stream):
        assert dict([_INITIAL]).items() <= dict(await call.initial_metadata()).items()
        assert dict([_TRAILING]).items() <= dict(await call.trailing_metadata()).items()
        assert await call.code() is grpc.StatusCode.OK


@pytest.mark.parametrize("size", [20_000, 64_000, 100_000, 1_000_000])
@pytest.mark.parametrize("fields", [1, 20])
async def test_metadata_that_is_too_large_ends_its_call_and_no_other(
    channel: grpc.aio.Channel, size: int, fields: int
) -> None:
    stream = duplex(channel)()
    metadata = tuple((f"x-{number}", size // fields * "v") for number in range(fields))
    for number in range(3):
        refused = unary(channel)(simple_request(), metadata=metadata)
        assert await refused.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        await stream.write(output_request(number))
        assert len((await stream.read()).payload.body) == number
