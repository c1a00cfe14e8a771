"""Senders of malformed messages to gRPC ports, work sockets and HTTP ports."""

import asyncio
import collections
import contextlib
import random
import re
import socket
import ssl
import struct
import time
from collections.abc import Sequence
from typing import Final, NamedTuple

import grpc

from demo.local_fleet import LocalFleet
from synergai.oip import inference_pb2 as oip
from synergai.v1 import common_pb2, hub_pb2
from synergai.wire.credentials import ClientTls, open_channel
from synergai.wire.limits import HUB_VERSION
from tests.acceptance import hostile_messages as hostile
from tests.calls import raw_responses, raw_stream, raw_unary

FORBIDDEN: Final = frozenset({"UNKNOWN", "INTERNAL", "DATA_LOSS", "500", "no answer"})
"""Statuses that blame the server, and messages without one within `TIMEOUT_S`."""
TIMEOUT_S: Final = 30.0
"""Time within which every message must be answered."""
_CHANNELS: Final = 4
_STREAM_LENGTH: Final = 200
_WINDOW: Final = 48


class Tally:
    """Counts messages by what became of them."""

    def __init__(self) -> None:
        self.statuses: collections.Counter[tuple[str, str]] = collections.Counter()
        self.blamed: list[str] = []

    def count(self, port: str, status: str, what: str, data: bytes = b"", number: int = 1) -> None:
        self.statuses[port, status] += number
        if status in FORBIDDEN and len(self.blamed) < 10:
            self.blamed.append(f"{port}: {status} for {what} {data[:2000].hex()}")

    def find_errors(self) -> list[str]:
        found = [
            f"{port}: {number:,} times {status}"
            for (port, status), number in sorted(self.statuses.items())
            if status in FORBIDDEN
        ]
        return found + self.blamed

    def rows(self) -> list[str]:
        by_port: dict[str, list[str]] = {}
        for (port, status), number in sorted(self.statuses.items()):
            by_port.setdefault(port, []).append(f"{status} {number:,}")
        return [f"{port:22} {', '.join(counts)}" for port, counts in by_port.items()]


class Target(NamedTuple):
    """Addresses of a fleet and how to connect to them.

    Attributes:
        tls: what agents and clients of gRPC present.
        socket_tls: context for sockets; None without TLS.
        http2_tls: the same with HTTP/2 as the protocol, without which gRPC closes a connection.
    """

    fleet: LocalFleet
    tls: ClientTls
    socket_tls: ssl.SSLContext | None = None
    http2_tls: ssl.SSLContext | None = None


class Sender:
    """Sends malformed messages of one kind."""

    def __init__(self, port: str, seen: Tally) -> None:
        self.port = port
        self.seen = seen

    async def send(self, rng: random.Random, _at_most: int) -> int:
        """Send one message or more, at most `_at_most`; return their number."""
        raise NotImplementedError

    def code(self, status: grpc.StatusCode, began: float, what: str, data: bytes) -> None:
        late = (
            status is grpc.StatusCode.DEADLINE_EXCEEDED
            and time.monotonic() - began >= 0.9 * TIMEOUT_S
        )
        self.seen.count(self.port, "no answer" if late else status.name, what, data)


class UnaryCalls(Sender):
    def __init__(
        self,
        port: str,
        seen: Tally,
        channels: Sequence[grpc.aio.Channel],
        methods: Sequence[hostile.Method],
    ) -> None:
        super().__init__(port, seen)
        self._methods = [each for each in methods if not each.streaming]
        self._calls = [
            {method.path: raw_unary(channel, method.path) for method in self._methods}
            for channel in channels
        ]

    async def send(self, rng: random.Random, _at_most: int) -> int:
        method = rng.choice(self._methods)
        data = hostile.hostile_message(rng, method.request)
        began = time.monotonic()
        call = rng.choice(self._calls)[method.path](
            data, timeout=TIMEOUT_S, metadata=_metadata(rng)
        )
        try:
            await call
            status = grpc.StatusCode.OK
        except grpc.aio.AioRpcError as error:
            status = error.code()
        finally:
            call.cancel()
        self.code(status, began, method.path, data)
        return 1


