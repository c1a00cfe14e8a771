"""Workers that send heartbeats but make no progress: ejection, fencing and readmission."""

import math

from msgspec.structs import replace

from synergai.domain import Outcome, WorkerId
from synergai.scheduling.core import SchedulerCore
from synergai.scheduling.events import (
    AssignmentEnded,
    AssignmentStarted,
    Command,
    Eject,
    JobArrived,
    ProgressChecked,
    QueriesDone,
    Revoke,
    SessionLoaded,
    WorkerJoined,
)
from tests.cores import dispatched
from tests.unit.scheduling.test_core import (
    FAST,
    SLOW,
    empty_core,
    make_entry,
    make_job,
    make_worker,
)

A, B = WorkerId("a"), WorkerId("b")


def join(core: SchedulerCore, *names: WorkerId, warm: bool = True) -> None:
    for name in names:
        worker = make_worker(FAST, warm=warm).worker
        core.handle(WorkerJoined(replace(worker, id=name)), 0.0)


def warmed(*names: WorkerId, t_pre: float = 0.0) -> SchedulerCore:
    """Return a core whose workers have completed a query each."""
    core = empty_core(make_entry(FAST, 100.0, t_pre=t_pre), policy="lru")
    join(core, *names)
    for name in names:
        for assignment in dispatched(core.handle(make_job(f"warm-{name}", 1), 0.0)):
            ended = AssignmentEnded(assignment.id, 1, Outcome.COMPLETED, compute_s=0.01)
            core.handle(ended, 0.01)
    return core


def check(core: SchedulerCore, now: float) -> list[Command]:
    return core.handle(ProgressChecked(), now)


def request(core: SchedulerCore, name: str, now: float) -> list[Command]:
    job = replace(
        make_job(name, 1, deadline=now + 1e6).job, arrival=now, perishable=True, with_tensors=True
    )
    return core.handle(JobArrived(job, 1), now)


def test_silent_worker_is_ejected_and_its_request_runs_elsewhere() -> None:
    core = warmed(A, B)
    [first] = dispatched(request(core, "r", 1.0))
    assert check(core, 10.0) == []
    commands = check(core, 12.0)
    assert commands[:2] == [Revoke(first.id, first.worker_id), Eject(first.worker_id, 10.0)]
    [again] = dispatched(commands)
    assert again.job_id == first.job_id
    assert again.worker_id != first.worker_id
    assert core.ejected(first.worker_id)


def test_reports_on_revoked_assignments_change_nothing() -> None:
    core = warmed(A, B)
    [first] = dispatched(request(core, "r", 1.0))
    [again] = dispatched(check(core, 12.0))
    ended = AssignmentEnded(first.id, 1, Outcome.COMPLETED, compute_s=0.01)
    assert core.handle(ended, 12.1) == []
    assert core.handle(QueriesDone(first.id, 1), 12.1) == []
    assert len(core.handle(replace(ended, assignment_id=again.id), 12.2)) == 1


def test_remaining_queries_of_a_job_return_to_the_queue() -> None:
    core = warmed(A, B)
    [first] = dispatched(core.handle(make_job("job", 1000), 1.0))
    core.handle(AssignmentStarted(first.id, 0.0), 1.0)
    core.handle(QueriesDone(first.id, 400, 4.0), 5.0)
    assert check(core, 16.0) == []  # it reported within the last 40 s x 8
    assert check(core, 30.0) == []
    [again] = dispatched(check(core, 200.0))
    assert (again.first, again.count) == (400, 600)


