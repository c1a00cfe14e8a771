"""Sessions that are loaded before they are needed."""

from functools import partial

import pytest
from msgspec.structs import replace

from synergai.core.scheduling.core import SchedulerCore
from synergai.core.scheduling.event_log import EventLog
from synergai.core.scheduling.events import (
    AssignmentEnded,
    AssignmentStarted,
    Command,
    Dispatch,
    Event,
    JobArrived,
    JobCancelled,
    Load,
    SessionDropped,
    SessionLoaded,
    SessionSize,
    TimePassed,
    Unload,
    Worker,
    WorkerJoined,
)
from synergai.core.scheduling.registry import POLICIES
from synergai.core.scheduling.rules.kernel import SESSION_BYTES, VARIANT_BYTES, SessionSizes
from synergai.core.scheduling.rules.residency import FULL_S, PLANNED_EVERY_S, RECENT_S
from synergai.core.scheduling.settings import SchedulingSettings
from synergai.core.scheduling.state.loads import UNKNOWN_S, overdue_at
from synergai.core.scheduling.state.workers import WorkerRecord
from synergai.domain import (
    Configuration,
    EngineName,
    Job,
    JobId,
    Outcome,
    Session,
    Variant,
    WorkerClass,
    WorkerId,
)
from synergai.profiles.dictionary import ConfigurationDictionary
from tests.cores import new_entry, new_job, new_request, new_worker

FAMILY = EngineName("fashion")
PLAIN = [EngineName(f"engine-{number}") for number in range(4)]
CLASS = WorkerClass("server")
VARIANTS = {"large": (0.05, 0.90), "medium": (0.02, 0.88), "small": (0.005, 0.80)}
GIB = 1 << 30


class Fleet:
    """A core with workers on which nothing is loaded, and what it commanded."""

    def __init__(
        self,
        workers: int,
        *,
        preload: bool = False,
        memory_bytes: int = 0,
        log: EventLog | None = None,
    ) -> None:
        self.settings = SchedulingSettings(preload=preload)
        self.entries = [
            new_entry(
                FAMILY,
                CLASS,
                1.0 / seconds,
                Configuration(variant=name),
                accuracy=accuracy,
                accuracy_samples=10_000,
                backend_start_s=0.3,
                model_load_s=0.01,
            )
            for name, (seconds, accuracy) in VARIANTS.items()
        ]
        self.entries += [
            new_entry(engine, CLASS, 10.0, Configuration(), model_load_s=10.0 + number)
            for number, engine in enumerate(PLAIN)
        ]
        self.core = SchedulerCore(self.settings, ConfigurationDictionary(self.entries))
        self.log = log
        self.now = 0.0
        self.running: list[Dispatch] = []
        self.loading: list[Load] = []
        self.dropping: list[Unload] = []
        self._jobs = 0
        for number in range(workers):
            self.handle(WorkerJoined(self.worker(number, memory_bytes)))

    @staticmethod
    def worker(number: int, memory_bytes: int = 0) -> Worker:
        return new_worker(
            f"worker-{number}",
            CLASS,
            [FAMILY, *PLAIN],
            (Configuration(),),
            loaded=(),
            variants={FAMILY: tuple(Variant(name=name) for name in VARIANTS)},
            memory_bytes=memory_bytes,
            session_bytes=dict.fromkeys(PLAIN, GIB),
        )

    def handle(self, event: Event) -> list[Command]:
        commands = self.core.handle(event, self.now)
        if self.log is not None:
            self.log.record(event, self.now, commands)
        for command in commands:
            match command:
                case Dispatch():
                    self.running.append(command)
                case Load():
                    self.loading.append(command)
                case Unload():
                    self.dropping.append(command)
        return commands

    def submit(
        self, engine: EngineName, qos: float = 1e6, queries: int = 1, variant: str = ""
    ) -> None:
        self._jobs += 1
        new = new_request if queries == 1 else partial(new_job, queries=queries)
        deadline = self.now + qos
        arrived = new(str(self._jobs), engine, now=self.now, deadline=deadline, variant=variant)
        self.handle(arrived)

    def end_first(self) -> None:
        """Let an assignment load what it needs, and end: one that loads, or else the oldest."""
        self.running.sort(key=lambda dispatch: dispatch.assignment.setup_s == 0.0)
        assignment = self.running.pop(0).assignment
        session = Session(assignment.engine, assignment.configuration)
        if assignment.setup_s > 0.0:
            self.now += assignment.setup_s
            self.handle(SessionLoaded(assignment.worker_id, session, assignment.setup_s))
        seconds = assignment.count * assignment.query_s
        self.now += seconds
        ended = AssignmentEnded(
            assignment.id, assignment.count, Outcome.COMPLETED, compute_s=seconds
        )
        self.handle(ended)

    def loaded(self) -> Load:
        """Complete the oldest preload, and return it."""
        load = self.loading.pop(0)
        self.now += 0.3
        self.handle(SessionLoaded(load.worker_id, load.session, 0.3))
        return load

    def load_plain(self) -> Load:
        """Return a preload, which has just begun, of an engine without variants."""
        while not self.loading or self.loading[0].session.engine not in PLAIN:
            if self.loading:
                self.loaded()
            else:
                self.now += PLANNED_EVERY_S
                self.handle(TimePassed())
        return self.loading[0]

    def settle(self, limit: int = 100) -> list[Load]:
        loads = []
        for _ in range(limit):
            if self.running:
                self.end_first()
            elif self.dropping:
                dropped = self.dropping.pop(0)
                self.handle(SessionDropped(dropped.worker_id, dropped.session))
            elif self.loading:
                loads.append(self.loaded())
            else:
                self.now += 0.2
                self.handle(TimePassed())
                if not self.loading:
                    break
        return loads


