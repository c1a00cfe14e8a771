"""Memory that a bare grpc.aio server loses per call, as it is and with its operations freed.

Run with ``python benchmarks/abandoned_calls.py``; see `synergai.protocol.grpcio.abandoned_calls`.
The memory in use is read from the C library, since resident memory includes what the library
retains.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import gc
import multiprocessing
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import grpc

from synergai.protocol.grpcio.abandoned_calls import free_abandoned_operations

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from multiprocessing.connection import Connection

KINDS = ("complete", "abandoned")
IN_FLIGHT = 16


def memory_in_use() -> int:
    """Return the bytes allocated by malloc and not freed, in all arenas (glibc)."""
    library = ctypes.CDLL(None)
    library.fopen.restype = ctypes.c_void_p
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "malloc.xml"
        stream = ctypes.c_void_p(library.fopen(str(path).encode(), b"w"))
        library.malloc_info(0, stream)
        library.fclose(stream)
        heaps = path.read_text().split("<heap nr=")[1:]
    return sum(_heap_in_use(heap) for heap in heaps)


def _heap_in_use(heap: str) -> int:
    free, _, system = heap.partition("<system")
    held = re.search(r' type="current" size="(\d+)"', system)
    unused = re.findall(r'<total type="(?:fast|rest)" count="\d+" size="(\d+)"', free)
    return (int(held[1]) if held else 0) - sum(map(int, unused))


class Echo(grpc.GenericRpcHandler):
    """Answers each message of a stream with itself."""

    def service(self, _details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes]:
        """Return the handler of every method."""

        async def echo(
            requests: AsyncIterator[bytes], _context: grpc.aio.ServicerContext[bytes, bytes]
        ) -> AsyncIterator[bytes]:
            async for request in requests:
                yield request

        return grpc.stream_stream_rpc_method_handler(echo)


async def call(channel: grpc.aio.Channel, kind: str) -> None:
    """Open a stream, exchange a message, and complete or abandon the call."""
    stream: grpc.aio.StreamStreamCall[bytes, bytes] = channel.stream_stream("/echo/Echo")()
    await stream.write(b"message")
    await stream.read()
    if kind == "abandoned":
        stream.cancel()
        return
    await stream.done_writing()
    await stream.read()


def run_client(address: str, kind: str, calls: int, server: Connection) -> None:
    """Make `calls` calls each time that the server asks for them."""

    async def serve() -> None:
        async with grpc.aio.insecure_channel(address) as channel:
            while await asyncio.to_thread(server.recv):
                for _ in range(calls // IN_FLIGHT):
                    await asyncio.gather(*(call(channel, kind) for _ in range(IN_FLIGHT)))
                server.send(None)

    asyncio.run(serve())


async def measure(kind: str, calls: int) -> float:
    """Return the bytes that one call of a kind leaves allocated."""
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((Echo(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    client = context.Process(target=run_client, args=(f"127.0.0.1:{port}", kind, calls, theirs))
    client.start()
    used: list[int] = []
    try:
        for _ in range(3):
            ours.send(True)
            await asyncio.to_thread(ours.recv)
            await asyncio.sleep(1)  # the last calls end
            gc.collect()
            used.append(memory_in_use())
        ours.send(False)
    finally:
        await asyncio.to_thread(client.join)
        await server.stop(None)
    return (used[-1] - used[0]) / (2 * calls)


def main() -> None:
    """Measure both kinds of calls."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=4000, help="calls per measurement")
    arguments = parser.parse_args()
    for server in (f"grpcio {grpc.__version__}", "with operations freed"):
        for kind in KINDS:
            lost = asyncio.run(measure(kind, arguments.calls))
            print(f"{server}: {lost:.0f} bytes per {kind} call")
        free_abandoned_operations()


if __name__ == "__main__":
    main()