def test_ejected_worker_gets_nothing_until_its_pause_is_over_then_one_on_trial() -> None:
    core = warmed(A, B)
    [first] = dispatched(request(core, "r", 1.0))
    [again] = dispatched(check(core, 12.0))
    core.handle(AssignmentEnded(again.id, 1, Outcome.COMPLETED, compute_s=0.01), 12.1)
    [other] = dispatched(core.handle(make_job("long", 100_000), 12.2))
    assert other.worker_id == again.worker_id
    assert dispatched(core.handle(make_job("waits", 10_000), 12.3)) == []
    check(core, 21.0)
    assert core.ejected(first.worker_id)
    [trial] = dispatched(check(core, 22.5))
    assert trial.worker_id == first.worker_id
    assert not core.ejected(first.worker_id)
    core.handle(AssignmentStarted(trial.id, 0.0), 22.6)
    core.handle(QueriesDone(trial.id, 10, 0.1), 22.7)
    assert not core.state.fleet.workers[first.worker_id].on_trial


def test_pauses_of_a_worker_that_stays_silent_double() -> None:
    core = warmed(A, B)
    now, pauses = 1.0, []
    silent = None
    for number in range(4):
        commands = request(core, f"r{number}", now)
        [assignment] = dispatched(commands)
        silent = silent or assignment.worker_id
        if assignment.worker_id != silent:  # the other one answers
            ended = AssignmentEnded(assignment.id, 1, Outcome.COMPLETED, compute_s=0.01)
            core.handle(ended, now)
            [assignment] = dispatched(request(core, f"s{number}", now + 0.1))
        assert assignment.worker_id == silent
        commands = check(core, now + 15.0)
        [pause_s] = [c.pause_s for c in commands if isinstance(c, Eject)]
        pauses.append(pause_s)
        [again] = dispatched(commands)
        ended = AssignmentEnded(again.id, 1, Outcome.COMPLETED, compute_s=0.01)
        core.handle(ended, now + 15.1)
        now += 16.0 + pause_s
        check(core, now)
    assert pauses == [10.0, 20.0, 40.0, 80.0]


def test_only_worker_of_an_engine_is_never_ejected() -> None:
    core = warmed(A)
    request(core, "r", 1.0)
    assert check(core, 1000.0) == []


def test_first_run_on_a_worker_gets_more_time() -> None:
    core = empty_core(make_entry(FAST, 100.0), policy="lru")
    join(core, A, B)
    request(core, "first on this worker", 1.0)
    assert check(core, 50.0) == []
    assert any(isinstance(command, Eject) for command in check(core, 70.0))


def test_load_of_a_session_gets_more_time() -> None:
    core = empty_core(make_entry(FAST, 100.0, t_pre=20.0), policy="lru")
    join(core, A, B, warm=False)
    [assignment] = dispatched(request(core, "cold", 1.0))
    assert check(core, 200.0) == []
    session = core._leases.by_id[assignment.id].session
    core.handle(SessionLoaded(assignment.worker_id, session, 200.0), 201.0)
    assert check(core, 1000.0) == []  # its load showed how slow it is


def test_engine_that_is_being_measured_is_given_all_the_time_it_takes() -> None:
    core = empty_core(make_entry(FAST, 100.0), policy="lru")
    join(core, A)
    core.handle(WorkerJoined(replace(make_worker(SLOW).worker, id=B)), 0.0)
    core.handle(make_job("occupies the profiled worker", 10_000), 1.0)
    [probe] = dispatched(core.handle(make_job("job", 100), 1.0))
    assert probe.probe
    assert not any(isinstance(c, Revoke) and c.worker_id == B for c in check(core, 1e5))


def test_slow_queries_within_their_estimate_are_not_stuck() -> None:
    core = empty_core(make_entry(FAST, 0.05), policy="lru")
    join(core, A, B)
    [first] = dispatched(core.handle(make_job("slow", 5), 0.0))
    core.handle(AssignmentStarted(first.id, 0.0), 0.0)
    assert check(core, 150.0) == []


def test_it_can_be_switched_off() -> None:
    core = empty_core(make_entry(FAST, 100.0), policy="lru", stuck_s=math.inf)
    join(core, A, B)
    request(core, "r", 1.0)
    assert check(core, 1e5) == []