def test_every_worker_loads_every_engine_by_default() -> None:
    fleet = Fleet(2, preload=SchedulingSettings().preload)
    loads = {(load.worker_id, load.session.engine) for load in fleet.settle()}
    assert loads == {
        (WorkerId(f"worker-{number}"), engine) for number in range(2) for engine in (FAMILY, *PLAIN)
    }


def test_nothing_is_preloaded_if_that_is_off() -> None:
    fleet = Fleet(2)
    fleet.submit(PLAIN[0])
    assert fleet.settle() == []


def test_no_engine_is_left_out_where_there_are_more_than_one_plan_looks_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("synergai.core.scheduling.rules.residency._SESSIONS", 2)
    fleet = Fleet(3, preload=True)
    assert len(fleet.settle(1000)) == 3 * len([*VARIANTS, *PLAIN])


def test_what_was_requested_is_loaded_first() -> None:
    fleet = Fleet(0, preload=True)
    fleet.submit(PLAIN[1])
    fleet.handle(JobCancelled(JobId("1")))
    fleet.handle(WorkerJoined(fleet.worker(0)))
    fleet.load_plain()
    assert [load.session.engine for load in fleet.loading] == [PLAIN[1]]


def test_job_whose_session_is_being_preloaded_waits_for_the_rest_of_the_load() -> None:
    fleet = Fleet(1, preload=True)
    load = fleet.load_plain()
    number = PLAIN.index(load.session.engine)
    fleet.now += 8.0
    fleet.submit(load.session.engine, queries=100)
    [dispatch] = fleet.running
    assert dispatch.assignment.setup_s == pytest.approx(2.0 + number)
    assert dispatch.assignment.estimate_s == pytest.approx(12.0 + number)


def test_preload_rests_while_the_worker_is_busy() -> None:
    fleet = Fleet(1, preload=True)
    load = fleet.load_plain()
    number = PLAIN.index(load.session.engine)
    other = PLAIN[number - 1]
    fleet.submit(other)
    fleet.end_first()
    fleet.now += 1.0
    fleet.submit(load.session.engine, queries=100)
    [dispatch] = fleet.running
    assert dispatch.assignment.setup_s == pytest.approx(9.0 + number)


