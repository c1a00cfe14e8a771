"""A client that is kept over several event loops."""

import asyncio
from collections.abc import Awaitable, Callable

import numpy as np
import pytest

from synergai.client.client import Client
from synergai.errors import InvalidInput
from tests.waiting import turns

CALLS: dict[str, Callable[[Client], Awaitable[object]]] = {
    "infer": lambda client: client.infer("e", {"x": np.zeros(1)}),
    "workers": lambda client: client.workers(),
    "submit": lambda client: client.submit("e", queries=1, qos=1.0),
    "status": lambda client: client.job("job-1").status(),
    "results": lambda client: anext(client.job("job-1").results()),
    "watch": lambda client: anext(client.job("job-1").watch()),
    "stream": lambda client: anext(client.stream("e", [{"x": np.zeros(1)}])),
}


async def connect(client: Client) -> Client:
    return await client.connect()


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_call_in_a_second_loop_says_how_to_use_several(
    call: Callable[[Client], Awaitable[object]],
) -> None:
    async def second() -> None:
        await call(client)

    client = Client("127.0.0.1:9")
    asyncio.run(connect(client))
    with pytest.raises(InvalidInput, match="event loop that has ended; use it within `async with"):
        asyncio.run(second())


def test_client_connects_again_in_a_second_loop() -> None:
    async def check(client: Client) -> None:
        await client.connect()
        client._channel.ensure_open()
        await client.close()

    client = Client("127.0.0.1:9")
    asyncio.run(connect(client))
    asyncio.run(check(client))


async def test_call_in_another_loop_that_runs_asks_for_a_client_of_its_own() -> None:
    client = await Client("127.0.0.1:9").connect()
    with pytest.raises(InvalidInput, match="another event loop; use a client for each"):
        await asyncio.to_thread(asyncio.run, client.workers())
    await client.close()


async def test_client_connects_again_once_its_close_was_begun() -> None:
    """Also if that is cancelled, or has not ended yet."""

    async def wait_for_the_gateway() -> None:
        await asyncio.Event().wait()

    client = await Client("127.0.0.1:9").connect()
    first = client._channel
    client._inputs.close = wait_for_the_gateway  # type: ignore[method-assign]  # stands still
    closing = asyncio.create_task(client.close())
    await turns()
    second = (await client.connect())._channel
    assert second is not first
    closing.cancel()
    await asyncio.wait([closing])
    assert first._channel.calls._channel.closed()  # type: ignore[attr-defined]  # grpcio's own
    second.ensure_open()
    await client.close()
