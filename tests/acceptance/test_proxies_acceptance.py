"""Clients behind a proxy, with the configurations of the guide, on both servers.

It needs Debian's packages ``nginx``, ``haproxy`` and ``caddy``.
"""

import asyncio
import contextlib
import shutil
import ssl
import struct
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Final
from urllib.request import urlopen

import grpc
import psutil
import pytest

from demo.local_fleet import reserved_port
from tests import http2
from tests.acceptance.proxies import PROXIES
from tests.calls import raw_stream, raw_unary
from tests.gate.conversation import Conversation
from tests.gate.server import AUTHORITY, SERVERS, Running, running
from tests.gate.service import ECHO, STREAM, WAIT

_OPTIONS: Final = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
]
_CALLERS: Final = 20
_LOAD_S: Final = 1.0
_UP: Final = grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE


class Rest(BaseHTTPRequestHandler):
    """Answers in place of the REST API."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.path.encode())

    def log_message(self, *_arguments: object) -> None:
        """Log nothing."""


class Setup:
    """A proxy in front of a server.

    Attributes:
        proxy: the proxy.
        server: the server.
    """

    def __init__(self, kind: str, name: str, folder: Path, ports: tuple[int, int]) -> None:
        self._kind = kind
        self._log = folder / "server.log"
        self._address = f"127.0.0.1:{ports[0]}"
        self.rest = HTTPServer(("127.0.0.1", 0), Rest)
        rest = f"127.0.0.1:{self.rest.server_port}"
        self.proxy = PROXIES[name](folder, ports[1], self._address, rest)

    @contextmanager
    def running(self) -> Iterator[Running]:
        """Run the server until the context ends."""
        with running(self._kind, self._log, self._address) as server:
            self._server = psutil.Process(server.process.pid)
            yield server

    def connections(self) -> int:
        """Return how many connections the server has."""
        return sum(
            each.status == psutil.CONN_ESTABLISHED for each in self._server.net_connections()
        )

    def connect(self) -> grpc.aio.Channel:
        """Return a channel of its own through the proxy."""
        credentials = grpc.ssl_channel_credentials(AUTHORITY.read_bytes())
        return grpc.aio.secure_channel(self.proxy.address, credentials, _OPTIONS)

    def converse(self) -> Conversation:
        """Return a client of frames through the proxy."""
        tls = ssl.create_default_context(cafile=str(AUTHORITY))
        return Conversation(self.proxy.address, tls=tls)


@pytest.fixture(scope="module")
def matrix() -> Iterator[dict[str, dict[str, str]]]:
    """Results by proxy and server, and case; the table is printed at the end."""
    results: dict[str, dict[str, str]] = {}
    yield results
    print("", " | ".join(["proxy", *_CASES, *_STOPS]), sep="\n")
    for name, row in results.items():
        print(" | ".join([name, *(row.get(case, "") for case in (*_CASES, *_STOPS))]))


async def _pass_calls(setup: Setup) -> str:
    async with setup.connect() as channel:
        for size in (1_000, 4_000_000, 60_000_000):
            assert await raw_unary(channel, ECHO)(bytes(size)) == bytes(size)
        stream = raw_stream(channel, STREAM)()
        for number in range(100):
            await stream.write(b"%d" % number)
            assert await stream.read() == b"%d" % number
        await stream.done_writing()
        assert await stream.read() is grpc.aio.EOF
    return "ok"


async def _pass_rest(setup: Setup) -> str:
    tls = ssl.create_default_context(cafile=str(AUTHORITY))

    def get() -> bytes:
        with urlopen(f"https://{setup.proxy.address}/v2/models/x", context=tls) as response:
            return bytes(response.read())

    assert await asyncio.to_thread(get) == b"/v2/models/x"
    return "ok"


async def _pass_deadline(setup: Setup) -> str:
    """Send a deadline that the client does not watch."""

    def call() -> str:
        with setup.converse() as client:
            more = ("grpc-timeout", "200m")
            client.send(http2.headers(1, WAIT, more, scheme="https") + http2.message(1, b"x"))
            return client.outcome(1, is_answered=True)

    outcome = await asyncio.to_thread(call)
    assert outcome == "status 4", outcome
    return "ok"


def _fields(*more: tuple[str, str]) -> bytes:
    opened = http2.in_frames(http2.headers(1, ECHO, *more, scheme="https"))
    return opened + http2.message(1, b"x")


def _metadata(size: int) -> bytes:
    return _fields(*((f"x-{number}", 1_000 * "v") for number in range(size // 1_000)))


def _resets() -> bytes:
    opened = (http2.headers(each, ECHO, scheme="https") for each in range(1, 401, 2))
    return b"".join(each + http2.reset(2 * at + 1) for at, each in enumerate(opened))


_BAD: Final[dict[str, bytes]] = {
    "130 fields": _fields(*((f"x-{number}", "v") for number in range(130))),
    "not UTF-8": _fields(("x", "caf\udce9")),
    "cancelled": http2.headers(1, WAIT, scheme="https") + http2.message(1, b"x") + http2.reset(1),
    "200 resets": _resets(),
}
_LARGE: Final = {
    f"{size // 1_000} kB of metadata": _metadata(size)
    for size in (20_000, 64_000, 100_000, 1_000_000)
}
"""Proxies refuse some of them, and HAProxy opens another connection, whichever the server is."""


def _beside(frames: bytes) -> Callable[[Setup], Awaitable[str]]:
    """Return a case: one client sends frames, while another has a stream and calls."""

    async def run(setup: Setup) -> str:
        async with setup.connect() as channel:
            stream = raw_stream(channel, STREAM)()
            await stream.write(b"before")
            assert await stream.read() == b"before"
            outcomes = Counter[str]()
            for _ in range(5):
                outcomes[await asyncio.to_thread(_outcome, setup, frames)] += 1
                assert await raw_unary(channel, ECHO)(b"x") == b"x"
            await stream.write(b"behind")
            assert await stream.read() == b"behind"
            stream.cancel()
        return f"ok {' '.join(outcomes)}"

    return run


def _outcome(setup: Setup, frames: bytes) -> str:
    with setup.converse() as client:
        client.send(frames)
        last = struct.unpack(">I", frames[-8:-4])[0] if frames.endswith(_CANCEL) else 0
        return client.outcome(1, is_answered=not last)


_CANCEL: Final = struct.pack(">I", http2.CANCEL)


@asynccontextmanager
async def _load(setup: Setup) -> AsyncIterator[Counter[str]]:
    """Call all the time while the context lasts; count the codes."""
    codes: Counter[str] = Counter()
    ends = asyncio.Event()

    async def call() -> None:
        async with setup.connect() as channel:
            while not ends.is_set():
                answer = raw_unary(channel, ECHO)(b"x", timeout=20.0)
                code = await answer.code()
                # The details of what must not happen.
                codes[code.name if code in _UP else f"{code.name}: {await answer.details()}"] += 1
                await asyncio.sleep(0.005)

    async with asyncio.TaskGroup() as callers:
        for _ in range(_CALLERS):
            callers.create_task(call())
        await asyncio.sleep(_LOAD_S)
        yield codes
        await asyncio.sleep(_LOAD_S)
        ends.set()


def _shown(codes: Counter[str]) -> str:
    assert set(codes) <= {code.name for code in _UP}, codes
    return f"ok {codes['UNAVAILABLE']} of {codes.total()}"


async def _share_connection(setup: Setup) -> str:
    """Count the connections that the cases before this one needed."""
    connections = setup.connections()
    # HAProxy may open another one beyond 100 calls at once, as with 200 resets.
    assert connections <= 2 or not setup.proxy.shares, connections
    return f"ok {connections}"


_CASES: Final[dict[str, Callable[[Setup], Awaitable[str]]]] = {
    **{name: _beside(frames) for name, frames in _BAD.items()},
    "connections": _share_connection,
    "calls": _pass_calls,
    "REST": _pass_rest,
    "deadline": _pass_deadline,
    **{name: _beside(frames) for name, frames in _LARGE.items()},
}
_STOPS: Final = ("SIGTERM of the server", "restart of the proxy")


async def _restart_server(setup: Setup) -> str:
    with setup.running() as first:
        async with _load(setup) as codes:
            first.stop()
            await asyncio.to_thread(first.process.wait, 30.0)
            with setup.running():
                await asyncio.sleep(_LOAD_S)
                before = codes["OK"]
                await asyncio.sleep(_LOAD_S)
                assert codes["OK"] > before
        return _shown(codes)


async def _restart_proxy(setup: Setup) -> str:
    with setup.running(), contextlib.ExitStack() as proxies:
        process = proxies.enter_context(setup.proxy.running())
        async with _load(setup) as codes:
            process.send_signal(setup.proxy.stop)
            await asyncio.to_thread(process.wait, 30.0)
            await asyncio.to_thread(proxies.enter_context, setup.proxy.running())
        return _shown(codes)


@pytest.mark.parametrize("name", PROXIES)
async def test_clients_behind_a_proxy_do_not_notice_each_other_or_a_stop(
    name: str, matrix: dict[str, dict[str, str]], tmp_path: Path
) -> None:
    if not shutil.which(name):
        pytest.skip(f"needs {name}")
    for kind in SERVERS:
        row = matrix[f"{name}, {kind}"] = {}
        folder = tmp_path / kind
        folder.mkdir()
        with reserved_port() as upstream, reserved_port() as port:
            setup = Setup(kind, name, folder, (upstream, port))
            threading.Thread(target=setup.rest.serve_forever, daemon=True).start()
            with setup.running(), setup.proxy.running():
                for case, run in _CASES.items():
                    row[case] = await _seen(run(setup))
            with setup.proxy.running():
                row[_STOPS[0]] = await _seen(_restart_server(setup))
            row[_STOPS[1]] = await _seen(_restart_proxy(setup))
            setup.rest.shutdown()
            setup.rest.server_close()
    native = matrix[f"{name}, native"]
    assert not {case: seen for case, seen in native.items() if not seen.startswith("ok")}


async def _seen(case: Awaitable[str]) -> str:
    try:
        return await case
    except (AssertionError, grpc.aio.AioRpcError, TimeoutError) as error:
        return repr(error).replace("\n", " ")[:200]