def test_all_assignments_of_a_job_wait_for_one_load_of_their_variant() -> None:
    fleet = Fleet(1)
    job = Job(id=JobId("job"), engine=FAMILY, queries=100, arrival=0.0, variant="large")
    fleet.handle(JobArrived(job, job.queries, ((40, 60),)))
    assert [each.assignment.first for each in fleet.running] == [0, 60]
    assert [each.assignment.setup_s for each in fleet.running] == pytest.approx([0.31, 0.0])


def test_a_busy_worker_loads_nothing_ahead() -> None:
    fleet = Fleet(1, preload=True)
    first = fleet.loading.pop(0)
    fleet.handle(SessionLoaded(first.worker_id, first.session, 1.0))
    fleet.submit(first.session.engine, queries=1000)
    fleet.loading.clear()
    fleet.now += 1.0
    fleet.handle(TimePassed())
    assert [load for load in fleet.loading if load.session.engine != FAMILY] == []


def test_an_unsolicited_drop_shows_how_many_sessions_fit() -> None:
    fleet = Fleet(1, preload=True)
    first = fleet.loaded()
    fleet.now += 0.2
    fleet.handle(TimePassed())
    second = fleet.loaded()
    fleet.now += 0.2
    fleet.handle(TimePassed())
    assert len(fleet.loading) == 1
    fleet.handle(SessionDropped(first.worker_id, first.session))
    fleet.loaded()
    assert [load for load in fleet.settle() if load.session != first.session] == []
    assert second.session.engine in {FAMILY, *PLAIN}


def test_variants_are_loaded_fastest_first_on_all_workers() -> None:
    fleet = Fleet(3)
    fleet.submit(FAMILY, qos=0.2)
    served_by = fleet.running[0].assignment.worker_id
    loads = fleet.settle()
    by_worker: dict[WorkerId, list[str]] = {}
    for load in loads:
        by_worker.setdefault(load.worker_id, []).append(load.session.configuration.variant)
    assert len(by_worker) == 3
    others = [variants for worker, variants in by_worker.items() if worker != served_by]
    assert all(variants[0] == "small" for variants in others)
    fleet.submit(FAMILY, qos=0.5)
    assert fleet.running[0].assignment.configuration.variant == "large"
    assert fleet.running[0].assignment.setup_s == 0.0


def test_all_workers_of_a_large_fleet_get_their_turn() -> None:
    fleet = Fleet(70)
    fleet.submit(FAMILY, qos=0.2)
    served_by = fleet.running[0].assignment.worker_id
    loads = fleet.settle(1000)
    assert len({served_by, *(load.worker_id for load in loads)}) == 70


def test_a_hung_load_holds_back_other_workers_for_a_while_only() -> None:
    fleet = Fleet(2)
    fleet.submit(FAMILY, qos=30.0)
    fleet.submit(FAMILY, qos=30.0)
    hung = fleet.running[0].assignment
    fleet.now = overdue_at(0.0, hung.setup_s) - 0.01
    fleet.handle(TimePassed())
    assert len(fleet.running) == 1
    wakeup = fleet.core.wakeup()
    assert wakeup is not None
    fleet.now = wakeup
    fleet.handle(TimePassed())
    assert fleet.now < 3.0
    assert fleet.running[1].assignment.worker_id != hung.worker_id


def test_a_preload_that_hangs_does_not_end_the_plan() -> None:
    fleet = Fleet(3)
    fleet.submit(FAMILY)
    fleet.end_first()
    hung = fleet.loading[0]
    for _ in range(100):
        wakeup = fleet.core.wakeup()
        if wakeup is None or len(fleet.loading) > 1:
            break
        fleet.now = max(fleet.now, wakeup)
        fleet.handle(TimePassed())
    assert fleet.loading[1].worker_id != hung.worker_id
    assert fleet.now < 10.0


