"""The rules of a stream of many independent requests, through a gateway."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from synergai.protocol.oip_stream import WINDOW_METADATA, cancel_request

if TYPE_CHECKING:
    from collections.abc import Callable

    from synergai.oip import inference_pb2 as oip

    Requests = Callable[..., oip.ModelInferRequest]


async def test_request_called_off_leaves_its_worker_and_the_stream_goes_on(
    agent: Any, caller: Any, a_request: Requests
) -> None:
    agent.answer = agent.hold
    call = caller.oip.ModelStreamInfer(timeout=10)
    await call.write(a_request(id="held"))
    await agent.until(lambda: len(agent.assignments) == 1)
    await call.write(cancel_request("held"))
    await agent.until(lambda: len(agent.stops) == 1)
    answer = (await call.read()).infer_response
    assert (answer.id, answer.parameters["status"].string_param) == ("held", "CANCELLED")
    agent.answer = agent.complete
    await call.write(a_request(id="next"))
    answer = await call.read()
    assert (answer.infer_response.id, answer.error_message) == ("next", "")
    call.cancel()


async def test_window_that_is_no_number_is_refused(caller: Any) -> None:
    call = caller.oip.ModelStreamInfer(metadata=((WINDOW_METADATA, "many"),), timeout=5)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_open_stream_ends_with_the_gateway_and_does_not_hold_it_up(
    gateway: Any, agent: Any, caller: Any, a_request: Requests
) -> None:
    call = caller.oip.ModelStreamInfer(timeout=10)
    await call.write(a_request(id="a"))
    assert (await call.read()).infer_response.id == "a"
    gateway.stop()
    stopped = asyncio.create_task(gateway.wait_stopped())
    with pytest.raises(grpc.aio.AioRpcError, match="the gateway is stopping"):
        await call.read()
    assert agent.stops == set()
    await stopped
