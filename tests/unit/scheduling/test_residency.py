"""Sessions that are loaded before they are needed."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

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
from synergai.profiles.dictionary import ConfigurationDictionary, ProfileEntry
from synergai.scheduling.core import SchedulerCore
from synergai.scheduling.event_log import EventLog, replay
from synergai.scheduling.events import (
    AssignmentEnded,
    Dispatch,
    JobArrived,
    Load,
    SessionDropped,
    SessionLoaded,
    TimePassed,
    Unload,
    Worker,
    WorkerJoined,
    WorkerLeft,
)
from synergai.scheduling.residency import VARIANT_BYTES
from synergai.scheduling.settings import SchedulingSettings

if TYPE_CHECKING:
    from pathlib import Path

    from synergai.scheduling.events import Command, Event

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
        load_ahead: str = "never",
        memory_bytes: int = 0,
        log: EventLog | None = None,
    ) -> None:
        self.settings = SchedulingSettings(
            load_ahead=load_ahead  # type: ignore[arg-type]  # one of the literals
        )
        self.entries = [
            ProfileEntry(
                engine=FAMILY,
                worker_class=CLASS,
                configuration=Configuration(variant=name),
                qps=1.0 / seconds,
                accuracy=accuracy,
                accuracy_samples=10_000,
                backend_start_s=0.3,
                model_load_s=0.01,
            )
            for name, (seconds, accuracy) in VARIANTS.items()
        ]
        self.entries += [
            ProfileEntry(
                engine=engine,
                worker_class=CLASS,
                configuration=Configuration(),
                qps=10.0,
                model_load_s=10.0 + number,
            )
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
        return Worker(
            id=WorkerId(f"worker-{number}"),
            worker_class=CLASS,
            engines=frozenset({FAMILY, *PLAIN}),
            configurations=(Configuration(),),
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

    def submit(self, engine: EngineName, qos: float = 1e6, queries: int = 1) -> None:
        self._jobs += 1
        job = Job(
            id=JobId(str(self._jobs)),
            engine=engine,
            queries=queries,
            arrival=self.now,
            deadline=self.now + qos,
            perishable=queries == 1,
            with_tensors=queries == 1,
        )
        self.handle(JobArrived(job, queries))

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
        """Complete the oldest load ahead, and return it."""
        load = self.loading.pop(0)
        self.now += 0.3
        self.handle(SessionLoaded(load.worker_id, load.session, 0.3))
        return load

    def settle(self, limit: int = 100) -> list[Load]:
        """Complete everything, and return the loads ahead."""
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


def test_nothing_is_loaded_ahead_by_default() -> None:
    fleet = Fleet(2)
    fleet.submit(PLAIN[0])
    assert fleet.settle() == []


def test_idle_workers_load_what_was_requested() -> None:
    fleet = Fleet(3, load_ahead="requested")
    fleet.submit(PLAIN[1], queries=10)
    loads = fleet.settle()
    assert {load.session.engine for load in loads} == {PLAIN[1]}
    workers = {load.worker_id for load in loads}
    assert len(workers) == len(loads)
    fleet.submit(PLAIN[1])
    assert fleet.running[0].assignment.setup_s == 0.0


def test_a_busy_worker_loads_nothing_ahead() -> None:
    fleet = Fleet(1, load_ahead="all")
    first = fleet.loading.pop(0)
    fleet.handle(SessionLoaded(first.worker_id, first.session, 1.0))
    fleet.submit(first.session.engine, queries=1000)
    fleet.loading.clear()
    fleet.now += 1.0
    fleet.handle(TimePassed())
    assert [load for load in fleet.loading if load.session.engine != FAMILY] == []


def test_all_engines_are_loaded_as_far_as_memory_suffices() -> None:
    fleet = Fleet(1, load_ahead="all", memory_bytes=2 * GIB + 3 * VARIANT_BYTES)
    loads = [load for load in fleet.settle() if load.session.engine != FAMILY]
    assert len(loads) == 2
    # A request makes an engine more likely than one that was loaded.
    wanted = next(each for each in PLAIN if each not in {load.session.engine for load in loads})
    worker = fleet.core._fleet.workers[WorkerId("worker-0")]
    fleet.submit(wanted, queries=10)
    fleet.running.clear()
    sessions = [each for each in worker.sessions if each.engine in PLAIN]
    assert len(sessions) <= 2


def test_an_unsolicited_drop_shows_how_many_sessions_fit() -> None:
    fleet = Fleet(1, load_ahead="all")
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


def test_a_load_that_fails_is_not_repeated_at_once() -> None:
    fleet = Fleet(1)
    fleet.submit(FAMILY)
    fleet.end_first()
    load = fleet.loading.pop(0)
    fleet.handle(SessionDropped(load.worker_id, load.session))
    fleet.now += 1.0
    fleet.handle(TimePassed())
    assert load not in fleet.loading
    fleet.now += 100.0
    fleet.submit(FAMILY)
    assert load in fleet.loading


def loads_at_once(path: Path) -> int:
    """Return how many loads of the family were in flight at most, from an event log alone."""
    loading: set[tuple[WorkerId, Session]] = set()
    in_line: dict[int, tuple[WorkerId, Session]] = {}
    resident: set[tuple[WorkerId, Session]] = set()
    most = 0
    for step in replay(path, time.thread_time):
        assert step.recorded == step.replayed
        match step.event:
            case SessionLoaded(worker_id, session):
                loading.discard((worker_id, session))
                resident.add((worker_id, session))
            case SessionDropped(worker_id, session):
                loading.discard((worker_id, session))
                resident.discard((worker_id, session))
            case AssignmentEnded(assignment_id):
                loading.discard(in_line.pop(assignment_id, (WorkerId(""), Session(FAMILY, _NONE))))
            case WorkerLeft(worker_id):
                loading = {each for each in loading if each[0] != worker_id}
                resident = {each for each in resident if each[0] != worker_id}
        for command in step.recorded:
            key: tuple[WorkerId, Session] | None = None
            if isinstance(command, Load):
                key = command.worker_id, command.session
            elif isinstance(command, Dispatch):
                done = command.assignment
                key = done.worker_id, Session(done.engine, done.configuration)
                in_line[done.id] = key
            if key is not None and key[1].engine == FAMILY and key not in resident:
                loading.add(key)
        most = max(most, len(loading))
    return most


_NONE = Configuration()


@pytest.mark.parametrize("seed", range(5))
def test_a_family_never_loads_twice_at_once(tmp_path: Path, seed: int) -> None:
    import random

    chance = random.Random(seed)
    entries = ConfigurationDictionary(Fleet(0).entries)
    path = tmp_path / "log"
    with EventLog(path, SchedulingSettings(), entries, epoch=0) as log:
        fleet = Fleet(4, log=log)
        for _ in range(300):
            fleet.now += chance.expovariate(50.0)
            roll = chance.random()
            if roll < 0.4:
                fleet.submit(FAMILY, qos=chance.choice((0.1, 0.5, 5.0, 1e6)))
            elif roll < 0.75 and fleet.running:
                fleet.end_first()
            elif roll < 0.93 and fleet.loading:
                fleet.loaded()
            elif roll < 0.96:
                number = chance.randrange(4)
                gone = WorkerId(f"worker-{number}")
                fleet.handle(WorkerLeft(gone))
                fleet.running = [e for e in fleet.running if e.assignment.worker_id != gone]
                fleet.loading = [each for each in fleet.loading if each.worker_id != gone]
                fleet.handle(WorkerJoined(fleet.worker(number)))
            else:
                fleet.handle(TimePassed())
    assert loads_at_once(path) == 1


@pytest.mark.parametrize("policy", ["malleable", "synergai", "edf", "fifo"])
def test_request_that_waits_for_a_load_holds_up_no_other(policy: str) -> None:
    fleet = Fleet(0)
    settings = SchedulingSettings(policy=policy)
    fleet.core = SchedulerCore(settings, ConfigurationDictionary(fleet.entries))
    fleet.handle(WorkerJoined(fleet.worker(1)))
    fleet.submit(FAMILY)  # which the worker loads a variant for
    loaded = Session(FAMILY, Configuration(variant="small")), Session(PLAIN[0], Configuration())
    fleet.handle(WorkerJoined(replace(fleet.worker(0), sessions=frozenset(loaded))))
    for engine, floor in ((FAMILY, 0.89), (PLAIN[0], 0.0)):  # only large, which it has not loaded
        job = Job(
            id=JobId(f"floor {floor}"),
            engine=engine,
            queries=1,
            arrival=0.0,
            deadline=100.0,
            perishable=True,
            with_tensors=True,
            min_accuracy=floor,
        )
        fleet.handle(JobArrived(job, 1))
    assert [each.assignment.job_id for each in fleet.running] == ["1", "floor 0.0"]
    for _ in range(4):
        fleet.end_first()
        if not fleet.running:
            break
        assert fleet.running[0].assignment.configuration.variant in ("large", "")
    assert not fleet.running
