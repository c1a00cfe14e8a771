"""Assignments that fail: what is retried, when, and what fails the job."""

from msgspec.structs import replace

from synergai.core.scheduling import events
from synergai.core.scheduling.core import SchedulerCore
from synergai.domain import Fault, JobId, Outcome, WorkerId
from tests.cores import dispatched, end, wakeup_of
from tests.digits import (
    FAST,
    FAST_1,
    SLOW_1,
    both_core,
    fast_core,
    make_entry,
    make_job,
    make_worker,
)


def test_lost_workers_reported_queries_stay_done_and_the_rest_runs_elsewhere() -> None:
    core = both_core()
    [lost] = dispatched(core.handle(make_job("a", 100), 0.0))
    core.handle(events.QueriesDone(lost.id, 40), 0.4)
    [rest] = dispatched(core.handle(events.WorkerLeft(FAST_1), 0.5))
    assert (rest.worker_id, rest.first, rest.count) == (SLOW_1, 40, 60)
    assert rest.id > lost.id
    assert core._leases.by_id.get(lost.id) is None
    assert end(core, lost, 0.6) == []
    assert end(core, rest, 7.0) == [events.Finish(JobId("a"))]


def test_bad_input_fails_the_job_without_retry() -> None:
    core = fast_core()
    [assignment] = dispatched(core.handle(make_job("a", 1), 0.0))
    ended = events.AssignmentEnded(assignment.id, 0, Outcome.FAILED, Fault.BAD_INPUT, "wrong shape")
    assert core.handle(ended, 0.1) == [events.Fail(JobId("a"), "wrong shape", Fault.BAD_INPUT)]


def test_engine_broken_on_one_worker_runs_on_another() -> None:
    core = both_core()
    [assignment] = dispatched(core.handle(make_job("a", 10), 0.0))
    ended = events.AssignmentEnded(assignment.id, 0, Outcome.FAILED, Fault.ENGINE_BROKEN, "corrupt")
    [again] = dispatched(core.handle(ended, 0.1))
    assert again.worker_id == SLOW_1


def test_premature_completion_report_counts_as_a_fault() -> None:
    core = fast_core(max_faults=2)
    [first] = dispatched(core.handle(make_job("a", 10), 0.0))
    [second] = dispatched(end(core, first, 0.1, done=4))
    assert (second.first, second.count) == (4, 6)
    [failed] = core.handle(events.AssignmentEnded(second.id, 0, Outcome.COMPLETED), 0.2)
    assert isinstance(failed, events.Fail)
    assert failed.reason == "worker fast-1 ended an assignment unasked after 0 of 6 queries"


def fail_host(
    core: SchedulerCore, assignment: events.Assignment, done: int, now: float
) -> list[events.Command]:
    return core.handle(
        events.AssignmentEnded(assignment.id, done, Outcome.FAILED, Fault.HOST_DIED, "it died"), now
    )


def test_faults_with_progress_in_between_never_fail_a_job() -> None:
    core = fast_core()
    [assignment] = dispatched(core.handle(make_job("a", 1000), 0.0))
    for number in range(20):
        [assignment] = dispatched(fail_host(core, assignment, 10, 1.0 + number))
    assert assignment.first == 200


def test_progress_of_another_assignment_counts_as_well() -> None:
    core = fast_core(max_faults=2, policy="malleable")
    core.handle(events.WorkerJoined(replace(make_worker(FAST).worker, id=WorkerId("fast-2"))), 0.0)
    one, two = dispatched(core.handle(make_job("a", 10_000), 0.0))
    [one] = dispatched(fail_host(core, one, 0, 1.0))
    core.handle(events.QueriesDone(two.id, 10), 1.5)
    [one] = dispatched(fail_host(core, one, 0, 2.0))
    core.handle(events.WorkerDraining(WorkerId("fast-2")), 2.5)  # the engine is not ejected instead
    [failed, *_] = [c for c in fail_host(core, one, 0, 3.0) if isinstance(c, events.Fail)]
    assert failed.job_id == "a"


def test_assignments_that_a_host_takes_with_it_count_as_one_fault() -> None:
    core = fast_core(make_entry(FAST, 10_000.0), max_faults=2)
    arrived = replace(make_job("a", 50), done=((10, 20), (30, 40)))
    lost = dispatched(core.handle(arrived, 0.0))
    assert len(lost) == 3
    for assignment in lost:
        again = dispatched(fail_host(core, assignment, 0, 1.0))
    assert again
    [failed, *_] = [c for c in fail_host(core, again[0], 0, 2.0) if isinstance(c, events.Fail)]
    assert failed.job_id == "a"


def test_retries_without_progress_pause_longer_each_time() -> None:
    core = fast_core(max_faults=5)
    [assignment] = dispatched(core.handle(make_job("a", 100), 0.0))
    now, pauses = 0.0, []
    [assignment] = dispatched(fail_host(core, assignment, 0, now))
    for _ in range(3):
        assert fail_host(core, assignment, 0, now) == []
        assert core.queued == 0
        wakeup = wakeup_of(core)
        pauses.append(wakeup - now)
        now = wakeup
        [assignment] = dispatched(core.handle(events.TimePassed(), now))
    assert pauses == [1.0, 2.0, 4.0]
    assert [type(command) for command in fail_host(core, assignment, 0, now)] == [events.Fail]
    assert core.wakeup() is None


def test_jobs_that_pause_can_be_cancelled_and_let_others_run() -> None:
    core = fast_core(max_faults=5)
    [assignment] = dispatched(core.handle(make_job("a", 100), 0.0))
    [assignment] = dispatched(fail_host(core, assignment, 0, 0.0))
    fail_host(core, assignment, 0, 0.0)
    [other] = dispatched(core.handle(make_job("b", 100), 0.1))
    assert other.job_id == "b"
    core.handle(events.JobCancelled(JobId("a")), 0.2)
    end(core, other, 0.3)
    assert core.wakeup() is None


def test_requests_are_retried_without_a_pause() -> None:
    core = fast_core(max_faults=4)
    job = replace(make_job("a", 1, deadline=60.0).job, perishable=True, with_tensors=True)
    [assignment] = dispatched(core.handle(events.JobArrived(job, 1), 0.0))
    for _ in range(3):
        [assignment] = dispatched(fail_host(core, assignment, 0, 0.0))