def test_loading_a_variant_into_a_host_says_nothing_about_starting_one() -> None:
    fleet = Fleet(1)
    sessions = [Session(FAMILY, Configuration(variant=name)) for name in VARIANTS]
    worker_id = WorkerId("worker-0")
    fleet.submit(FAMILY)
    cold_s = fleet.running[0].assignment.setup_s
    fleet.handle(SessionLoaded(worker_id, sessions[0], 0.31))
    for session in sessions[1:]:
        fleet.handle(SessionLoaded(worker_id, session, 0.01))
    fleet.end_first()
    for session in sessions:
        fleet.handle(SessionDropped(worker_id, session))
    fleet.submit(FAMILY)
    assert fleet.running[0].assignment.setup_s == pytest.approx(cold_s)


@pytest.mark.parametrize("policy", POLICIES.names())
def test_no_policy_gives_a_query_a_variant_below_its_floor(policy: str) -> None:
    fleet = Fleet(0)
    settings = SchedulingSettings(policy=policy, preload=False)
    fleet.core = SchedulerCore(settings, ConfigurationDictionary(fleet.entries))
    fast_only = {FAMILY: (Variant(name="small"),)}
    fleet.handle(WorkerJoined(replace(fleet.worker(0), variants=fast_only)))
    fleet.handle(WorkerJoined(fleet.worker(1)))
    for number in range(4):
        fleet.handle(
            new_request(
                str(number), FAMILY, fleet.now, deadline=fleet.now + 100.0, min_accuracy=0.89
            )
        )
        assert [each.assignment.configuration.variant for each in fleet.running] == ["large"]
        fleet.end_first()


@pytest.mark.parametrize(("no_room", "pause_s"), [(False, 5), (True, 60)])
def test_a_session_lost_with_its_host_is_preloaded_sooner_than_one_that_made_room(
    no_room: bool, pause_s: int
) -> None:
    fleet = Fleet(1)
    fleet.submit(FAMILY)
    fleet.end_first()
    load = fleet.loading.pop(0)
    fleet.handle(SessionLoaded(load.worker_id, load.session))
    fleet.loading.clear()
    fleet.handle(SessionDropped(load.worker_id, load.session, no_room=no_room))
    lost_at, again = fleet.now, False
    while not again and fleet.now < lost_at + 100.0:
        fleet.now += 1.0
        fleet.submit(FAMILY)
        fleet.end_first()
        for each in fleet.loading:
            again |= each.session == load.session
            fleet.handle(SessionLoaded(each.worker_id, each.session))
        fleet.loading.clear()
    assert fleet.now - lost_at == pytest.approx(pause_s, abs=1.5)


def test_a_worker_that_lacks_memory_it_should_have_gets_no_preload_for_a_while() -> None:
    fleet = Fleet(1, preload=True, memory_bytes=64 * GIB)
    load = fleet.loading.pop(0)
    fleet.handle(SessionDropped(load.worker_id, load.session, no_room=True, bytes=1))
    while not fleet.loading and fleet.now < 2 * FULL_S:
        fleet.now += 1.0
        fleet.submit(FAMILY)
        fleet.end_first()
    assert fleet.now == pytest.approx(FULL_S, abs=2.0)


def test_a_load_that_fails_is_repeated_soon_and_then_less_often() -> None:
    fleet = Fleet(1)
    fleet.submit(FAMILY)
    fleet.end_first()
    load = fleet.loading.pop(0)
    pauses = []
    for _ in range(9):
        fleet.handle(SessionDropped(load.worker_id, load.session))
        began, again = fleet.now, False
        while not again:
            fleet.now += 1.0
            fleet.submit(FAMILY)
            fleet.end_first()
            for each in fleet.loading:
                again = again or each.session == load.session
                if each.session != load.session:
                    fleet.handle(SessionLoaded(each.worker_id, each.session))
            fleet.loading.clear()
        pauses.append(fleet.now - began)
    assert pauses == pytest.approx([5, 10, 20, 40, 80, 160, 320, 600, 600], abs=1.5)


