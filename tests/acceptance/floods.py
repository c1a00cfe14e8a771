"""Flood a port of a gateway, and print what was sent or answered as JSON.

    python -m tests.acceptance.floods frames HOST:PORT SECONDS KIND [CA]
    python -m tests.acceptance.floods resets HOST:PORT SECONDS CALLS
    python -m tests.acceptance.floods idle HOST:PORT SECONDS CONNECTIONS
    python -m tests.acceptance.floods tenant HOST:PORT SECONDS TOKEN ENGINE

`frames` sends frames of HTTP/2 from a few connections, as fast as the server takes the bytes, and
opens those again that it closes; with the file of an authority they are encrypted. `resets` opens
and resets that many calls with complete requests on one connection, however long it takes. `idle`
opens connections and sends nothing on them. `tenant` sends requests, streams, jobs and connections
as one tenant, and ignores how long it is told to wait.
"""

import asyncio
import contextlib
import itertools
import json
import resource
import ssl
import struct
import sys
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from typing import Final

import grpc

from synergai.oip import inference_pb2 as oip
from synergai.oip import inference_pb2_grpc as oip_grpc
from synergai.v1 import jobs_pb2, jobs_pb2_grpc
from tests import http2
from tests.http2 import frame

ENGINE: Final = "onnx_identity"
"""The engine of requests that are reset."""
CONNECTIONS: Final = 4
CALLS: Final = 8
"""Concurrent calls of each kind on a tenant's connection."""
_CHUNK: Final = 64 << 10
_PATH: Final = "/grpc.health.v1.Health/Check"
_INFER: Final = "/inference.GRPCInferenceService/ModelInfer"
_LIVE: Final = "/inference.GRPCInferenceService/ServerLive"
_CONTINUATION: Final = 9
_UNKNOWN: Final = 0xFA
_MAX_FRAME: Final = 16384


# --- frames -------------------------------------------------------------------------------------