class StreamingCalls(Sender):
    """Calls streaming methods with a few messages each, and leaves after the first response."""

    def __init__(
        self,
        port: str,
        seen: Tally,
        channels: Sequence[grpc.aio.Channel],
        methods: Sequence[hostile.Method],
    ) -> None:
        super().__init__(port, seen)
        self._methods = [each for each in methods if each.streaming]
        self._calls = [
            {
                method.path: (
                    raw_responses(channel, method.path),
                    raw_stream(channel, method.path),
                )
                for method in self._methods
            }
            for channel in channels
        ]

    async def send(self, rng: random.Random, at_most: int) -> int:
        method = rng.choice(self._methods)
        number = min(at_most, rng.choice((1, 1, 2, 5)))
        messages = [hostile.hostile_message(rng, method.request) for _ in range(number)]
        leaves = rng.random() < 0.1
        began = time.monotonic()
        single, several = rng.choice(self._calls)[method.path]
        metadata = _metadata(rng)
        call = (
            single(messages[0], timeout=TIMEOUT_S, metadata=metadata)
            if number == 1
            else several(iter(messages), timeout=TIMEOUT_S, metadata=metadata)
        )
        status = grpc.StatusCode.OK
        try:
            if leaves:
                await asyncio.sleep(0)
                self.seen.count(self.port, "cancelled by us", method.path, number=number)
                return number
            if await call.read() is grpc.aio.EOF:
                status = await call.code()
        except grpc.aio.AioRpcError as error:
            if error.details() == _SENT_TOO_LATE:
                self.seen.count(self.port, "ended while we sent", method.path, number=number)
                return number
            status = error.code()
        finally:
            call.cancel()
        self.code(status, began, method.path, messages[0])
        self.seen.statuses[self.port, status.name] += number - 1
        return number


class InferenceStreams(Sender):
    def __init__(self, port: str, seen: Tally, channels: Sequence[grpc.aio.Channel]) -> None:
        super().__init__(port, seen)
        path = "/inference.GRPCInferenceService/ModelStreamInfer"
        self._calls = [raw_stream(channel, path) for channel in channels]

    async def send(self, rng: random.Random, at_most: int) -> int:
        descriptor = oip.ModelInferRequest.DESCRIPTOR
        number = min(at_most, _STREAM_LENGTH)
        free = asyncio.Semaphore(_WINDOW)
        call = rng.choice(self._calls)()

        async def write() -> None:
            for _ in range(number):
                await free.acquire()
                await call.write(hostile.hostile_message(rng, descriptor))
            await call.done_writing()

        # A task of our own: gRPC does not end the one that iterates over requests if the server
        # has ended the call.
        writing = asyncio.create_task(write())
        answered, leaves_after = 0, rng.choice((number, number, number, rng.randrange(number)))
        try:
            while answered < leaves_after:
                async with asyncio.timeout(TIMEOUT_S):
                    data = await call.read()
                if not isinstance(data, bytes):
                    break
                response = oip.ModelStreamInferResponse.FromString(data)
                status = response.infer_response.parameters.get("status")
                name = status.string_param if response.error_message and status else "OK"
                self.seen.count(self.port, name, "a request of a stream")
                answered += 1
                free.release()
        except TimeoutError:
            self.seen.count(self.port, "no answer", f"response {answered + 1} of a stream")
        except grpc.aio.AioRpcError as error:
            self.seen.count(self.port, _status(error), f"a stream: {error.details()}")
        finally:
            writing.cancel()
            call.cancel()
            await asyncio.gather(writing, return_exceptions=True)
        missing = number - answered
        fate = "cancelled by us" if answered == leaves_after else "stream ended"
        if missing:
            self.seen.count(self.port, fate, "requests of a stream", number=missing)
        return number


