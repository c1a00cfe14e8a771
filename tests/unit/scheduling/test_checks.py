"""Checks: queries that run a second time on another worker."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from synergai.domain import EngineName, Fault, Job, JobId, Outcome, Session, WorkerId
from synergai.scheduling.events import (
    Assignment,
    AssignmentEnded,
    AssignmentsRevoked,
    CheckArrived,
    Command,
    EnginesChanged,
    Fail,
    Finish,
    JobArrived,
    JobCancelled,
    Revoke,
    SessionLoaded,
    Stop,
    WorkerJoined,
    WorkerLeft,
)
from tests.unit.scheduling.test_core import (
    DIGITS,
    FAST,
    dispatched,
    make_core,
    make_entry,
    make_job,
    make_worker,
)

if TYPE_CHECKING:
    from synergai.scheduling.core import SchedulerCore

A, B, C = WorkerId("a"), WorkerId("b"), WorkerId("c")


def fleet(*names: WorkerId, warm: bool = True, policy: str = "malleable") -> SchedulerCore:
    core = make_core(make_entry(FAST, 100.0, t_pre=1.0), policy=policy)
    for name in names:
        worker = make_worker(FAST, warm=warm).worker
        core.handle(WorkerJoined(replace(worker, id=name)), 0.0)
    return core


def check(core: SchedulerCore, *workers: WorkerId, name: str = "c1") -> list[Command]:
    job = Job(id=JobId(name), engine=DIGITS, queries=1, arrival=0.0, with_tensors=True)
    return core.handle(CheckArrived(job, workers), 1.0)


def request(core: SchedulerCore, name: str, now: float = 1.0) -> list[Command]:
    job = make_job(name, 1, deadline=now + 1.0, perishable=True).job
    return core.handle(JobArrived(replace(job, arrival=now, with_tensors=True), 1), now)


def complete(core: SchedulerCore, assignment: Assignment, now: float = 1.1) -> list[Command]:
    return core.handle(
        AssignmentEnded(assignment.id, assignment.count, Outcome.COMPLETED, compute_s=0.01), now
    )


@pytest.mark.parametrize("policy", ["malleable", "synergai", "lru", "edf"])
def test_check_runs_on_the_preferred_idle_worker(policy: str) -> None:
    core = fleet(A, B, C, policy=policy)
    [assignment] = dispatched(check(core, C, B))
    assert (assignment.worker_id, assignment.count, assignment.probe) == (C, 1, False)
    assert complete(core, assignment) == [Finish(JobId("c1"))]


def test_check_does_not_run_where_it_is_not_wanted() -> None:
    core = fleet(A, B)
    [assignment] = dispatched(check(core, B))
    assert assignment.worker_id == B


def test_check_waits_until_another_idle_worker_remains() -> None:
    core = fleet(A, B)
    [busy] = dispatched(request(core, "r"))
    other = B if busy.worker_id == A else A
    assert check(core, other) == []
    [finish, *rest] = complete(core, busy)
    assert finish == Finish(JobId("r"))
    [assignment] = dispatched(rest)
    assert assignment.worker_id == other


def test_check_loads_an_engine_only_if_none_of_its_workers_has_it() -> None:
    core = fleet(A, B, warm=False)
    [assignment] = dispatched(check(core, A, B))
    assert assignment.worker_id == A
    assert assignment.setup_s == 1.0
    core = fleet(A, B, C, warm=False)
    core.handle(SessionLoaded(C, Session(DIGITS, assignment.configuration)), 0.5)
    [assignment] = dispatched(check(core, B, C))
    assert assignment.worker_id == C


def test_check_waits_behind_jobs() -> None:
    core = fleet(A, B)
    first = dispatched(core.handle(make_job("long", 1000), 0.0))
    assert {each.worker_id for each in first} == {A, B}
    assert check(core, A, B) == []
    assert dispatched(complete(core, first[0], 2.0)) == []  # the other worker is still busy


def test_job_of_an_engine_that_no_worker_has_delays_no_check() -> None:
    core = fleet(A, B)
    absent = replace(make_job("absent", 5).job, engine=EngineName("absent"))
    assert dispatched(core.handle(JobArrived(absent, 5), 0.5)) == []
    assert core.queued == 1
    assert len(dispatched(check(core, B))) == 1


def test_request_that_finds_no_worker_interrupts_a_check() -> None:
    core = fleet(A, B)
    [assignment] = dispatched(check(core, B))
    [first] = dispatched(request(core, "r1"))
    assert first.worker_id == A
    commands = request(core, "r2") + request(core, "r3")
    assert Stop(assignment.id, B) in commands or dispatched(commands)
    core.handle(AssignmentEnded(assignment.id, 0, Outcome.STOPPED), 1.2)
    served = [each.job_id for each in dispatched(commands)]
    assert served == ["r2", "r3"]


def test_interrupted_check_runs_again_later() -> None:
    core = fleet(A, B)
    [assignment] = dispatched(check(core, B))
    assert dispatched(core.handle(AssignmentEnded(assignment.id, 0, Outcome.STOPPED), 1.2))


def test_failed_check_is_given_up() -> None:
    core = fleet(A, B)
    [assignment] = dispatched(check(core, B))
    ended = AssignmentEnded(assignment.id, 0, Outcome.FAILED, Fault.BAD_INPUT, "bad")
    assert core.handle(ended, 1.2) == [Fail(JobId("c1"), "bad")]
    assert core.handle(WorkerLeft(B), 1.3) == []


def test_check_ends_when_none_of_its_workers_has_the_engine_any_more() -> None:
    core = fleet(A, B, C)
    [busy] = dispatched(check(core, B, name="first"))
    assert check(core, B) == []
    commands = core.handle(EnginesChanged(B, frozenset()), 1.1)
    assert commands == [Fail(JobId("c1"), "no other worker has the engine")]
    assert complete(core, busy) == [Finish(JobId("first"))]


def test_check_of_a_lost_worker_runs_on_another() -> None:
    core = fleet(A, B, C)
    [assignment] = dispatched(check(core, B, C))
    [again] = dispatched(core.handle(WorkerLeft(B), 1.1))
    assert (assignment.worker_id, again.worker_id) == (B, C)


def test_cancelled_check_ends_without_a_command() -> None:
    core = fleet(A, B)
    [assignment] = dispatched(check(core, B))
    assert check(core, B, name="c2") == []
    assert core.handle(JobCancelled(JobId("c2")), 1.1) == []
    assert core.handle(JobCancelled(JobId("c1")), 1.1) == [Stop(assignment.id, B)]
    assert core.handle(AssignmentEnded(assignment.id, 0, Outcome.STOPPED), 1.2) == []
    assert core._leases._by_id == {}


def test_check_is_charged_to_no_tenant_and_no_part_of_the_queue() -> None:
    core = fleet(A, B)
    check(core, B)
    assert core.queued == 0
    assert core.expected_completion(JobId("c1"), 1.0) is None
    assert core.wakeup() is None


def test_revoked_assignments_run_elsewhere_and_their_reports_are_stale() -> None:
    core = fleet(A, B)
    [first] = dispatched(request(core, "r"))
    core.handle(EnginesChanged(first.worker_id, frozenset()), 1.1)
    commands = core.handle(AssignmentsRevoked(first.worker_id), 1.1)
    assert commands[0] == Revoke(first.id, first.worker_id)
    [again] = dispatched(commands)
    assert again.worker_id != first.worker_id
    assert complete(core, first) == []
    assert complete(core, again) == [Finish(JobId("r"))]
    assert core.handle(AssignmentsRevoked(WorkerId("unknown")), 1.2) == []


def test_checks_change_no_deadline_of_jobs_that_run() -> None:
    """Jobs run as without checks while the fleet is busy."""

    def ends(*, with_checks: bool) -> list[float]:
        core, now, found = fleet(A, B), 0.0, []
        running = dispatched(core.handle(make_job("long", 400, deadline=math.inf), now))
        while running:
            now += 0.5
            if with_checks:
                check_job = Job(
                    id=JobId(f"c{now}"), engine=DIGITS, queries=1, arrival=now, with_tensors=True
                )
                assert dispatched(core.handle(CheckArrived(check_job, (A, B)), now)) == []
            finished = running.pop(0)
            commands = complete(core, finished, now)
            running += [a for a in dispatched(commands) if a.job_id == "long"]
            found.append(now)
            if any(isinstance(command, Finish) for command in commands):
                break
        return found

    assert ends(with_checks=True) == ends(with_checks=False)
