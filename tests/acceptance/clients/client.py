"""The cases of `tests/acceptance/test_clients_acceptance.py`, with the client of grpcio.

    python -m tests.acceptance.clients.client ADDRESS CA|-

Each client of this folder calls the service of `tests.gate.service` and prints a line per case: its
name, ``ok`` and what was seen, or else what is wrong. The last case begins with ``SIGTERM ready``.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import grpc

from tests.calls import raw_stream, raw_unary
from tests.gate.service import ECHO, STREAM, WAIT, WAITING

_OPTIONS: Final = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
_PINGS: Final = [
    ("grpc.keepalive_time_ms", 1_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.use_local_subchannel_pool", 1),
]
_CALLS: Final = 100
_CALLERS: Final = 20


class Client:
    """A client of one port."""

    def __init__(self, address: str, authority: str) -> None:
        self._address = address
        self._credentials = (
            None if authority == "-" else grpc.ssl_channel_credentials(Path(authority).read_bytes())
        )
        self._channel = self._connect(_OPTIONS)

    def _connect(self, options: list[tuple[str, int]]) -> grpc.aio.Channel:
        if self._credentials is None:
            return grpc.aio.insecure_channel(self._address, options)
        return grpc.aio.secure_channel(self._address, self._credentials, options)

    async def run(self) -> None:
        """Run all cases."""
        cases: dict[str, Callable[[], Awaitable[str]]] = {
            "unary": lambda: self._echo(1_000),
            "streams": self._stream,
            "deadline": self._deadline,
            "cancel": self._cancel,
            "4 MB": lambda: self._echo(4_000_000),
            "60 MB": lambda: self._echo(60_000_000),
            "gzip": lambda: self._echo(1_000_000, compression=grpc.Compression.Gzip),
            "20 kB of metadata": lambda: self._beside(
                [(f"x-{number}", 1_000 * "v") for number in range(20)]
            ),
            "130 fields": lambda: self._beside([(f"x-{number}", "v") for number in range(130)]),
            "pings": self._ping,
            "100 calls": self._call_at_once,
            "SIGTERM": self._call_until_it_stops,
        }
        for name, case in cases.items():
            try:
                print(name, await case(), sep="\t", flush=True)
            except (AssertionError, grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
                print(name, repr(error).replace("\n", " "), sep="\t", flush=True)

    async def _echo(self, size: int, compression: grpc.Compression | None = None) -> str:
        data = bytes(size)
        answer = await raw_unary(self._channel, ECHO)(data, compression=compression)
        assert answer == data
        return "ok"

    async def _stream(self) -> str:
        call = raw_stream(self._channel, STREAM)()
        for number in range(100):
            await call.write(b"%d" % number)
            assert await call.read() == b"%d" % number
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
        return "ok"

    async def _deadline(self) -> str:
        call = raw_unary(self._channel, WAIT)(b"", timeout=0.2)
        assert await call.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        return "ok"

    async def _cancel(self) -> str:
        call = raw_unary(self._channel, WAIT)(b"")
        await self._until_waiting(b"1")
        call.cancel()
        await self._until_waiting(b"0")
        return "ok"

    async def _until_waiting(self, count: bytes) -> None:
        async with asyncio.timeout(10):
            while await raw_unary(self._channel, WAITING)(b"") != count:  # noqa: ASYNC110 - a call
                await asyncio.sleep(0.05)

    async def _beside(self, metadata: list[tuple[str, str]]) -> str:
        """Send a call with this metadata beside a stream, which it must not disturb."""
        stream = raw_stream(self._channel, STREAM)()
        await stream.write(b"before")
        assert await stream.read() == b"before"
        code = await raw_unary(self._channel, ECHO)(
            b"", metadata=grpc.aio.Metadata(*metadata)
        ).code()
        assert code is not grpc.StatusCode.UNAVAILABLE
        await stream.write(b"behind")
        assert await stream.read() == b"behind"
        stream.cancel()
        return f"ok {code.name}"

    async def _ping(self) -> str:
        async with self._connect(_PINGS) as channel:
            stream = raw_stream(channel, STREAM)()
            await stream.write(b"x")
            assert await stream.read() == b"x"
            await asyncio.sleep(5.0)
            await stream.write(b"y")
            assert await stream.read() == b"y"
        return "ok"

    async def _call_at_once(self) -> str:
        await asyncio.gather(*(self._echo(100) for _ in range(_CALLS)))
        return "ok"

    async def _call_until_it_stops(self) -> str:
        codes = set()

        async def call() -> None:
            while (code := await raw_unary(self._channel, ECHO)(b"x").code()) is _OK:
                pass
            codes.add(code.name)

        async with asyncio.TaskGroup() as calls:
            for _ in range(_CALLERS):
                calls.create_task(call())
            await asyncio.sleep(0.5)
            print("SIGTERM", "ready", sep="\t", flush=True)
        assert codes == {"UNAVAILABLE"}, codes
        return "ok"


_OK: Final = grpc.StatusCode.OK


async def _run(address: str, authority: str) -> None:
    await Client(address, authority).run()


if __name__ == "__main__":
    asyncio.run(_run(sys.argv[1], sys.argv[2]))
