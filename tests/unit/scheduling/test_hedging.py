"""Hedging: late requests that are copied to a second worker."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from synergai.domain import Fault, JobId, Outcome, WorkerId
from synergai.scheduling.events import (
    Assignment,
    AssignmentEnded,
    Command,
    Expire,
    Finish,
    JobArrived,
    JobCancelled,
    ProgressChecked,
    QueriesDone,
    Revoke,
    Stop,
    TimePassed,
    WorkerDraining,
    WorkerJoined,
    WorkerLeft,
)
from tests.cores import dispatched
from tests.unit.scheduling.test_core import (
    FAST,
    empty_core,
    make_entry,
    make_job,
    make_worker,
)

if TYPE_CHECKING:
    from synergai.scheduling.core import SchedulerCore

A, B, C = WorkerId("a"), WorkerId("b"), WorkerId("c")
POLICIES = ["malleable", "synergai", "lru", "edf"]


def fleet(
    *names: WorkerId, share: float = 1.0, policy: str = "malleable", warm: bool = True
) -> SchedulerCore:
    core = empty_core(make_entry(FAST, 100.0, t_pre=1.0), policy=policy, hedge_share=share)
    for name in names:
        worker = make_worker(FAST, warm=warm).worker
        core.handle(WorkerJoined(replace(worker, id=name)), 0.0)
    return core


def request(
    core: SchedulerCore, name: str = "r", now: float = 1.0, deadline_s: float = 10.0
) -> Assignment:
    job = make_job(name, 1, deadline=now + deadline_s, perishable=True).job
    job = replace(job, arrival=now, with_tensors=True)
    [assignment] = dispatched(core.handle(JobArrived(job, 1), now))
    return assignment


def end(core: SchedulerCore, assignment: Assignment, now: float) -> list[Command]:
    return core.handle(AssignmentEnded(assignment.id, 1, Outcome.COMPLETED, compute_s=0.01), now)


def copied(core: SchedulerCore, deadline_s: float = 10.0) -> tuple[Assignment, Assignment]:
    """Return a request that is late, and its copy."""
    first = request(core, deadline_s=deadline_s)
    wakeup = core.wakeup() or 0.0
    assert wakeup == pytest.approx(1.03)  # twice 10 ms, and a margin
    [copy] = dispatched(core.handle(TimePassed(), wakeup))
    assert copy.hedge
    assert not first.hedge
    assert copy.job_id == first.job_id
    assert copy.worker_id != first.worker_id
    return first, copy


@pytest.mark.parametrize("policy", POLICIES)
def test_copy_that_answers_first_ends_the_request_and_stops_the_other(policy: str) -> None:
    core = fleet(A, B, policy=policy)
    first, copy = copied(core)
    commands = end(core, copy, 1.04)
    assert set(commands) == {Finish(first.job_id), Stop(first.id, first.worker_id, abort=True)}
    assert core.hedges == (1, 1)
    assert end(core, first, 2.0) == []  # the late answer
    assert not core._leases._by_id


@pytest.mark.parametrize("policy", POLICIES)
def test_copy_is_stopped_if_the_first_worker_answers(policy: str) -> None:
    core = fleet(A, B, policy=policy)
    first, copy = copied(core)
    commands = end(core, first, 1.04)
    assert set(commands) == {Finish(first.job_id), Stop(copy.id, copy.worker_id, abort=True)}
    stopped = AssignmentEnded(copy.id, 0, Outcome.STOPPED)
    assert core.handle(stopped, 1.05) == []
    assert core.hedges == (1, 0)
    assert not core._leases._by_id


def test_answer_counts_before_the_assignment_has_ended() -> None:
    core = fleet(A, B)
    first, copy = copied(core)
    assert Finish(first.job_id) in core.handle(QueriesDone(first.id, 1, 0.01), 1.04)
    assert core.handle(QueriesDone(copy.id, 1, 0.01), 1.04) == []
    assert end(core, copy, 1.05) == end(core, first, 1.06) == []


def test_request_in_time_is_not_copied() -> None:
    core = fleet(A, B)
    assert end(core, request(core), 1.01) == [Finish(JobId("r"))]
    assert core.wakeup() is None
    assert core.hedges == (0, 0)


def test_nothing_is_copied_without_a_share() -> None:
    core = fleet(A, B, share=0.0)
    request(core)
    assert dispatched(core.handle(TimePassed(), 5.0)) == []


def test_copies_stay_within_their_share_of_the_requests() -> None:
    core = fleet(A, B, share=0.25)
    copies = []
    for number in range(8):
        now = 1.0 + 10.0 * number
        first = request(core, f"r{number}", now)
        if number in (2, 3, 5):
            sent = dispatched(core.handle(TimePassed(), now + 5.0))
            copies.append(len(sent))
            for assignment in sent:
                end(core, assignment, now + 5.01)
            core.handle(AssignmentEnded(first.id, 0, Outcome.STOPPED), now + 5.02)
            if not sent:
                core.handle(JobCancelled(first.job_id), now + 5.03)
                for assignment_id in core._leases._by_id.copy():
                    core.handle(AssignmentEnded(assignment_id, 0, Outcome.STOPPED), now + 5.04)
        else:
            end(core, first, now + 0.01)
    assert copies == [0, 1, 0]


def test_unused_share_is_bounded() -> None:
    core = fleet(*[WorkerId(f"w{n}") for n in range(40)])
    for number in range(100):
        end(core, request(core, f"early{number}", 1.0), 1.01)
    core.state.settings = replace(core.state.settings, hedge_share=0.001)
    for number in range(20):
        request(core, f"late{number}", 2.0)
    assert len(dispatched(core.handle(TimePassed(), 3.0))) == 10


def test_jobs_are_not_copied() -> None:
    core = fleet(A, B)
    core.handle(make_job("job", 1), 1.0)
    assert dispatched(core.handle(TimePassed(), 5.0)) == []


def test_copy_waits_for_an_idle_worker_and_leaves_it_to_waiting_work() -> None:
    core = fleet(A, B)
    first, second = request(core), request(core, "r2")
    assert dispatched(core.handle(TimePassed(), 1.1)) == []
    [copy] = dispatched(end(core, second, 1.2))
    assert (copy.job_id, copy.worker_id) == (first.job_id, second.worker_id)


@pytest.mark.parametrize("deadline_s", [0.032, 0.039])
def test_copy_that_would_come_too_late_is_not_sent(deadline_s: float) -> None:
    core = fleet(A, B)
    request(core, deadline_s=deadline_s)
    assert dispatched(core.handle(TimePassed(), 1.031)) == []


def test_copy_does_not_load_its_engine() -> None:
    core = fleet(A)
    worker = make_worker(FAST, warm=False).worker
    first = request(core)
    core.handle(WorkerJoined(replace(worker, id=B)), 1.0)
    assert dispatched(core.handle(TimePassed(), 5.0)) == []
    assert end(core, first, 5.1) == [Finish(JobId("r"))]


def test_draining_worker_gets_no_copy() -> None:
    core = fleet(A, B)
    first = request(core)
    other = B if first.worker_id == A else A
    core.handle(WorkerDraining(other), 1.0)
    assert dispatched(core.handle(TimePassed(), 1.1)) == []


def test_worker_on_trial_gets_no_copy() -> None:
    core = fleet(A, B)
    first = request(core)
    other = core.state.fleet.workers[B if first.worker_id == A else A]
    other.on_trial = True
    assert dispatched(core.handle(TimePassed(), 1.1)) == []


def test_copy_takes_the_place_of_a_request_that_lost_its_worker() -> None:
    core = fleet(A, B, C)
    first, copy = copied(core)
    assert core.handle(WorkerLeft(first.worker_id), 1.04) == []
    assert end(core, copy, 1.05) == [Finish(first.job_id)]
    assert core.queued == 0


def test_request_runs_again_if_both_workers_are_lost() -> None:
    core = fleet(A, B, C)
    first, copy = copied(core)
    core.handle(WorkerLeft(first.worker_id), 1.04)
    [again] = dispatched(core.handle(WorkerLeft(copy.worker_id), 1.05))
    assert not again.hedge
    assert end(core, again, 1.06) == [Finish(first.job_id)]


def test_copy_that_fails_changes_nothing() -> None:
    core = fleet(A, B)
    first, copy = copied(core)
    failed = AssignmentEnded(copy.id, 0, Outcome.FAILED, Fault.BAD_INPUT, "why")
    assert core.handle(failed, 1.04) == []
    assert core.handle(TimePassed(), 2.0) == []  # one copy only
    assert end(core, first, 2.1) == [Finish(first.job_id)]


def test_cancelled_and_expired_requests_stop_both() -> None:
    core = fleet(A, B)
    first, copy = copied(core)
    both = {Stop(first.id, first.worker_id, abort=True), Stop(copy.id, copy.worker_id, abort=True)}
    assert set(core.handle(JobCancelled(first.job_id), 1.1)) == both
    core = fleet(A, B)
    first, copy = copied(core)
    assert set(core.handle(TimePassed(), 20.0)) == {*both, Expire(first.job_id)}


def test_stuck_worker_is_ejected_and_its_copy_goes_on() -> None:
    core = fleet(A, B)
    first, copy = copied(core, deadline_s=1e6)
    core.handle(QueriesDone(copy.id, 0), 1e5)  # the other one gives signs of life
    assert set(core.handle(ProgressChecked(), 1e5)) >= {Revoke(first.id, first.worker_id)}
    assert core.ejected(first.worker_id)
    assert not core.ejected(copy.worker_id)
    assert end(core, copy, 1e5) == [Finish(first.job_id)]


def test_paces_learn_from_what_really_ran() -> None:
    core = fleet(A, B)
    first, copy = copied(core)
    end(core, copy, 1.04)
    core.handle(AssignmentEnded(first.id, 0, Outcome.STOPPED), 1.05)
    assert [worker for worker, _ in core.paces] == [copy.worker_id]


def test_worker_whose_requests_vary_gets_more_time() -> None:
    core = fleet(A, share=1.0)
    for number in range(200):
        now = 1.0 + number
        end(core, request(core, f"r{number}", now), now + (0.08 if number % 5 else 0.2))
    request(core, "last", 500.0)
    wakeup = core.wakeup()
    assert wakeup is not None
    assert math.isclose(wakeup, 500.2, abs_tol=0.1)


def test_hedges_are_charged_to_no_tenant(monkeypatch: pytest.MonkeyPatch) -> None:
    core = fleet(A, B)
    charged: list[float] = []
    monkeypatch.setattr(core.state.waiting, "charge", lambda _job, s: charged.append(s))
    copied(core)
    assert len(charged) == 1