@pytest.mark.parametrize("policy", ["malleable", "synergai", "edf", "fifo"])
def test_request_that_waits_for_a_load_holds_up_no_other(policy: str) -> None:
    fleet = Fleet(0)
    settings = SchedulingSettings(policy=policy, preload=False)
    fleet.core = SchedulerCore(settings, ConfigurationDictionary(fleet.entries))
    fleet.handle(WorkerJoined(fleet.worker(1)))
    fleet.submit(FAMILY)  # which the worker loads a variant for
    loaded = Session(FAMILY, Configuration(variant="small")), Session(PLAIN[0], Configuration())
    fleet.handle(WorkerJoined(replace(fleet.worker(0), sessions=frozenset(loaded))))
    for engine, floor in ((FAMILY, 0.89), (PLAIN[0], 0.0)):  # only large, which it has not loaded
        fleet.handle(new_request(f"floor {floor}", engine, deadline=100.0, min_accuracy=floor))
    assert [each.assignment.job_id for each in fleet.running] == ["1", "floor 0.0"]
    for _ in range(4):
        fleet.end_first()
        if not fleet.running:
            break
        assert fleet.running[0].assignment.configuration.variant in ("large", "")
    assert not fleet.running


def test_a_session_dropped_while_a_job_runs_on_it_is_not_loaded_again_for_that_job() -> None:
    fleet = Fleet(0)
    large, small = (Configuration(variant=name) for name in ("large", "small"))
    worker = replace(fleet.worker(0), sessions=frozenset({Session(FAMILY, large)}))
    fleet.handle(WorkerJoined(worker))
    fleet.submit(FAMILY, queries=1000)
    assignment = fleet.running.pop().assignment
    assert assignment.configuration == large
    fleet.handle(AssignmentStarted(assignment.id, 0.0))
    fleet.handle(SessionDropped(worker.id, Session(FAMILY, large)))
    fleet.handle(JobCancelled(JobId("1")))
    fleet.handle(AssignmentEnded(assignment.id, 10, Outcome.STOPPED))
    fleet.submit(FAMILY, variant="small")
    assert [each.assignment.configuration for each in fleet.running] == [small]


def test_a_request_for_a_variant_that_is_not_loaded_holds_up_none_for_one_that_is() -> None:
    fleet = Fleet(0)
    fleet.handle(WorkerJoined(fleet.worker(1)))
    fleet.submit(FAMILY)  # which the worker loads a variant for
    loaded = frozenset({Session(FAMILY, Configuration(variant="large"))})
    fleet.handle(WorkerJoined(replace(fleet.worker(0), sessions=loaded)))
    fleet.submit(FAMILY, variant="small", qos=1.0)
    fleet.submit(FAMILY, qos=100.0)
    assert [each.assignment.job_id for each in fleet.running] == ["1", "3"]


def test_what_takes_longest_to_load_is_loaded_where_not_everything_fits() -> None:
    fleet = Fleet(1, preload=True, memory_bytes=2 * GIB + 3 * VARIANT_BYTES)
    loads = [load.session.engine for load in fleet.settle() if load.session.engine != FAMILY]
    assert loads == [PLAIN[3], PLAIN[2]]  # and not those that are loaded soonest


def test_a_session_is_dropped_with_one_command_until_the_worker_had_time_for_it() -> None:
    fleet, worker_id, unused, wanted = full_worker()
    fleet.now += 61.0
    for _ in range(20):
        fleet.now += PLANNED_EVERY_S
        fleet.handle(TimePassed())
    assert fleet.dropping == [Unload(worker_id, unused)]
    wakeup = fleet.core.wakeup()
    assert wakeup is not None
    assert fleet.now < wakeup <= fleet.now + UNKNOWN_S
    fleet.now = wakeup
    fleet.handle(TimePassed())
    assert len(fleet.dropping) == 2
    fleet.handle(SessionDropped(worker_id, unused))
    fleet.now += PLANNED_EVERY_S
    fleet.handle(TimePassed())
    assert [load.session for load in fleet.loading] == [wanted]


