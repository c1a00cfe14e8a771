import asyncio
from collections.abc import Awaitable, Iterator

import pytest

from synergai.domain import Configuration, EngineName, Fault, Outcome, Session
from synergai.errors import EngineUnusable, InvalidInput, Unavailable
from worker_agent import ipc
from worker_agent.hosts.connection import WINDOW, Runs
from worker_agent.hosts.loads import HostLoads, LoadCrashed, LoadSuspected
from worker_agent.hosts.process import HostProcess

LARGE = bytes(ipc.INLINE_BYTES + 1)


@pytest.fixture
def arena() -> Iterator[ipc.Arena]:
    arena = ipc.Arena()
    yield arena
    arena.close()


@pytest.fixture
def runs(arena: ipc.Arena) -> Runs:
    return Runs(arena)


def add_query(runs: Runs, request: bytes, ended: list[ipc.RunEnded], variant: str = "") -> int:
    return runs.add_query(request, ended.append, None, 0.0, variant).run_id


def test_small_queries_are_limited_by_the_window_and_large_ones_by_the_arena(runs: Runs) -> None:
    for _ in range(ipc.SLOTS):
        assert runs.has_room(len(LARGE))
        add_query(runs, LARGE, [])
    assert not runs.has_room(len(LARGE))
    for _ in range(WINDOW - ipc.SLOTS):
        assert runs.has_room(1)
        add_query(runs, b"x", [])
    assert not runs.has_room(1)


def test_host_has_room_for_the_batch_that_runs_and_the_next_one(
    runs: Runs, arena: ipc.Arena
) -> None:
    arena.grow(ipc.slots_for(256))
    for _ in range(2 * 256):
        assert runs.has_room(len(LARGE))
        add_query(runs, LARGE, [])
    assert not runs.has_room(1)


def test_result_holds_the_bytes_of_a_response_in_the_arena(runs: Runs, arena: ipc.Arena) -> None:
    run_id = add_query(runs, LARGE, [])
    run = runs.by_id[run_id]
    assert run.slot is not None
    response = arena.write(run.slot, [b"answer"])
    ended = runs.settle(run, ipc.RunEnded(run_id, Outcome.COMPLETED, response=response))
    assert ended.response == b"answer"


def test_response_outside_of_the_arena_is_invalid(runs: Runs) -> None:
    run = runs.by_id[add_query(runs, b"x", [])]
    with pytest.raises(InvalidInput, match="outside of the arena"):
        runs.settle(run, ipc.RunEnded(1, Outcome.COMPLETED, response=ipc.ArenaRef(ipc.SLOTS, 1)))


class Host:
    """Records what an engine host is sent."""

    def __init__(self) -> None:
        self.orders: asyncio.Queue[ipc.Order] = asyncio.Queue()
        self.kills: list[str] = []
        self.loads = HostLoads(self.orders.put_nowait, self.kills.append)


async def failed(*tasks: Awaitable[object]) -> list[object]:
    async with asyncio.timeout(5):
        return await asyncio.gather(*tasks, return_exceptions=True)


async def load(host: Host, variant: str) -> asyncio.Task[object]:
    """Return a load that the host has begun."""
    task: asyncio.Task[object] = asyncio.create_task(host.loads.load(variant, 60.0))
    await asyncio.sleep(0)
    host.loads.receive(ipc.LoadStarted(variant))
    return task


@pytest.mark.parametrize(("has_runs", "kind"), [(True, LoadSuspected), (False, LoadCrashed)])
async def test_load_that_had_begun_is_blamed_for_the_end_of_its_host_unless_a_query_may_be(
    has_runs: bool, kind: type[Exception]
) -> None:
    host = Host()
    host.loads.receive(ipc.LoadFailed("the first"))
    begun = await load(host, "small")
    waiting = await load(host, "large")
    host.loads.receive(ipc.LoadStarted("small"))
    host.loads.fail("it died", LoadCrashed("it died while loading"), has_runs=has_runs)
    errors = await failed(begun, waiting)
    assert [type(error) for error in errors] == [kind, Unavailable]
    assert [str(error) for error in errors] == ["it died while loading", "it died"]


async def test_orders_for_one_variant_are_sent_one_after_the_other() -> None:
    host = Host()
    host.loads.receive(ipc.LoadFailed("the first"))
    first = host.loads.unload("small")
    second = asyncio.create_task(host.loads.load("small", 60.0))
    assert await host.orders.get() == ipc.UnloadVariant("small")
    assert host.orders.empty()
    host.loads.receive(ipc.VariantUnloaded("small"))
    await first
    assert await host.orders.get() == ipc.LoadVariant("small")
    host.loads.receive(ipc.LoadFailed("damaged", variant="small"))
    with pytest.raises(EngineUnusable, match="damaged"):
        await second


async def test_order_that_waits_for_another_one_fails_with_the_host() -> None:
    host = Host()
    host.loads.receive(ipc.LoadFailed("the first"))
    unload = host.loads.unload("small")
    load = asyncio.create_task(host.loads.load("small", 60.0))
    await asyncio.sleep(0)
    host.loads.fail("it died", Unavailable("it died while loading"), has_runs=False)
    errors = await failed(unload, load)
    assert [str(error) for error in errors] == ["it died", "it died"]


async def test_first_load_fails_with_the_host() -> None:
    host = Host()
    first = asyncio.create_task(host.loads.first(60.0))
    await asyncio.sleep(0)
    host.loads.fail("it died", EngineUnusable("too large"), has_runs=False)
    with pytest.raises(EngineUnusable, match="too large"):
        await first


class Child:
    """A process that can only be killed."""

    def __init__(self) -> None:
        self.killed = False

    def kill(self, _reason: str = "", _error: Exception | None = None) -> None:
        self.killed = True


async def test_run_with_an_invalid_response_ends_with_the_host(arena: ipc.Arena) -> None:
    host = HostProcess(Session(EngineName("twice"), Configuration(1)), arena, 60.0, print)
    host._child = child = Child()  # type: ignore[assignment]  # what the test needs of it
    ended: list[ipc.RunEnded] = []
    message = host._runs.add_query(b"x", ended.append, None, 0.0, "")
    invalid = ipc.RunEnded(message.run_id, Outcome.COMPLETED, response=ipc.ArenaRef(ipc.SLOTS, 1))
    host._connection.data_received(invalid.encode())
    assert child.killed
    assert not ended
    host._runs.end_all("it was killed", None)
    assert [each.fault for each in ended] == [Fault.HOST_DIED]
