"""Long queues: their order, and work per event that does not grow with them."""

import math
import sys
from collections.abc import Sequence
from random import Random
from types import FrameType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from synergai.core.scheduling import events
from synergai.core.scheduling.core import SchedulerCore
from synergai.core.scheduling.job_queue import JobQueue
from synergai.core.scheduling.lane import BLOCK, Entries
from synergai.core.scheduling.policies import POLICIES
from synergai.core.scheduling.rules.kernel import RERANKED_IN_A_ROW
from synergai.core.scheduling.settings import SchedulingSettings
from synergai.core.scheduling.state.jobs import JobRecord
from synergai.domain import EngineName, Outcome, WorkerClass
from synergai.profiles.dictionary import ConfigurationDictionary, ProfileEntry
from tests.cores import new_entry, new_job, new_record, new_request, new_worker

SERVER = WorkerClass("server")
ENGINES = [EngineName(f"engine-{number}") for number in range(3)]


def make_record(
    sequence: int,
    engine: EngineName = ENGINES[0],
    rank: float = 0.0,
    *,
    is_request: bool = False,
    **fields: object,
) -> JobRecord:
    usual = {"deadline": 1e9, "perishable": is_request}
    record = new_record(str(sequence), engine, sequence, **usual, **fields)
    record.rank = rank
    return record


# --- order ------------------------------------------------------------------------------


CHANGES = st.lists(
    st.tuples(
        st.sampled_from(["add", "add", "add", "remove", "rank", "share", "pass"]),
        st.integers(0, 1000),
        st.sampled_from([0.0, 1.0, 2.0, 3.0, 5.0, math.inf]),
        st.sampled_from(ENGINES),
        st.sampled_from(["a", "b"]),
        st.integers(0, 1),
        st.booleans(),
    ),
    max_size=60,
)


@settings(max_examples=150, deadline=None)
@given(CHANGES, st.sets(st.sampled_from(ENGINES)))
def test_the_order_is_that_of_a_sorted_list(
    changes: Sequence[tuple[str, int, float, EngineName, str, int, bool]],
    engines: set[EngineName],
) -> None:
    queue, waiting, over, now = JobQueue(), list[JobRecord](), set[str](), -1.0
    for sequence, (kind, at, rank, engine, tenant, priority, is_request) in enumerate(changes):
        match kind:
            case "add":
                record = make_record(
                    sequence,
                    rank=rank,
                    engine=engine,
                    tenant=tenant,
                    priority=priority,
                    is_request=is_request,
                )
                queue.add(record, over_share=tenant in over)
                waiting.append(record)
            case "remove" if waiting:
                queue.remove(waiting.pop(at % len(waiting)))
            case "rank" if waiting:
                record = waiting[at % len(waiting)]
                record.rank = rank
                queue.reorder(record)
            case "share":
                over ^= {tenant}
                queue.set_over_share(tenant, over_share=tenant in over)
            case "pass" if math.isfinite(rank):
                now = max(now, rank)
                queue.next_rank(now)

        def position(record: JobRecord) -> tuple[int, bool, float, int]:
            job = record.job
            return (-job.priority, job.tenant in over, record.rank, record.sequence)  # noqa: B023

        expected = sorted(waiting, key=position)
        assert list(queue.in_order()) == expected
        assert [one for one in expected if one.job.engine in engines] == list(
            queue.in_order(engines)
        )
        in_time = [one for one in expected if one.rank >= now]
        overdue = [one for one in expected if one.rank < now]
        assert list(queue.in_order(now=now)) == in_time + overdue
        assert queue.next_rank(now) == min(
            (one.rank for one in waiting if one.rank > now), default=math.inf
        )
        assert len(queue) == len(waiting)
        assert queue.requests == sum(one.is_request for one in waiting)
        assert set(queue.engines()) == {one.job.engine for one in waiting}
        firsts = dict[tuple[int, bool, EngineName], JobRecord]()
        for one in expected:
            if one.is_request:
                firsts.setdefault((*position(one)[:2], one.job.engine), one)
        assert list(queue.first_requests(now)) == list(firsts.values())


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(0, 50), max_size=1500), st.randoms(use_true_random=False))
def test_blocks_keep_a_long_lane_sorted(ranks: list[int], random: Random) -> None:
    entries = Entries()
    added = [(float(rank), at, make_record(at)) for at, rank in enumerate(ranks)]
    for entry in added:
        entries.add(entry)
    assert list(entries) == sorted(added)
    assert max((len(block.entries) for block in entries._blocks), default=0) <= 2 * BLOCK
    random.shuffle(added)
    while added:
        entries.remove(added.pop())
        if len(added) % 97 == 0:
            assert list(entries) == sorted(added)
    assert not entries._blocks


def test_first_request_is_one_that_can_be_in_time_if_there_is_any() -> None:
    queue = JobQueue()
    records = [
        make_record(number, rank=rank, is_request=True) for number, rank in enumerate((1, 9))
    ]
    for record in records:
        record.latest_start = record.rank
        queue.add(record)
    assert list(queue.first_requests(5.0)) == records[1:]
    assert list(queue.first_requests(10.0)) == records[:1]


