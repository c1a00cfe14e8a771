"""Sessions are preloaded and dropped as far as the memory of workers suffices."""

import pytest
from msgspec.structs import replace

from synergai.core.scheduling import events
from synergai.core.scheduling.rules.kernel import SESSION_BYTES, VARIANT_BYTES, SessionSizes
from synergai.core.scheduling.rules.residency import FULL_S, PLANNED_EVERY_S, RECENT_S
from synergai.core.scheduling.state.loads import UNKNOWN_S, Loads
from synergai.core.scheduling.state.workers import WorkerRecord
from synergai.domain import Configuration, EngineName, Session, WorkerId
from tests.preloading_fleet import FAMILY, GIB, PLAIN, Fleet


def test_an_unsolicited_drop_shows_how_many_sessions_fit() -> None:
    fleet = Fleet(1, preload=True)
    first = fleet.loaded()
    fleet.now += 0.2
    fleet.handle(events.TimePassed())
    second = fleet.loaded()
    fleet.now += 0.2
    fleet.handle(events.TimePassed())
    assert len(fleet.loading) == 1
    fleet.handle(events.SessionDropped(first.worker_id, first.session))
    fleet.loaded()
    assert [load for load in fleet.settle() if load.session != first.session] == []
    assert second.session.engine in {FAMILY, *PLAIN}


def test_only_the_drop_that_a_worker_was_told_is_not_its_own_decision() -> None:
    loads, session = Loads(), Session(FAMILY, Configuration(1))
    worker_id = WorkerId("worker")
    loads.drop(worker_id, session, 0.0)
    assert not loads.dropped(worker_id, session, 1.0)
    assert loads.may_load(worker_id, session, 1.0)
    loads.loaded(worker_id, session)
    assert loads.dropped(worker_id, session, 2.0)
    assert not loads.may_load(worker_id, session, 2.0)


def test_a_worker_that_returns_is_told_at_once_to_load_what_it_could_not_before() -> None:
    loads, session = Loads(), Session(FAMILY, Configuration(1))
    worker_id = WorkerId("worker")
    assert loads.dropped(worker_id, session, 0.0)
    assert not loads.may_load(worker_id, session, 0.0)
    loads.remove_worker(worker_id)
    assert loads.may_load(worker_id, session, 0.0)


@pytest.mark.parametrize(("no_room", "pause_s"), [(False, 5), (True, 60)])
def test_a_session_lost_with_its_host_is_preloaded_sooner_than_one_that_made_room(
    no_room: bool, pause_s: int
) -> None:
    fleet = Fleet(1)
    fleet.submit(FAMILY)
    fleet.end_first()
    load = fleet.loading.pop(0)
    fleet.handle(events.SessionLoaded(load.worker_id, load.session))
    fleet.loading.clear()
    fleet.handle(events.SessionDropped(load.worker_id, load.session, no_room=no_room))
    lost_at, again = fleet.now, False
    while not again and fleet.now < lost_at + 100.0:
        fleet.now += 1.0
        fleet.submit(FAMILY)
        fleet.end_first()
        for each in fleet.loading:
            again |= each.session == load.session
            fleet.handle(events.SessionLoaded(each.worker_id, each.session))
        fleet.loading.clear()
    assert fleet.now - lost_at == pytest.approx(pause_s, abs=1.5)


def test_a_worker_that_lacks_memory_it_should_have_gets_no_preload_for_a_while() -> None:
    fleet = Fleet(1, preload=True, memory_bytes=64 * GIB)
    load = fleet.loading.pop(0)
    fleet.handle(events.SessionDropped(load.worker_id, load.session, no_room=True, bytes=1))
    while not fleet.loading and fleet.now < 2 * FULL_S:
        fleet.now += 1.0
        fleet.submit(FAMILY)
        fleet.end_first()
    assert fleet.now == pytest.approx(FULL_S, abs=2.0)


def test_what_takes_longest_to_load_is_loaded_where_not_everything_fits() -> None:
    fleet = Fleet(1, preload=True, memory_bytes=2 * GIB + 3 * VARIANT_BYTES)
    loads = [load.session.engine for load in fleet.settle() if load.session.engine != FAMILY]
    assert loads == [PLAIN[3], PLAIN[2]]  # and not those that are loaded soonest


def test_a_session_is_dropped_with_one_command_until_the_worker_had_time_for_it() -> None:
    fleet, worker_id, unused, wanted = full_worker()
    fleet.now += 61.0
    for _ in range(20):
        fleet.now += PLANNED_EVERY_S
        fleet.handle(events.TimePassed())
    assert fleet.dropping == [events.Unload(worker_id, unused)]
    wakeup = fleet.core.wakeup()
    assert wakeup is not None
    assert fleet.now < wakeup <= fleet.now + UNKNOWN_S
    fleet.now = wakeup
    fleet.handle(events.TimePassed())
    assert len(fleet.dropping) == 2
    fleet.handle(events.SessionDropped(worker_id, unused))
    fleet.now += PLANNED_EVERY_S
    fleet.handle(events.TimePassed())
    assert [load.session for load in fleet.loading] == [wanted]


