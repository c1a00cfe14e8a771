"""A request on a slow worker is copied to another one, whose answer the client gets."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families

from gateway.server import Gateway
from synergai.v1 import common_pb2, hub_pb2
from tests.integration.gateway.conftest import ECHO, Caller, FakeAgent, config_in

if TYPE_CHECKING:
    from pathlib import Path

    from tests.message_fields import RequestFactory


def read_samples(gateway: Gateway) -> dict[str, float]:
    """Return the sum of each metric over its labels."""
    with urlopen(f"http://{gateway.http_address}/metrics", timeout=30) as response:
        text = response.read().decode()
    totals: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            totals[sample.name] = totals.get(sample.name, 0.0) + sample.value
    return totals


async def test_copy_of_a_late_request_answers_and_the_late_answer_is_ignored(
    tmp_path: Path, a_request: RequestFactory
) -> None:
    held: list[tuple[FakeAgent, hub_pb2.Assignment]] = []

    def slow_once(gateway: Gateway, name: str) -> FakeAgent:
        agent = FakeAgent(gateway.hub_address, name)
        configuration = common_pb2.Configuration(threads=1)
        agent.register.sessions.add(engine=ECHO, configuration=configuration)

        async def answer(assignment: hub_pb2.Assignment) -> None:
            if not held:
                held.append((agent, assignment))
                await agent.until(lambda: assignment.id in agent.stops)
            await agent.complete(assignment)

        agent.answer = answer
        return agent

    async with Gateway(config_in(tmp_path, hedge_share="100%", heartbeat_s=10.0)) as gateway:
        caller = Caller(gateway.address)
        first, second = slow_once(gateway, "w1"), slow_once(gateway, "w2")
        async with caller.channel, first, second:
            await caller.profile()
            await caller.workers(2)
            request = a_request()
            answer = await caller.oip.ModelInfer(request, timeout=30)
            assert answer.raw_output_contents == request.raw_input_contents
            [(slow, late)] = held
            other = second if slow is first else first
            assert len(other.assignments) == 1
            await slow.until(lambda: late.id in slow.stops)
            answer = await caller.oip.ModelInfer(request, timeout=30)
            assert answer.raw_output_contents == request.raw_input_contents
            found = await asyncio.to_thread(read_samples, gateway)
    assert found["synergai_requests_total"] == 2
    assert found["synergai_hedges_sent_total"] >= found["synergai_hedges_won_total"] >= 1