def test_all_requests_of_a_higher_priority_are_ahead_of_a_request() -> None:
    queue = JobQueue()
    for number, (rank, priority) in enumerate([(1.0, 0), (9.0, 0), (9.0, 1)]):
        queue.add(make_record(number, rank=rank, is_request=True, priority=priority))
    further = make_record(3, rank=5.0, is_request=True)
    ahead = sorted(count for _, count in queue.requests_ahead(further, {ENGINES[0]}))
    assert ahead == [1, 1]


# --- work per event ---------------------------------------------------------------------


class Fleet:
    """A core with two workers that are never idle, and jobs of one query."""

    def __init__(self, policy: str, engines: int, jobs: int, *, deadlines: bool = True) -> None:
        self.deadlines = deadlines
        self.engines = [EngineName(f"engine-{number}") for number in range(engines)]
        # Periodic reranks have a test of their own.
        self.core = SchedulerCore(
            SchedulingSettings(policy=policy, reassess_s=1e6),
            ConfigurationDictionary(self.profile(engine, 100.0) for engine in self.engines),
        )
        self.now = 0.0
        self.jobs = 0
        self.in_flight: list[events.Assignment] = []
        self.calls = 0
        self.counts_calls = False
        for name in ("one", "two"):
            self.handle(events.WorkerJoined(new_worker(name, SERVER, self.engines)))
        while self.core.queued < jobs:
            self.submit()

    @staticmethod
    def profile(engine: EngineName, qps: float) -> ProfileEntry:
        return new_entry(engine, SERVER, qps, model_load_s=1.0)

    def handle(self, event: events.Event) -> None:
        self.now += 1e-4
        if self.counts_calls:
            sys.setprofile(self._count)
        try:
            commands = self.core.handle(event, self.now)
            self.core.wakeup()
        finally:
            sys.setprofile(None)
        for command in commands:
            match command:
                case events.Dispatch(assignment):
                    self.in_flight.append(assignment)
                case events.Stop(assignment_id):
                    self.in_flight = [a for a in self.in_flight if a.id != assignment_id]
                    self.handle(events.AssignmentEnded(assignment_id, 0, Outcome.STOPPED))

    def _count(self, _frame: FrameType, event: str, _argument: object) -> None:
        self.calls += event == "call"

    def submit(self, *, is_request: bool = False) -> None:
        self.jobs += 1
        engine = self.engines[self.jobs * 7 % len(self.engines)]
        has_deadline = self.deadlines and self.jobs % 3
        deadline = self.now + 1.0 + self.jobs * 13 % 500 if has_deadline else math.inf
        new = new_request if is_request else new_job
        self.handle(new(str(self.jobs), engine, now=self.now, deadline=deadline))

    def end(self) -> None:
        assignment = self.in_flight.pop(0)
        self.handle(events.AssignmentEnded(assignment.id, 1, Outcome.COMPLETED, compute_s=0.01))

    def calls_per_round(self, rounds: int = 60) -> float:
        """Return the calls of Python functions per arrival and end, with a constant queue."""
        jobs = self.core.queued
        self.counts_calls = True
        for number in range(rounds):
            self.submit(is_request=number % 4 == 0)
            while self.core.queued > jobs:
                self.end()
        return self.calls / rounds


@pytest.mark.parametrize("engines", [1, 100])
@pytest.mark.parametrize(
    "policy",
    # slo_mael binds and weighs all waiting jobs by definition.
    [name for name in POLICIES.names() if name != "slo_mael"],
)
def test_work_per_event_does_not_grow_with_the_queue(policy: str, engines: int) -> None:
    short = Fleet(policy, engines, 300).calls_per_round()
    long = Fleet(policy, engines, 2000).calls_per_round()
    assert long < 1.5 * short


def test_requests_that_wait_for_busy_workers_are_not_planned() -> None:
    short = Fleet("malleable", 1, 20).calls_per_round()
    long = Fleet("malleable", 1, 300).calls_per_round()
    assert short < 1.1 * long


def test_of_jobs_without_deadline_only_the_first_are_considered() -> None:
    few = Fleet("malleable", 1, 4, deadlines=False).calls_per_round()
    many = Fleet("malleable", 1, 60, deadlines=False).calls_per_round()
    assert many < 1.2 * few


def test_a_change_of_estimates_reranks_a_long_queue_over_several_events() -> None:
    fleet = Fleet("synergai", 1, 3000)
    waiting = [r for r in fleet.core.state.queue.in_order() if math.isfinite(r.job.deadline)]
    before = {record.sequence: record.rank for record in waiting}
    fleet.counts_calls = True
    fleet.handle(events.ProfilesAdded((fleet.profile(fleet.engines[0], qps=50.0),)))
    assert fleet.calls < 30 * RERANKED_IN_A_ROW
    changed = [record for record in waiting if record.rank != before[record.sequence]]
    assert 0 < len(changed) <= RERANKED_IN_A_ROW
    for _ in range(len(waiting)):
        wakeup = fleet.core.wakeup()
        if wakeup is None or not fleet.core.state.waiting._stale:
            break
        fleet.core.handle(events.TimePassed(), wakeup)
    assert all(r.rank < before[r.sequence] for r in waiting if r.queued)
    assert list(fleet.core.state.queue.in_order()) == sorted(
        fleet.core.state.queue.in_order(), key=lambda record: (record.rank, record.sequence)
    )
