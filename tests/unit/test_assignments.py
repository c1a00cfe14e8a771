"""The gateway's assignments as the agent keeps them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from synergai.domain import Configuration, Engine, EngineName, TensorSpec
from synergai.v1 import common_pb2, hub_pb2
from synergai.work_stream import Orders
from worker_agent.assignments import Assignments
from worker_agent.outbox import Outbox
from worker_agent.runner import Runner


def an_engine(name: str) -> Engine:
    return Engine(
        name=EngineName(name),
        version="1",
        backend="onnxruntime",
        inputs=(TensorSpec("x", "FP32", (1,)),),
        outputs=(TensorSpec("y", "FP32", (1,)),),
    )


class HostsThatNeverLoad:
    def resident(self, _session: object) -> None:
        return None

    def load(self, _session: object) -> asyncio.Future[Any]:
        return asyncio.get_running_loop().create_future()


async def test_assignments_that_end_while_others_are_abandoned_are_no_trouble() -> None:
    engines = {EngineName(name): an_engine(name) for name in ("good", "bad")}
    outbox = Outbox(merge=True)
    runner = Runner(HostsThatNeverLoad(), engines, lambda: 0.0)
    assignments = Assignments(runner, outbox, [Configuration(1)])
    one_thread = common_pb2.Configuration(threads=1)
    orders = [
        hub_pb2.Assignment(id=number, engine=engine, count=9, configuration=one_thread)
        for number, engine in enumerate(["good", "bad", "bad", "good"])
    ]
    assignments.take(Orders([(order, ()) for order in orders], stops=()))
    bad = EngineName("bad")
    engines[bad] = replace(engines[bad], fault="it turned out to be broken")
    assignments.abandon()
    assert runner.is_idle