def _repeated(one: bytes) -> Callable[[], Iterator[bytes]]:
    return lambda: itertools.repeat(one * max(1, _CHUNK // len(one)))


def _hpack_bombs() -> Iterator[bytes]:
    """Yield calls with a field of 4,000 bytes, which takes one byte to repeat."""
    field = b"\x40\x01x" + b"\x7f" + _varint(4000 - 127) + b"v" * 4000
    yield http2.headers(1, _PATH, block=field)
    for stream in itertools.count(3, 2):
        yield http2.headers(stream, _PATH, block=b"\xbe" * (_MAX_FRAME - 200))


def _many_headers() -> Iterator[bytes]:
    """Yield calls with as many small fields as fit into a frame."""
    yield http2.headers(1, _PATH, block=b"\x40\x01x\x01v")
    for stream in itertools.count(3, 2):
        yield http2.headers(stream, _PATH, block=b"\xbe" * (_MAX_FRAME - 200))


def _continuations() -> Iterator[bytes]:
    """Yield a call whose headers never end."""
    yield http2.headers(1, _PATH, ends=False)
    yield from itertools.repeat(frame(_CONTINUATION, 0, 1, b"\0\x01x\x01v" * 3000))


def _empty_data() -> Iterator[bytes]:
    """Yield a call whose message never begins."""
    yield http2.headers(1, _PATH)
    yield from itertools.repeat(frame(http2.DATA, 0, 1) * (_CHUNK // 9))


def _calls(path: str, rest: Callable[[int], bytes]) -> Callable[[], Iterator[bytes]]:
    """Yield calls, with the rest of the frames of each stream."""
    return lambda: (
        b"".join(
            http2.headers(stream, path) + rest(stream) for stream in range(first, first + 200, 2)
        )
        for first in itertools.count(1, 200)
    )


def _earned_pings() -> Iterator[bytes]:
    """Yield a call whose message arrives in single bytes, with pings between them."""
    yield http2.headers(1, _LIVE)
    one = frame(http2.DATA, 0, 1, b"\0") + 4 * frame(http2.PING, 0, 0, bytes(8))
    yield from itertools.repeat(one * (_CHUNK // len(one)))


def infer_request(engine: str) -> oip.ModelInferRequest:
    request = oip.ModelInferRequest(model_name=engine, raw_input_contents=[bytes(4)])
    request.inputs.add(name="x", datatype="FP32", shape=[1])
    return request


_REQUEST: Final = infer_request(ENGINE).SerializeToString()


def _varint(value: int) -> bytes:
    encoded = b""
    while value > 127:
        encoded += bytes([value & 127 | 128])
        value >>= 7
    return encoded + bytes([value])


KINDS: Final[dict[str, Callable[[], Iterator[bytes]]]] = {
    "ping": _repeated(frame(http2.PING, 0, 0, bytes(8))),
    "hpack": _hpack_bombs,
    "fields": _many_headers,
    "unknown": _repeated(frame(_UNKNOWN, 0, 0)),
    "unknown-large": _repeated(frame(_UNKNOWN, 0, 0, bytes(_MAX_FRAME))),
    "settings": _repeated(frame(http2.SETTINGS, 0, 0)),
    "windows": _repeated(frame(http2.WINDOW_UPDATE, 0, 0, struct.pack(">I", 1))),
    "priority": _repeated(frame(2, 0, 1, bytes(5))),
    "continuation": _continuations,
    "data": _empty_data,
    "resets": _calls(_PATH, http2.reset),
    "calls": _calls(_LIVE, lambda stream: http2.message(stream, b"")),
    "begun": _calls(
        _LIVE, lambda stream: frame(http2.DATA, 0, stream, b"\0") + http2.reset(stream)
    ),
    "requests": _calls(
        _INFER, lambda stream: http2.message(stream, _REQUEST) + http2.reset(stream)
    ),
    "earned": _earned_pings,
}


class FrameFlood:
    """A flood from `CONNECTIONS` connections, each in a thread."""

    def __init__(self, address: str, seconds: float, kind: str, authority: str | None) -> None:
        self._address = address
        self._ends_at = time.monotonic() + seconds
        self._kind = kind
        self._tls = None if authority is None else ssl.create_default_context(cafile=authority)
        self._lock = threading.Lock()
        self.connections = self.sent = 0

    def run(self) -> None:
        threads = [threading.Thread(target=self._flood) for _ in range(CONNECTIONS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _flood(self) -> None:
        connections = sent = 0
        while time.monotonic() < self._ends_at:
            try:
                with http2.Http2Connection(self._address, tls=self._tls) as connection:
                    connections += 1
                    for chunk in KINDS[self._kind]():
                        connection.send([chunk])
                        sent += len(chunk)
                        if connection.is_closed() or time.monotonic() > self._ends_at:
                            break
            except OSError:
                pass
        with self._lock:
            self.connections += connections
            self.sent += sent


def reset_calls(address: str, calls: int) -> dict[str, float]:
    """Open and reset calls on one connection at a time; return how many were sent."""
    sent = 0
    batches = KINDS["requests"]()
    with contextlib.ExitStack() as connections:
        connection = connections.enter_context(http2.Http2Connection(address))
        while sent < calls:
            try:
                connection.send([next(batches)])
                sent += 100
                closed = connection.is_closed()  # reads, as an attacker would
            except OSError:
                closed = True
            if closed:
                connections.close()
                connection = connections.enter_context(http2.Http2Connection(address))
                batches = KINDS["requests"]()
    return {"calls": sent}


# --- idle connections ---------------------------------------------------------------------------


def open_idle(address: str, seconds: float, connections: int) -> dict[str, float]:
    """Open connections and wait; return how many are open then, and how long opening took."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        opened = []
        for _ in range(connections):
            with contextlib.suppress(OSError):  # the gateway closes those beyond its limit
                opened.append(stack.enter_context(http2.Http2Connection(address)))
        open_s = time.monotonic() - began
        time.sleep(seconds)
        open_now = sum(not connection.is_closed() for connection in opened)
    return {"open": open_now, "open_s": round(open_s, 1)}


# --- a tenant -----------------------------------------------------------------------------------


class TenantFlood:
    """Calls of one tenant, as fast as the gateway answers.

    Attributes:
        codes: number of calls, or of messages in streams, by kind and status.
    """

    def __init__(self, address: str, seconds: float, token: str, engine: str) -> None:
        self._address = address
        self._ends_at = time.monotonic() + seconds
        self._metadata = grpc.aio.Metadata(("authorization", f"Bearer {token}"))
        self._engine = engine
        self._request = infer_request(engine)
        self.codes: Counter[str] = Counter()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(CONNECTIONS):
                group.create_task(self._connect())

    async def _connect(self) -> None:
        options = [("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.insecure_channel(self._address, options) as channel:
            infer = oip_grpc.GRPCInferenceServiceStub(channel)
            jobs = jobs_pb2_grpc.JobsStub(channel)
            spec = jobs_pb2.JobSpec(engine=self._engine, queries=100)

            async def request() -> None:
                await infer.ModelInfer(self._request, timeout=5, metadata=self._metadata)

            async def submit() -> None:
                submission = jobs_pb2.SubmitRequest(spec=spec)
                await jobs.Submit(submission, timeout=5, metadata=self._metadata)

            async def stream() -> None:
                call = infer.ModelStreamInfer(timeout=5, metadata=self._metadata)
                try:
                    # Writing to a stream that the gateway has ended fails without its status.
                    with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                        for _ in range(50):
                            await call.write(self._request)
                        await call.done_writing()
                    async for response in call:
                        refused = response.infer_response.parameters["status"].string_param
                        self.codes[f"message {refused or 'OK'}"] += 1
                finally:
                    call.cancel()

            async with asyncio.TaskGroup() as group:
                for act in (request, submit, stream):
                    for _ in range(CALLS):
                        group.create_task(self._repeat(act))

    async def _repeat(self, act: Callable[[], Awaitable[None]]) -> None:
        while time.monotonic() < self._ends_at:
            try:
                await act()
                code = "OK"
            except grpc.aio.AioRpcError as error:
                code = error.code().name
            self.codes[f"{act.__name__} {code}"] += 1


def main(kind: str, address: str, seconds: float, what: str, more: str = "") -> dict[str, float]:
    if kind == "resets":
        return reset_calls(address, int(what))
    if kind == "idle":
        return open_idle(address, seconds, int(what))
    if kind == "tenant":
        tenant = TenantFlood(address, seconds, what, more)
        asyncio.run(tenant.run())
        return dict(tenant.codes)
    frames = FrameFlood(address, seconds, what, more or None)
    frames.run()
    return {"connections": frames.connections, "megabytes": frames.sent / 1e6}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], sys.argv[2], float(sys.argv[3]), *sys.argv[4:])))
