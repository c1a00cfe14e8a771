"""Links that are measured before a plan sends tensors over them."""

import asyncio
from typing import cast

import pytest

from gateway.deployment.probing import AGAIN_S, LOOKS, LinkProbes
from gateway.fleet.worker import (
    AssignmentProgress,
    ConnectedWorker,
    DropTensors,
    Order,
    ProbeLink,
    SendTensors,
)
from synergai.core.routes.deployment import WantedEngine
from synergai.core.routes.links import GATEWAY
from synergai.core.routes.problem import Leg, Route
from synergai.domain import AssignmentId, EngineName, WorkerId
from synergai.wire.limits import PROBE_BYTES
from synergai.wire.work_messages import RelayedTensors
from synergai.wire.work_transport import LEAST_BYTES, SentOver
from tests.clocks import FakeClock
from tests.unit.gateway.conftest import make_worker

SPEED = SentOver(1e6, 0.01)
A_TO_B = WantedEngine(name=EngineName("net"), routes=(Route((Leg("a", 0, 1), Leg("b", 1, 2))),))
ALL = [("a", "b"), ("b", GATEWAY), (GATEWAY, "a")]


class Agents:
    """Two workers with peer ports, whose agents answer probes or do not."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = FakeClock(1000.0)
        self.answers = True
        self.slept = 0
        self.workers = {WorkerId(name): self.join(name) for name in ("a", "b")}
        self.ordered: dict[str, list[Order]] = {"a": [], "b": []}
        self.probes = LinkProbes(self.workers, self.clock)
        monkeypatch.setattr(asyncio, "sleep", self.sleep)

    def join(self, name: str) -> ConnectedWorker:
        worker = make_worker(name)
        worker.peer_address = f":{name}"
        worker.peer_links = {}
        return worker

    async def sleep(self, seconds: float) -> None:
        """Let the agents answer what was ordered meanwhile."""
        self.slept += 1
        self.clock.now += seconds
        self.take()

    def take(self) -> None:
        for worker in self.workers.values():
            for order in worker.orders.get_batch_nowait():
                self.ordered[worker.id].append(order)
                if self.answers:
                    self.answer(worker, order)

    def answer(self, worker: ConnectedWorker, order: Order) -> None:
        match order:
            case RelayedTensors():
                worker.measure_link = lambda: SPEED
            case SendTensors():
                worker.received_bytes_per_s = 2e6
            case ProbeLink(held) if held.address:
                worker.peer_links = {**worker.peer_links, held.worker_id: SPEED}

    def kinds(self, name: str) -> list[type]:
        self.take()
        return [type(order) for order in self.ordered[name]]


@pytest.fixture
def agents(monkeypatch: pytest.MonkeyPatch) -> Agents:
    return Agents(monkeypatch)


async def test_unknown_links_of_routes_are_measured_and_no_others(agents: Agents) -> None:
    assert agents.probes.unknown([A_TO_B]) == ALL
    assert await agents.probes.measure([A_TO_B])
    assert agents.probes.unknown([A_TO_B]) == []
    assert agents.slept == 1 + len(ALL)
    assert agents.kinds("a") == [ProbeLink, RelayedTensors, RelayedTensors, DropTensors]
    assert agents.kinds("b") == [
        *[ProbeLink, ProbeLink],
        *[SendTensors, SendTensors],
        DropTensors,
    ]
    assert not await agents.probes.measure([A_TO_B])


def test_zeros_of_a_probe_are_enough_to_measure_and_at_most_a_mebibyte() -> None:
    assert 2 * PROBE_BYTES == LEAST_BYTES == 1 << 20


async def test_links_that_nobody_measures_are_given_up_and_tried_again_later(
    agents: Agents,
) -> None:
    agents.answers = False
    assert not await agents.probes.measure([A_TO_B])
    assert agents.slept == 1 + len(ALL) * LOOKS
    assert agents.kinds("a")[-1] is DropTensors
    assert not await agents.probes.measure([A_TO_B])
    assert agents.slept == 1 + len(ALL) * LOOKS
    agents.answers = True
    agents.clock.now += AGAIN_S
    assert await agents.probes.measure([A_TO_B])


async def test_busy_workers_are_left_alone(agents: Agents) -> None:
    busy = agents.workers[WorkerId("a")]
    busy.in_flight[AssignmentId(1)] = cast("AssignmentProgress", None)
    assert await agents.probes.measure([A_TO_B])
    assert agents.probes.unknown([A_TO_B]) == [("a", "b"), (GATEWAY, "a")]
    assert agents.kinds("a") == []


async def test_worker_whose_work_stream_has_ended_gets_no_probes(agents: Agents) -> None:
    agents.workers[WorkerId("a")].orders.close()
    assert await agents.probes.measure([A_TO_B])
    assert agents.kinds("a") == []


async def test_link_to_the_own_worker_of_the_gateway_is_not_probed(agents: Agents) -> None:
    agents.workers[WorkerId("a")].local = True
    assert agents.probes.unknown([A_TO_B]) == [("a", "b"), ("b", GATEWAY)]


async def test_workers_without_a_peer_port_are_linked_by_the_gateway(agents: Agents) -> None:
    for worker in agents.workers.values():
        worker.peer_address = ""
    assert agents.probes.unknown([A_TO_B]) == [
        ("a", GATEWAY),
        ("b", GATEWAY),
        (GATEWAY, "a"),
        (GATEWAY, "b"),
    ]


async def test_engine_that_runs_whole_and_workers_that_have_left_need_no_links(
    agents: Agents,
) -> None:
    assert agents.probes.unknown([WantedEngine(name=EngineName("net"))]) == []
    agents.workers.clear()
    assert agents.probes.unknown([A_TO_B]) == []


async def test_tensors_are_dropped_if_a_plan_is_cancelled(
    agents: Agents, monkeypatch: pytest.MonkeyPatch
) -> None:
    forever = asyncio.get_running_loop().create_future()
    monkeypatch.setattr(asyncio, "sleep", lambda _: forever)
    measuring = asyncio.ensure_future(agents.probes.measure([A_TO_B]))
    forever.cancel()
    with pytest.raises(asyncio.CancelledError):
        await measuring
    assert agents.kinds("a") == [ProbeLink, DropTensors]