class Connections(Sender):
    """Opens connections to a gRPC port that break HTTP/2 in some way."""

    def __init__(
        self,
        port: str,
        seen: Tally,
        address: str,
        methods: Sequence[hostile.Method],
        tls: ssl.SSLContext | None,
    ) -> None:
        super().__init__(port, seen)
        self._address = address
        self._methods = methods
        self._tls = tls

    async def send(self, rng: random.Random, _at_most: int) -> int:
        data = hostile.hostile_connection(rng, self._methods)
        fate, _ = await exchange(self._address, data, rng, self._tls, wait_s=0.05)
        self.seen.count(self.port, fate, "a connection", data)
        return 1


class HttpRequests(Sender):
    """Sends requests and other bytes to the HTTP port, each on a connection of its own."""

    def __init__(self, port: str, seen: Tally, address: str, tls: ssl.SSLContext | None) -> None:
        super().__init__(port, seen)
        self._address = address
        self._tls = tls

    async def send(self, rng: random.Random, _at_most: int) -> int:
        """Send a request; a complete one must be answered."""
        data, complete = hostile.hostile_http(rng)
        wait_s = TIMEOUT_S if complete else 0.02
        fate, answer = await exchange(self._address, data, rng, self._tls, wait_s=wait_s)
        statuses = _HTTP_STATUS.findall(answer)
        if complete and not statuses:
            fate = "no answer"
        if statuses:
            fate = statuses[-1].decode()  # the first may be 100, continue
        if b"500" in statuses:
            fate = "500"
        self.seen.count(self.port, fate, "a request", data)
        return 1


class WorkSockets(Sender):
    """Registers agents and sends frames and reports on their work sockets, or without one's id."""

    def __init__(self, port: str, seen: Tally, target: Target) -> None:
        super().__init__(port, seen)
        self._target = target
        self._channel = open_channel(target.fleet.hub_address, [], target.tls.channel)
        self._number = 0

    async def send(self, rng: random.Random, at_most: int) -> int:
        # No two senders may have the same worker at a time.
        self._number += 1
        register = hub_pb2.Register(
            protocol_version=HUB_VERSION,
            worker_id=f"{hostile.INTRUDER}-socket-{self._number % 100}",
            worker_class="local",
            agent_version="0",
            cores=1,
            configurations=[common_pb2.Configuration(threads=1)],
            instance=str(self._number),
        )
        first = hub_pb2.AgentControl(register=register).SerializeToString()
        call = raw_stream(self._channel, "/synergai.v1.Hub/Control")(timeout=TIMEOUT_S)
        sent = 0
        writer = None
        try:
            await call.write(first)
            data = await call.read()
            assert isinstance(data, bytes)
            registered = hub_pb2.GatewayControl.FromString(data).registered
            address = f"127.0.0.1:{registered.work_port}"
            reader, writer = await _connect(address, self._target.socket_tls)
            session = registered.session.encode()
            if rng.random() < 0.5:
                session = rng.choice((b"", b"x", session[:-1], b"\xff" * 64, b"x" * 65))
            writer.write(len(session).to_bytes(4, "little") + session)
            while sent < min(at_most, 50) and not (reader.at_eof() or writer.is_closing()):
                message = hostile.hostile_message(rng, hub_pb2.WorkReports.DESCRIPTOR)
                writer.write(hostile.hostile_frame(rng, message))
                await writer.drain()
                sent += 1
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.002):
                        await reader.read(1000)
            self.seen.count(self.port, "sent", "frames", number=sent)
        except grpc.aio.AioRpcError as error:
            self.seen.count(self.port, _status(error), f"a registration: {error.details()}", first)
        except (OSError, ssl.SSLError, asyncio.IncompleteReadError):
            self.seen.count(self.port, "closed", "frames", number=max(1, sent))
        finally:
            call.cancel()
            if writer is not None:
                writer.transport.abort()
        return max(1, sent)


