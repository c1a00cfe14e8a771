"""Agents at the hub: registrations, power, heartbeats, connections, and one in its process."""

import asyncio
import hashlib
import math
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gateway.entry.access.workers import JoiningWorker
from gateway.fleet.worker import ConnectedWorker, WorkerPower
from gateway.grpc_server import RESERVED, connection_limits
from gateway.hub.connections import AgentConnection, HeartbeatMonitor
from gateway.hub.hub import joining_worker, set_removed, worker_from_registration
from gateway.monitoring.metrics import FamilyCollector, worker_families
from gateway.serve.server import LocalConnection, LocalHub
from gateway.server import Gateway
from synergai.core.scheduling.events import SessionSize
from synergai.domain import Configuration, Session
from synergai.errors import InvalidInput, Overloaded, Unauthenticated, Unavailable
from synergai.v1 import common_pb2, hub_pb2, store_pb2
from synergai.wire.agent_messages import (
    PowerDraw,
    ProtocolViolation,
    read_engine,
    read_heartbeat,
    read_registration,
)
from synergai.wire.converters import engine_to_proto
from synergai.wire.limits import HUB_VERSION
from synergai.wire.server_call import Peer, ServerCall
from synergai.wire.work_messages import Orders, Reports, decode_reports
from synergai.wire.work_transport import WorkPipe
from tests.unit.gateway.conftest import ECHO, ENGINE
from tests.waiting import turns


def register(**fields: Any) -> ConnectedWorker:
    usual = {"protocol_version": HUB_VERSION, "worker_id": "w", "worker_class": "c"}
    message = hub_pb2.Register(**{**usual, **fields})
    return worker_from_registration(read_registration(message), None, 0.0)


def joining_from(peer: Peer, token: str) -> JoiningWorker:
    message = hub_pb2.Register(
        protocol_version=HUB_VERSION, worker_id="w", worker_class="c", token=token
    )
    return joining_worker(
        read_registration(message), cast("ServerCall", SimpleNamespace(peer=peer))
    )


def test_token_of_another_machine_is_accepted_over_tls_only() -> None:
    token = "t" * 32
    with pytest.raises(Unauthenticated, match="only accepted over TLS or loopback"):
        joining_from(Peer("192.0.2.1", 1), token)
    known = hashlib.sha256(token.encode()).hexdigest()
    for peer in (Peer("192.0.2.1", 1, is_encrypted=True), Peer("127.0.0.1", 1)):
        assert joining_from(peer, token).token_sha256 == known
    assert joining_from(Peer("192.0.2.1", 1), "").token_sha256 == ""


def session(variant: str = "") -> common_pb2.Session:
    return common_pb2.Session(
        engine=ECHO, configuration=common_pb2.Configuration(threads=1, variant=variant)
    )


def register_variants(
    *variants: common_pb2.Variant, sessions: tuple[str, ...] = ()
) -> ConnectedWorker:
    """Register a worker with an engine, and sessions of its variants."""
    engine = engine_to_proto(ENGINE)
    engine.variants.extend(variants)
    return register(engines=[engine], sessions=map(session, sessions))


def variant(name: str, accuracy: float = 0.0, origin: str = "declared") -> common_pb2.Variant:
    return common_pb2.Variant(name=name, accuracy=accuracy, origin=origin)


def test_configurations_of_a_worker_name_no_variant() -> None:
    with pytest.raises(InvalidInput, match=r"threads=1,variant=full: .* name no variant"):
        register(configurations=[common_pb2.Configuration(threads=1, variant="full")])


def test_sessions_of_variants_that_the_engine_lacks_are_ignored() -> None:
    worker = register_variants(variant("full"), sessions=("full", "int8", ""))
    assert worker.sessions == {
        Session(ECHO, Configuration(1, variant="full")),
        Session(ECHO, Configuration(1)),
    }
    assert not register_variants(sessions=("full",)).sessions


def test_engine_that_was_removed_while_its_worker_was_away_is_not_offered() -> None:
    message = hub_pb2.Register(
        protocol_version=HUB_VERSION,
        worker_id="w",
        worker_class="c",
        engines=[engine_to_proto(ENGINE)],
        sessions=[session()],
        fetched=[ECHO, "unknown"],
    )
    registration = read_registration(message)
    assert registration.fetched == {ECHO}
    worker = worker_from_registration(registration, None, 0.0)
    set_removed(worker, registration.fetched)
    assert not worker.usable_engines
    assert not worker.sessions


@pytest.mark.parametrize("name", ["", ".", "a b", "int8.x", "../up", "-int8", "x" * 200])
def test_malformed_names_of_variants_are_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match="variant name"):
        register_variants(variant(name))
    if name:
        with pytest.raises(InvalidInput, match="variant name"):
            register_variants(sessions=(name,))


@pytest.mark.parametrize(
    "impossible",
    [
        (variant("full"), variant("full")),
        (variant("full", accuracy=math.nan),),
        (variant("full", accuracy=1.1),),
        (variant("full", origin="guessed"),),
        tuple(variant(f"v{number}") for number in range(33)),
    ],
    ids=["twice", "nan", "above-1", "origin", "many"],
)
def test_impossible_variants_are_refused(impossible: tuple[common_pb2.Variant, ...]) -> None:
    with pytest.raises(InvalidInput):
        register_variants(*impossible)


