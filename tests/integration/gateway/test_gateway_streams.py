"""Streams of independent requests through a gateway."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import grpc
import pytest

from synergai.oip import inference_pb2 as oip
from synergai.protocol.oip_stream import WINDOW_METADATA, cancel_request
from tests.calls import read_message

if TYPE_CHECKING:
    from gateway.server import Gateway
    from tests.integration.gateway.conftest import Caller, FakeAgent
    from tests.message_fields import RequestFactory


async def test_cancelled_request_stops_on_its_worker_and_the_stream_continues(
    agent: FakeAgent, caller: Caller, a_request: RequestFactory
) -> None:
    agent.answer = agent.hold
    call = caller.oip.ModelStreamInfer(timeout=10)
    await call.write(a_request(id="held"))
    await agent.until(lambda: len(agent.assignments) == 1)
    await call.write(cancel_request("held"))
    await agent.until(lambda: len(agent.stops) == 1)
    answer = (await read_message(call, oip.ModelStreamInferResponse)).infer_response
    assert (answer.id, answer.parameters["status"].string_param) == ("held", "CANCELLED")
    agent.answer = agent.complete
    await call.write(a_request(id="next"))
    response = await read_message(call, oip.ModelStreamInferResponse)
    assert (response.infer_response.id, response.error_message) == ("next", "")
    call.cancel()


async def test_malformed_window_is_rejected(caller: Caller) -> None:
    call = caller.oip.ModelStreamInfer(metadata=((WINDOW_METADATA, "many"),), timeout=5)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_open_stream_does_not_delay_the_shutdown(
    gateway: Gateway, agent: FakeAgent, caller: Caller, a_request: RequestFactory
) -> None:
    call = caller.oip.ModelStreamInfer(timeout=10)
    await call.write(a_request(id="a"))
    assert (await read_message(call, oip.ModelStreamInferResponse)).infer_response.id == "a"
    gateway.stop()
    stopped = asyncio.create_task(gateway.wait_stopped())
    with pytest.raises(grpc.aio.AioRpcError, match="the server is stopping"):
        await call.read()
    assert agent.stops == set()
    await stopped