_SENT_TOO_LATE: Final = "Internal error from Core"
"""What grpc.aio's client says, not the server, if the call ended while it sent a message."""
_HTTP_STATUS: Final = re.compile(rb"HTTP/1\.[01] (\d{3}) ")
_HTTP_LENGTH: Final = re.compile(rb"\r\ncontent-length: (\d+)\r\n", re.IGNORECASE)
_METADATA: Final = (
    ("synergai-tenant", "a" * 300),
    ("synergai-tenant", "&"),
    ("synergai-window", "-1"),
    ("synergai-window", "x"),
    ("synergai-window", "9" * 50),
    ("triton_grpc_error", "true"),
    ("x-bin", b"\xff\x00"),
)


def _status(error: grpc.aio.AioRpcError) -> str:
    """Return the name of the status that a server has sent, or what ended the call otherwise."""
    return "ended while we sent" if error.details() == _SENT_TOO_LATE else error.code().name


def _metadata(rng: random.Random) -> Sequence[tuple[str, str | bytes]]:
    return (rng.choice(_METADATA),) if rng.random() < 0.05 else ()


async def _connect(
    address: str, tls: ssl.SSLContext | None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = address.rpartition(":")
    name = host if tls is not None else None
    return await asyncio.open_connection(host, int(port), ssl=tls, server_hostname=name)


async def exchange(
    address: str, data: bytes, rng: random.Random, tls: ssl.SSLContext | None, *, wait_s: float
) -> tuple[str, bytes]:
    """Send bytes on a new connection, read what comes, and close, half-close or reset it.

    With TLS, some connections have no handshake.

    Returns:
        What the server did, and the bytes received: a whole HTTP response if `wait_s` allows.
    """
    if tls is not None and wait_s < 1.0 and rng.random() < 0.2:
        tls = None
    ending = rng.choice(("close", "close", "half-close", "reset"))
    received = b""
    fate = "ignored"
    writer = None
    try:
        async with asyncio.timeout(TIMEOUT_S):
            reader, writer = await _connect(address, tls)
        writer.write(data)
        if ending == "half-close" and wait_s < 1.0 and writer.can_write_eof():
            writer.write_eof()
        async with asyncio.timeout(wait_s):
            while part := await reader.read(1 << 16):
                received += part
                fate = "answered"
                if wait_s < 1.0 or _whole(received):
                    break
            else:
                fate = "closed" if not received else "answered"
    except TimeoutError:
        pass
    except (OSError, ssl.SSLError):
        fate = "closed"
    finally:
        if writer is not None:
            if ending == "reset" and tls is None:
                _reset_on_close(writer)
            writer.transport.abort()
    return fate, received


def _reset_on_close(writer: asyncio.StreamWriter) -> None:
    """Make the connection end with a reset instead of an orderly end."""
    if (opened := writer.get_extra_info("socket")) is not None:
        with contextlib.suppress(OSError):
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def _whole(received: bytes) -> bool:
    head, end, body = received.partition(b"\r\n\r\n")
    length = _HTTP_LENGTH.search(head + b"\r\n")
    return bool(end) and (length is None or len(body) >= int(length[1]))


class Lane(NamedTuple):
    """Share of the messages that a sender sends, with `width` tasks at a time."""

    sender: Sender
    share: float
    width: int


def open_channels(address: str, tls: ClientTls) -> list[grpc.aio.Channel]:
    """Return channels with a connection each."""
    options: list[tuple[str, int | str]] = [
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.max_receive_message_length", -1),
    ]
    return [open_channel(address, options, tls.channel) for _ in range(_CHANNELS)]


async def send_all(lanes: Sequence[Lane], messages: int, seed: str) -> None:
    """Send the messages, divided among the lanes by their shares."""
    total = sum(lane.share for lane in lanes)

    async def send(lane: Lane, task: int, number: int) -> None:
        rng = random.Random(f"{seed}/{lane.sender.port}/{task}")
        while number > 0:
            number -= await lane.sender.send(rng, number)

    async with asyncio.TaskGroup() as group:
        for lane in lanes:
            number = max(1, round(messages * lane.share / total))
            width = min(lane.width, number)
            for task in range(width):
                quota = number // width + (task < number % width)
                group.create_task(send(lane, task, quota))