def test_texts_of_a_worker_are_safe_for_terminals_and_logs() -> None:
    text = "one\x1b[2J\ntwo"
    message = engine_to_proto(ENGINE)
    message.variants.add(name="full", origin="declared", digest=text)
    message.unused_variants.add(name="int8", reason=text)
    for name in ("digest", "fault", "unverified", "samples_digest"):
        setattr(message, name, text)
    engine = read_engine(message)
    texts = {engine.digest, engine.fault, engine.unverified, engine.samples_digest}
    texts |= {engine.variants[0].digest, engine.unused_variants[0].reason}
    assert texts == {"one?[2J two"}


def test_memory_of_sessions_and_cores_of_engines_reach_the_scheduler() -> None:
    engines = [engine_to_proto(ENGINE)]
    worker = register(
        engines=engines,
        session_budget_bytes=1 << 30,
        engine_cores=4,
        session_memory=[
            hub_pb2.SessionMemory(session=session(), bytes=7),
            hub_pb2.SessionMemory(session=common_pb2.Session(engine="removed"), bytes=7),
        ],
    ).to_scheduling()
    assert (worker.memory_bytes, worker.cores) == (1 << 30, 4)
    assert worker.session_sizes == (SessionSize(Session(ECHO, Configuration(1)), 7),)
    earlier = register(engines=engines).to_scheduling()
    assert (earlier.memory_bytes, earlier.cores, earlier.session_sizes) == (0, 0, ())


def draw(joules: float, watts: float = 10.0) -> PowerDraw:
    return PowerDraw(watts, joules)


def test_energy_that_decreases_is_a_violation() -> None:
    power = WorkerPower(meter="INA3221")
    power.update(draw(10.0))
    with pytest.raises(ProtocolViolation):
        power.update(draw(1.0))
    assert power.joules == 10.0


@pytest.mark.parametrize(
    "impossible",
    [
        hub_pb2.Draw(watts=1.0, joules=math.nan),
        hub_pb2.Draw(watts=math.inf, joules=1.0),
        hub_pb2.Draw(watts=-1.0, joules=1.0),
    ],
)
def test_impossible_power_is_a_violation(impossible: hub_pb2.Draw) -> None:
    with pytest.raises(ProtocolViolation):
        read_heartbeat(hub_pb2.Heartbeat(draw=impossible))


@pytest.mark.parametrize(("power_mode", "meter"), [("a mode", ""), ("", "x\n"), ("", "x" * 300)])
def test_a_registration_with_an_impossible_mode_or_meter_is_refused(
    power_mode: str, meter: str
) -> None:
    with pytest.raises(InvalidInput):
        register(power_mode=power_mode, meter=meter)


def test_metrics_cover_only_measured_machines() -> None:
    board, cloud = register(worker_id="board", meter="INA3221"), register(worker_id="cloud")
    for joules in (10.0, 14.0):
        board.power.update(draw(joules))
    collector = FamilyCollector()
    collector.add(*worker_families(lambda: [board, cloud], dict))
    collector.snapshot()
    samples = {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for metric in collector.collect()
        for sample in metric.samples
        if "watts" in sample.name or "joules" in sample.name
    }
    assert samples == {
        ("synergai_worker_power_watts", "board"): 10.0,
        ("synergai_worker_energy_joules_total", "board"): 14.0,
    }


def seen(at: float, unread_s: float = 0.0) -> tuple[AgentConnection, ConnectedWorker]:
    connection = SimpleNamespace(unread_s=lambda: unread_s)
    worker = SimpleNamespace(id="w1", last_seen_at=at)
    return cast("AgentConnection", connection), cast("ConnectedWorker", worker)


@pytest.fixture
def monitor() -> HeartbeatMonitor:
    """Return a monitor of heartbeats every second, checked until 10 s."""
    monitor = HeartbeatMonitor(1.0, 0.0)
    for half_seconds in range(1, 21):
        monitor.lost([], half_seconds * 0.5)
    return monitor


def test_worker_is_lost_once_three_heartbeats_are_missing(monitor: HeartbeatMonitor) -> None:
    silent, late, fresh = seen(7.4), seen(7.6), seen(10.4)
    reason = "no message from worker 'w1' for 3 s"
    assert monitor.lost([silent, late, fresh], 10.5) == [(*silent, reason)]


def test_worker_that_sends_heartbeats_but_takes_no_control_message_is_lost(
    monitor: HeartbeatMonitor,
) -> None:
    stuck, slow = seen(10.4, unread_s=3.1), seen(10.4, unread_s=2.9)
    reason = "worker 'w1' has taken no control message for 3 s"
    assert monitor.lost([stuck, slow], 10.5) == [(*stuck, reason)]


