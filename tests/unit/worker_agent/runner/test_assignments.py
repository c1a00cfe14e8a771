from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from typing import cast

import pytest

from synergai.domain import BatchTimes, Configuration, Engine, EngineName
from synergai.v1 import common_pb2, hub_pb2
from synergai.wire.limits import PROBE_BYTES
from synergai.wire.work_messages import Orders, Reports
from tests.pulls import new_pulls
from tests.unit.worker_agent.runner.conftest import DIGITS, FakeHost, FakeHosts, engine
from tests.waiting import until
from worker_agent.exchange import HeldTensorStore
from worker_agent.hosts.power_modes import PowerModeHosts
from worker_agent.hub_client.assignments import Assignments
from worker_agent.runner import Runner

ONE_THREAD = common_pb2.Configuration(threads=1)


def assign(
    hosts: FakeHosts,
    send: Callable[[Reports], None] = lambda _: None,
    engines: Mapping[EngineName, Engine] | None = None,
) -> tuple[Assignments, Runner]:
    """Return the assignments of a worker with these hosts, by default for ``digits``."""
    if engines is None:
        engines = {DIGITS.engine: engine(DIGITS.engine)}
    runner = Runner(cast("PowerModeHosts", hosts), engines, lambda: 0.0)
    held = HeldTensorStore(0)
    pulls = new_pulls(held, send)
    return (
        Assignments(runner, send, [Configuration(1)], held, pulls, clock=lambda: 100.0),
        runner,
    )


async def test_abandoning_all_assignments_tolerates_some_ending_meanwhile(
    hosts: FakeHosts,
) -> None:
    engines = {EngineName(name): engine(name) for name in ("good", "bad")}
    assignments, runner = assign(hosts, engines=engines)
    orders = [
        hub_pb2.Assignment(id=number, engine=name, count=9, configuration=ONE_THREAD)
        for number, name in enumerate(["good", "bad", "bad", "good"])
    ]
    assignments.handle_orders(Orders([(order, ()) for order in orders], stops=()))
    engines[EngineName("bad")] = engine("bad", "found to be broken")
    assignments.abandon_all()
    assert runner.is_idle


def test_batch_budget_counts_from_receipt_of_the_assignment(
    hosts: FakeHosts, host: FakeHost
) -> None:
    assignments, _ = assign(hosts)
    alone, hurried, leisurely = (
        hub_pb2.Assignment(id=number, engine=DIGITS.engine, count=1, configuration=ONE_THREAD)
        for number in range(3)
    )
    hurried.MergeFrom(hub_pb2.Assignment(batch_s=[1, 2], budget_s=-3))
    leisurely.MergeFrom(hub_pb2.Assignment(batch_s=[1, 2]))
    for order in (alone, hurried, leisurely):
        assignments.handle_orders(Orders([(order, [b"request"])], stops=()))
    times = BatchTimes((1.0, 2.0))
    found = [(run.batch_times, run.due) for run in host.runs.values()]
    assert found == [(None, math.inf), (times, 97.0), (times, math.inf)]


async def test_pull_that_fails_unexpectedly_ends_its_request(
    hosts: FakeHosts, caplog: pytest.LogCaptureFixture
) -> None:
    reports: list[Reports] = []
    assignments, _ = assign(hosts, reports.append)
    order = hub_pb2.Assignment(id=1, engine=DIGITS.engine, count=1, configuration=ONE_THREAD)
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


async def test_zeros_of_a_probe_are_held_sent_and_dropped_as_ordered(hosts: FakeHosts) -> None:
    sent: list[Reports] = []
    assignments, _ = assign(hosts, sent.append)
    assignments.handle_orders(
        Orders(probes=[hub_pb2.Pull(token="token")], sends=["token", "token"])
    )
    assignments.handle_orders(Orders(drops=["token"]))
    assignments.handle_orders(Orders(sends=["token"]))
    relayed = [each for reports in sent for each in reports.relayed]
    assert [sum(map(len, each.contents)) for each in relayed] == [PROBE_BYTES, PROBE_BYTES, 0]


async def test_pull_of_a_probe_from_an_agent_that_cannot_be_reached_is_given_up(
    hosts: FakeHosts,
) -> None:
    sent: list[Reports] = []
    assignments, _ = assign(hosts, sent.append)
    assignments.handle_orders(Orders(probes=[hub_pb2.Pull(token="token", address="127.0.0.1:1")]))
    await asyncio.sleep(0)
    assert not sent