def full_worker() -> tuple[Fleet, WorkerId, Session, Session]:
    """Return a fleet whose worker had to drop one of its two engines, which was used, itself."""
    fleet = Fleet(0, preload=True)
    unused, wanted = plain(PLAIN[1]), plain(PLAIN[0])
    worker = replace(fleet.worker(0, GIB), engines=frozenset(PLAIN[:2]), variants={})
    fleet.handle(WorkerJoined(worker))
    assert fleet.loaded().session == unused
    fleet.submit(wanted.engine, queries=10)
    fleet.end_first()
    fleet.handle(SessionDropped(worker.id, wanted))
    return fleet, worker.id, unused, wanted


def plain(engine: EngineName) -> Session:
    return Session(engine, Configuration())


def test_an_engine_that_is_loaded_in_another_configuration_is_not_preloaded() -> None:
    fleet = Fleet(0, preload=True)
    other = Session(PLAIN[0], Configuration(4))
    worker = replace(
        fleet.worker(0), sessions=frozenset({other}), engines=frozenset({PLAIN[0]}), variants={}
    )
    fleet.handle(WorkerJoined(worker))
    assert fleet.settle() == []


def test_sizes_are_those_that_workers_of_the_class_told() -> None:
    fleet = Fleet(0, preload=True)
    told = {plain(PLAIN[0]): 1 * GIB, plain(PLAIN[1]): 2 * GIB}
    first = replace(
        fleet.worker(0, memory_bytes=0),
        session_bytes={},
        session_sizes=tuple(SessionSize(*item) for item in told.items()),
    )
    fleet.handle(WorkerJoined(first))
    fleet.handle(SessionLoaded(first.id, plain(PLAIN[2]), 1.0, 4 * GIB))
    second = replace(
        fleet.worker(1, memory_bytes=3 * GIB + SESSION_BYTES),
        engines=frozenset(PLAIN),
        session_bytes={},
        variants={},
    )
    fleet.handle(WorkerJoined(second))
    loads = [load.session.engine for load in fleet.settle() if load.worker_id == second.id]
    assert sorted(loads) == [PLAIN[0], PLAIN[1], PLAIN[3]]  # the third needs more than there is


def test_sizes_of_a_class_without_workers_are_forgotten() -> None:
    sizes = SessionSizes()
    fleet = Fleet(0)
    size = SessionSize(plain(PLAIN[0]), 7)
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
    fleet.handle(SessionDropped(WorkerId("worker-0"), plain(PLAIN[3])))


def test_what_was_used_lately_or_is_pinned_is_not_dropped_for_a_preload() -> None:
    fleet = Fleet(0, preload=True)
    used, pinned, wanted = map(plain, PLAIN[:3])
    worker = replace(
        fleet.worker(0, memory_bytes=2 * GIB),
        sessions=frozenset({used, pinned}),
        pinned=frozenset({pinned}),
    )
    fleet.handle(WorkerJoined(worker))
    for _ in range(3):
        fleet.submit(wanted.engine, queries=10)
        fleet.end_first()
    fleet.handle(SessionDropped(worker.id, wanted))
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
    fleet.handle(SessionDropped(worker_id, unused))
    wait(fleet, 0.2)
    assert [load.session for load in fleet.loading] == [wanted]


def test_a_session_that_turned_out_to_be_too_large_keeps_no_other_from_being_loaded() -> None:
    fleet = Fleet(0, preload=True)
    worker = replace(
        fleet.worker(0, 2 * GIB), engines=frozenset(PLAIN[:2]), session_bytes={}, variants={}
    )
    fleet.handle(WorkerJoined(worker))
    large = fleet.loading.pop()
    fleet.handle(SessionDropped(worker.id, large.session, no_room=True, bytes=3 * GIB))
    wait(fleet, PLANNED_EVERY_S)
    assert [load.session for load in fleet.settle()] == [plain(PLAIN[0])]
    wait(fleet, 10_000.0)
    assert fleet.settle() == []
