"""Calls that a server refuses while the client writes: the client gets the server's status."""

from __future__ import annotations

import asyncio
from typing import Any, NoReturn

import grpc

from synergai.errors import PermissionDenied
from synergai.wire import rpc
from synergai.wire.server_call import ServerCall
from synergai.wire.writes import keep_status
from tests.grpc_servers import new_server
from tests.integration.conftest import both_servers

CALLS = 60
AT_ONCE = 20


async def refuse(_requests: object, context: ServerCall) -> NoReturn:
    await rpc.abort(context, PermissionDenied("not for you"))


async def status_of(call: Any) -> tuple[grpc.StatusCode, str]:
    """Write until the call fails; return its status."""
    try:
        while True:
            await call.write(bytes(100_000))
    except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
        return await call.code(), await call.details()
    finally:
        call.cancel()


@both_servers
async def test_status_of_a_refused_call_is_kept_when_a_write_fails(grpc_server: str) -> None:
    server = new_server(grpc_server)
    handler: Any = grpc.stream_stream_rpc_method_handler(refuse)
    address = server.bind("127.0.0.1:0")
    server.start([rpc.Service("test", {"Refuse": handler})])
    seen: set[tuple[grpc.StatusCode, str]] = set()
    async with grpc.aio.insecure_channel(address) as channel:
        method: Any = channel.stream_stream("/test/Refuse")
        for _ in range(CALLS // AT_ONCE):
            calls = [status_of(keep_status(method())) for _ in range(AT_ONCE)]
            seen.update(await asyncio.wait_for(asyncio.gather(*calls), 60))
    await server.stop(0.0)
    assert seen == {(grpc.StatusCode.PERMISSION_DENIED, "not for you")}