def full_worker() -> tuple[Fleet, WorkerId, Session, Session]:
    """Return a fleet whose worker had to drop one of its two engines, which was used, itself."""
    fleet = Fleet(0, preload=True)
    unused, wanted = plain(PLAIN[1]), plain(PLAIN[0])
    worker = replace(fleet.worker(0, GIB), engines=frozenset(PLAIN[:2]), variants={})
    fleet.handle(events.WorkerJoined(worker))
    assert fleet.loaded().session == unused
    fleet.submit(wanted.engine, queries=10)
    fleet.end_first()
    fleet.handle(events.SessionDropped(worker.id, wanted))
    return fleet, worker.id, unused, wanted


def plain(engine: EngineName) -> Session:
    return Session(engine, Configuration())


def test_sizes_are_those_that_workers_of_the_class_told() -> None:
    fleet = Fleet(0, preload=True)
    told = {plain(PLAIN[0]): 1 * GIB, plain(PLAIN[1]): 2 * GIB}
    first = replace(
        fleet.worker(0, memory_bytes=0),
        session_bytes={},
        session_sizes=tuple(events.SessionSize(*item) for item in told.items()),
    )
    fleet.handle(events.WorkerJoined(first))
    fleet.handle(events.SessionLoaded(first.id, plain(PLAIN[2]), 1.0, 4 * GIB))
    second = replace(
        fleet.worker(1, memory_bytes=3 * GIB + SESSION_BYTES),
        engines=frozenset(PLAIN),
        session_bytes={},
        variants={},
    )
    fleet.handle(events.WorkerJoined(second))
    loads = [load.session.engine for load in fleet.settle() if load.worker_id == second.id]
    assert sorted(loads) == [PLAIN[0], PLAIN[1], PLAIN[3]]  # the third needs more than there is


def test_sizes_of_a_class_without_workers_are_forgotten() -> None:
    sizes = SessionSizes()
    fleet = Fleet(0)
    size = events.SessionSize(plain(PLAIN[0]), 7)
    worker = replace(fleet.worker(0), session_bytes={}, session_sizes=(size,))
    record = WorkerRecord(replace(worker, id=WorkerId("other")), 1, set(), set())
    sizes.add_worker(worker)
    assert sizes.of(record, size.session) == 7
    sizes.remove_worker(worker)
    assert sizes.of(record, size.session) == SESSION_BYTES


def test_a_worker_that_reports_ever_new_sessions_takes_up_no_more_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("synergai.core.scheduling.rules.kernel.MAX_REMEMBERED", 3)
    sizes = SessionSizes()
    worker = Fleet.worker(0)
    record = WorkerRecord(worker, 0, set(), set())
    sizes.add_worker(worker)
    for threads in range(1, 6):
        sizes.record(record, Session(FAMILY, Configuration(threads)), 7)
    known = [sizes.of(record, Session(FAMILY, Configuration(threads))) for threads in range(1, 6)]
    assert known == [SESSION_BYTES, SESSION_BYTES, 7, 7, 7]
    other = WorkerRecord(replace(worker, id=WorkerId("other")), 1, set(), set())
    known = [sizes.of(other, Session(FAMILY, Configuration(threads))) for threads in range(1, 6)]
    assert known == [SESSION_BYTES, SESSION_BYTES, 7, 7, 7]


def wait(fleet: Fleet, seconds: float) -> None:
    """Let time pass until something happens that makes the core plan again."""
    fleet.now += seconds
    fleet.handle(events.SessionDropped(WorkerId("worker-0"), plain(PLAIN[3])))


def test_what_was_used_lately_or_is_pinned_is_not_dropped_for_a_preload() -> None:
    fleet = Fleet(0, preload=True)
    used, pinned, wanted = map(plain, PLAIN[:3])
    worker = replace(
        fleet.worker(0, memory_bytes=2 * GIB),
        sessions=frozenset({used, pinned}),
        pinned=frozenset({pinned}),
    )
    fleet.handle(events.WorkerJoined(worker))
    for _ in range(3):
        fleet.submit(wanted.engine, queries=10)
        fleet.end_first()
    fleet.handle(events.SessionDropped(worker.id, wanted))
    fleet.now += 61.0
    fleet.submit(used.engine)
    fleet.end_first()
    wait(fleet, 1.0)
    assert fleet.dropping == []
    wait(fleet, RECENT_S)
    assert [unload.session for unload in fleet.dropping] == [used]


def test_a_worker_without_room_for_a_load_drops_what_is_worth_less() -> None:
    fleet, worker_id, unused, wanted = full_worker()
    wait(fleet, 61.0)
    assert fleet.loading == []
    assert [unload.session for unload in fleet.dropping] == [unused]
    assert not fleet.core.state.fleet.workers[worker_id].fronts  # as neither engine has variants
    fleet.handle(events.SessionDropped(worker_id, unused))
    wait(fleet, 0.2)
    assert [load.session for load in fleet.loading] == [wanted]


def test_a_session_that_turned_out_to_be_too_large_keeps_no_other_from_being_loaded() -> None:
    fleet = Fleet(0, preload=True)
    worker = replace(
        fleet.worker(0, 2 * GIB), engines=frozenset(PLAIN[:2]), session_bytes={}, variants={}
    )
    fleet.handle(events.WorkerJoined(worker))
    large = fleet.loading.pop()
    fleet.handle(events.SessionDropped(worker.id, large.session, no_room=True, bytes=3 * GIB))
    wait(fleet, PLANNED_EVERY_S)
    assert [load.session for load in fleet.settle()] == [plain(PLAIN[0])]
    wait(fleet, 10_000.0)
    assert fleet.settle() == []