def test_stalled_gateway_reads_pending_messages_before_losing_workers(
    monitor: HeartbeatMonitor,
) -> None:
    silent, alive = seen(9.0), seen(9.0)
    assert monitor.lost([silent, alive], 20.0) == []
    alive[1].last_seen_at = 20.1
    assert [lost[:2] for lost in monitor.lost([silent, alive], 20.5)] == [silent]


@pytest.mark.parametrize("descriptors", [1024, 20_000, 65_536])
def test_all_connections_fit(descriptors: int) -> None:
    clients, agents = connection_limits(descriptors)
    assert RESERVED + clients + 2 * agents <= descriptors
    assert clients >= 48


HEARTBEAT = hub_pb2.AgentControl(heartbeat=hub_pb2.Heartbeat(sequence=7))


@dataclass
class FakeHub:
    """Hub and work streams of a gateway that acknowledges `messages` heartbeats."""

    messages: int = 10
    streams_ended: int = 0
    pipes: dict[str, WorkPipe] = field(default_factory=dict)
    sent: list[bytes] = field(default_factory=list)
    lacks: store_pb2.MissingContent | None = None

    async def control(
        self, requests: AsyncIterator[hub_pb2.AgentControl], _context: None
    ) -> AsyncGenerator[hub_pb2.GatewayControl, None]:
        try:
            for _ in range(self.messages):
                request = await anext(requests)
                ack = hub_pb2.HeartbeatAck(sequence=request.heartbeat.sequence)
                yield hub_pb2.GatewayControl(heartbeat_ack=ack)
        finally:
            self.streams_ended += 1

    async def receive(
        self, chunks: AsyncIterator[hub_pb2.EngineChunk]
    ) -> AsyncGenerator[store_pb2.OpenResponse, None]:
        self.sent.append((await anext(chunks)).engine.encode())
        if self.lacks is None:
            raise Overloaded("the store has no room")
        yield store_pb2.OpenResponse(missing=[self.lacks])
        self.sent += [chunk.data async for chunk in chunks]

    def serve(self, session: str, pipe: WorkPipe) -> None:
        self.pipes[session] = pipe


def gateway_of(fake: FakeHub, *, stopping: bool = False) -> Gateway:
    app = SimpleNamespace(agents=SimpleNamespace(hub=fake, work_streams=fake, copies=fake))
    gateway = SimpleNamespace(app=app, stopping=stopping, hub_address="127.0.0.1:8010")
    return cast("Gateway", gateway)


def open_hub(fake: FakeHub, *, stopping: bool = False) -> LocalHub:
    hub = LocalHub()
    hub.open(gateway_of(fake, stopping=stopping))
    return hub


async def connect(hub: LocalHub, stack: AsyncExitStack) -> LocalConnection:
    return await stack.enter_async_context(hub.connect())


async def lose(hub: LocalHub) -> None:
    """Connect, and lose the connection once a message was exchanged."""
    async with hub.connect() as connection:
        await connection.write(HEARTBEAT.SerializeToString())
        await connection.read()
        raise Unavailable("the work stream has ended")


async def test_agent_learns_that_the_gateway_closed_the_connection() -> None:
    async with open_hub(FakeHub(messages=0)).connect() as connection:
        with pytest.raises(Unavailable, match="closed the connection"):
            await connection.read()


async def test_lost_connection_is_reported_while_the_gateway_runs() -> None:
    fake = FakeHub()
    with pytest.raises(Unavailable, match="work stream"):
        await lose(open_hub(fake))
    assert fake.streams_ended == 1


async def test_connection_lost_while_the_gateway_stops_is_not_reported() -> None:
    fake = FakeHub()
    losing = asyncio.create_task(lose(open_hub(fake, stopping=True)))
    await turns()
    assert not losing.done()
    losing.cancel()
    await asyncio.wait([losing])
    assert losing.cancelled()
    assert fake.streams_ended == 1


async def test_work_is_served_over_a_pipe() -> None:
    fake = FakeHub()
    orders: list[Orders] = []
    reports: list[Reports] = []
    async with open_hub(fake).connect() as connection:
        registered = hub_pb2.Registered(session="s1")
        agent_end = await connection.open_work(registered, orders.append)
        gateway_end = fake.pipes["s1"]
        agent_end.send_message(Reports())  # too early
        gateway_end.listen(decode_reports, reports.append)
        gateway_end.send_message(Orders(stops=[1]))
        agent_end.send_message(Reports(started=[hub_pb2.Started()]))
    assert orders == [Orders(stops=[1])]
    assert reports == [Reports(started=[hub_pb2.Started()])]


async def test_engine_is_sent_as_far_as_the_store_lacks_it() -> None:
    async def read(missing: Iterable[store_pb2.MissingContent]) -> AsyncGenerator[bytes, None]:
        for each in missing:
            yield each.sha256.encode()

    fake, head = FakeHub(), hub_pb2.EngineChunk(engine="net")
    async with open_hub(fake).connect() as connection:
        with pytest.raises(Overloaded):
            await connection.send(head, read)
        fake.lacks = store_pb2.MissingContent(sha256="a")
        await connection.send(head, read)
    assert fake.sent == [b"net", b"net", b"a"]
