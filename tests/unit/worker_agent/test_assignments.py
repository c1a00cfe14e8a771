from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import cast

import pytest
from msgspec.structs import replace

from synergai.domain import BatchTimes, Configuration, Engine, EngineName, TensorSpec
from synergai.v1 import common_pb2, hub_pb2
from synergai.wire.limits import PROBE_BYTES
from synergai.wire.work_messages import Orders, Reports
from tests.engines import new_engine
from tests.pulls import new_pulls
from tests.waiting import until
from worker_agent.exchange import HeldTensorStore
from worker_agent.hosts.power_modes import PowerModeHosts
from worker_agent.hub_client.assignments import Assignments
from worker_agent.runner import Runner


def an_engine(name: str) -> Engine:
    return new_engine(name, (TensorSpec("x", "FP32", (1,)),), (TensorSpec("y", "FP32", (1,)),))


class NeverLoadingHosts:
    def get_resident(self, _session: object) -> None:
        return None

    def load(self, _session: object) -> asyncio.Future[ResidentHosts]:
        return asyncio.get_running_loop().create_future()


class ResidentHosts:
    """A single host that records the batching terms of its queries."""

    is_closed = False

    def __init__(self) -> None:
        self.terms: list[tuple[BatchTimes | None, float]] = []

    def get_resident(self, _session: object) -> ResidentHosts:
        return self

    def load(self, _session: object) -> asyncio.Future[ResidentHosts]:
        raise NotImplementedError

    def has_room(self, size: int) -> bool:  # noqa: ARG002 - the protocol's
        return True

    def run_query(
        self,
        request: object,  # noqa: ARG002 - the protocol's, as below
        on_ended: object,  # noqa: ARG002 - as in the protocol
        batch_times: BatchTimes | None = None,
        due: float = math.inf,
        variant: str = "",  # noqa: ARG002 - as in the protocol
    ) -> int:
        self.terms.append((batch_times, due))
        return len(self.terms)

    def run_samples(self, *_args: object, **_more: object) -> int:
        raise NotImplementedError

    def stop_run(self, run_id: int, *, abort: bool = False) -> None:
        raise NotImplementedError


def assign(runner: Runner, send: Callable[[Reports], None] = lambda _: None) -> Assignments:
    held = HeldTensorStore(0)
    pulls = new_pulls(held, send)
    return Assignments(runner, send, [Configuration(1)], held, pulls, clock=lambda: 100.0)


async def test_abandoning_all_assignments_tolerates_some_ending_meanwhile() -> None:
    engines = {EngineName(name): an_engine(name) for name in ("good", "bad")}
    runner = Runner(cast("PowerModeHosts", NeverLoadingHosts()), engines, lambda: 0.0)
    assignments = assign(runner)
    one_thread = common_pb2.Configuration(threads=1)
    orders = [
        hub_pb2.Assignment(id=number, engine=engine, count=9, configuration=one_thread)
        for number, engine in enumerate(["good", "bad", "bad", "good"])
    ]
    assignments.handle_orders(Orders([(order, ()) for order in orders], stops=()))
    bad = EngineName("bad")
    engines[bad] = replace(engines[bad], fault="found to be broken")
    assignments.abandon_all()
    assert runner.is_idle


async def test_batch_budget_counts_from_receipt_of_the_assignment() -> None:
    engines = {EngineName("good"): an_engine("good")}
    hosts = ResidentHosts()
    runner = Runner(cast("PowerModeHosts", hosts), engines, lambda: 0.0)
    assignments = assign(runner)
    one_thread = common_pb2.Configuration(threads=1)
    alone, hurried, leisurely = (
        hub_pb2.Assignment(id=number, engine="good", count=1, configuration=one_thread)
        for number in range(3)
    )
    hurried.MergeFrom(hub_pb2.Assignment(batch_s=[1, 2], budget_s=-3))
    leisurely.MergeFrom(hub_pb2.Assignment(batch_s=[1, 2]))
    for order in (alone, hurried, leisurely):
        assignments.handle_orders(Orders([(order, [b"request"])], stops=()))
    batch_times = BatchTimes((1.0, 2.0))
    assert hosts.terms == [(None, math.inf), (batch_times, 97.0), (batch_times, math.inf)]


async def test_pull_that_fails_unexpectedly_ends_its_request(
    caplog: pytest.LogCaptureFixture,
) -> None:
    engines = {EngineName("good"): an_engine("good")}
    runner = Runner(cast("PowerModeHosts", ResidentHosts()), engines, lambda: 0.0)
    reports: list[Reports] = []
    assignments = assign(runner, reports.append)
    order = hub_pb2.Assignment(
        id=1, engine="good", count=1, configuration=common_pb2.Configuration(threads=1)
    )
    order.pull.MergeFrom(hub_pb2.Pull(token="t", worker_id="w", address="no port"))
    assignments.handle_orders(Orders([(order, [b"request"])], stops=()))
    await until(lambda: reports)
    [(ended, _)] = reports[0].ended
    assert ended.outcome == hub_pb2.OUTCOME_FAILED
    assert ended.fault == hub_pb2.FAULT_TENSORS_LOST
    assert "see the worker's log" in ended.detail
    assert [record.message for record in caplog.records] == [
        "pulling tensors from worker 'w' failed"
    ]


async def test_zeros_of_a_probe_are_held_sent_and_dropped_as_ordered() -> None:
    sent: list[Reports] = []
    runner = Runner(cast("PowerModeHosts", NeverLoadingHosts()), {}, lambda: 0.0)
    assignments = assign(runner, sent.append)
    assignments.handle_orders(
        Orders(probes=[hub_pb2.Pull(token="token")], sends=["token", "token"])
    )
    assignments.handle_orders(Orders(drops=["token"]))
    assignments.handle_orders(Orders(sends=["token"]))
    relayed = [each for reports in sent for each in reports.relayed]
    assert [sum(map(len, each.contents)) for each in relayed] == [PROBE_BYTES, PROBE_BYTES, 0]


async def test_pull_of_a_probe_from_an_agent_that_cannot_be_reached_is_given_up() -> None:
    sent: list[Reports] = []
    runner = Runner(cast("PowerModeHosts", NeverLoadingHosts()), {}, lambda: 0.0)
    assignments = assign(runner, sent.append)
    assignments.handle_orders(Orders(probes=[hub_pb2.Pull(token="token", address="127.0.0.1:1")]))
    await asyncio.sleep(0)
    assert not sent
