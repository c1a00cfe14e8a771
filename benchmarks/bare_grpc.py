"""Baselines: bare grpc.aio servers that echo or discard requests, and a proxy in front of one.

Both handle the two inference methods of the Open Inference Protocol as bytes without parsing
them, so that they measure the cost of grpc.aio itself.

    python benchmarks/bare_grpc.py echo|discard|proxy ADDRESS [TARGET]
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import grpc
import uvloop

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

SERVICE = "inference.GRPCInferenceService"
OPTIONS = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.so_reuseport", 0),
]


async def echo(request: bytes, _context: Any) -> bytes:
    return request


async def echo_stream(requests: AsyncIterator[bytes], _context: Any) -> AsyncIterator[bytes]:
    async for request in requests:
        yield request


async def discard(_request: bytes, _context: Any) -> bytes:
    return b""


async def discard_stream(requests: AsyncIterator[bytes], _context: Any) -> AsyncIterator[bytes]:
    async for _ in requests:
        yield b""


class Proxy:
    def __init__(self, target: str) -> None:
        channel = grpc.aio.insecure_channel(target, options=OPTIONS)
        self._unary: Any = channel.unary_unary(f"/{SERVICE}/ModelInfer")
        self._stream: Any = channel.stream_stream(f"/{SERVICE}/ModelStreamInfer")

    async def unary(self, request: bytes, _context: Any) -> bytes:
        response: bytes = await self._unary(request)
        return response

    async def stream(self, requests: AsyncIterator[bytes], _context: Any) -> AsyncIterator[bytes]:
        call = self._stream(requests)
        try:
            async for response in call:
                yield response
        finally:
            call.cancel()


async def serve(role: str, address: str, target: str) -> None:
    server = grpc.aio.server(options=OPTIONS)
    unary, stream = (discard, discard_stream) if role == "discard" else (echo, echo_stream)
    if role == "proxy":
        proxy = Proxy(target)
        unary, stream = proxy.unary, proxy.stream
    server.add_generic_rpc_handlers(
        [
            grpc.method_handlers_generic_handler(
                SERVICE,
                {
                    "ModelInfer": grpc.unary_unary_rpc_method_handler(unary),
                    "ModelStreamInfer": grpc.stream_stream_rpc_method_handler(stream),
                },
            )
        ]
    )
    server.add_insecure_port(address)
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1], sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else ""))
