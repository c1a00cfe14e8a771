"""Workers that send heartbeats but make no progress: ejection, fencing and readmission."""

import math

import pytest
from msgspec.structs import replace

from synergai.core.scheduling.core import SchedulerCore
from synergai.core.scheduling.events import (
    Assignment,
    AssignmentEnded,
    AssignmentStarted,
    Command,
    ConfigurationsUnusable,
    Eject,
    EnginesChanged,
    Fail,
    Finish,
    JobArrived,
    JobCancelled,
    ModeChanged,
    ProgressChecked,
    QueriesDone,
    Revoke,
    SessionDropped,
    SessionLoaded,
    TimePassed,
    Worker,
    WorkerJoined,
    WorkerLeft,
)
from synergai.domain import AssignmentId, EngineName, Fault, Outcome, Session, WorkerId
from tests.cores import ONE, dispatched, end, make_core, new_entry, new_job, new_worker
from tests.digits import DIGITS, FAST, SLOW, empty_core, make_entry, make_job, make_worker

A, B = WorkerId("a"), WorkerId("b")
OTHER = EngineName("other")


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
            answer(core, assignment, 0.01)
    return core


def answer(core: SchedulerCore, assignment: Assignment, now: float) -> list[Command]:
    return end(core, assignment, now, compute_s=0.01)


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
    assert answer(core, first, 12.1) == []
    assert core.handle(QueriesDone(first.id, 1), 12.1) == []
    assert len(answer(core, again, 12.2)) == 1


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
    answer(core, again, 12.1)
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


def test_worker_on_trial_cannot_take_over_from_another() -> None:
    core = warmed(A, B)
    [first] = dispatched(request(core, "r", 1.0))
    [again] = dispatched(check(core, 12.0))
    answer(core, again, 12.1)
    request(core, "s", 20.0)
    check(core, 22.5)
    assert core.state.fleet.workers[first.worker_id].on_trial
    assert check(core, 40.0) == []


def test_pauses_of_a_worker_that_stays_silent_double() -> None:
    core = warmed(A, B)
    now, pauses = 1.0, []
    silent = None
    for number in range(4):
        commands = request(core, f"r{number}", now)
        [assignment] = dispatched(commands)
        silent = silent or assignment.worker_id
        if assignment.worker_id != silent:  # the other one answers
            answer(core, assignment, now)
            [assignment] = dispatched(request(core, f"s{number}", now + 0.1))
        assert assignment.worker_id == silent
        commands = check(core, now + 15.0)
        [pause_s] = [c.pause_s for c in commands if isinstance(c, Eject)]
        pauses.append(pause_s)
        [again] = dispatched(commands)
        answer(core, again, now + 15.1)
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


# --- assignments that end without an answer ---------------------------------------------

STOPPED = AssignmentEnded(AssignmentId(0), 0, Outcome.STOPPED)
FRUITLESS = [
    STOPPED,
    *(
        AssignmentEnded(AssignmentId(0), 0, Outcome.FAILED, fault)
        for fault in Fault
        if not fault.is_of_query
    ),
]


def of_one_class(*, workers: int = 2, loaded: bool = True, **settings: object) -> SchedulerCore:
    """Return a core whose idle workers have two engines, and are preferred in order."""
    entries = [new_entry(engine, FAST, 100.0) for engine in ("digits", "other")]
    core = make_core(entries, (), policy="fifo", preload=False, **settings)
    for number in range(workers):
        core.handle(WorkerJoined(unanswering(number, loaded=loaded)), 0.0)
    return core


def unanswering(number: int = 0, *, loaded: bool = True) -> Worker:
    return new_worker("ab"[number], FAST, [DIGITS, OTHER], (ONE,), loaded=loaded)


def give_up(
    core: SchedulerCore, assignment: Assignment, now: float, how: AssignmentEnded = STOPPED
) -> list[Command]:
    return core.handle(replace(how, assignment_id=assignment.id), now)


def ejections(commands: list[Command]) -> list[Eject]:
    return [command for command in commands if isinstance(command, Eject)]


@pytest.mark.parametrize(
    "how", FRUITLESS, ids=lambda each: f"{each.outcome.name} {each.fault.name}"
)
def test_request_survives_a_worker_that_ends_each_assignment_without_an_answer(
    how: AssignmentEnded,
) -> None:
    core = of_one_class()
    now, commands, found = 1.0, request(core, "r", 1.0), []
    for _ in range(10):
        [assignment] = dispatched(commands)
        if assignment.worker_id == B:
            break
        now += 0.01
        commands = give_up(core, assignment, now, how)
        found += ejections(commands)
        core.handle(EnginesChanged(A, frozenset((DIGITS, OTHER))), now)  # it is always willing
        core.handle(ConfigurationsUnusable(A, DIGITS, frozenset()), now)
        commands += core.handle(TimePassed(), now)
    assert assignment.worker_id == B
    assert answer(core, assignment, now + 0.01)[0] == Finish(assignment.job_id)
    if found:
        assert found == [Eject(A, 10.0, DIGITS)]


def test_engine_that_a_worker_answers_is_not_ejected_with_another_one() -> None:
    core = of_one_class()
    now, found = 1.0, []
    for number in range(4):
        [other] = dispatched(core.handle(new_job(f"o{number}", OTHER, 1), now))
        assert other.worker_id == A
        answer(core, other, now)
        [assignment] = dispatched(request(core, f"r{number}", now))
        commands = give_up(core, assignment, now) if assignment.worker_id == A else []
        found += ejections(commands)
        for again in dispatched(commands):
            core.handle(JobCancelled(again.job_id), now)
            give_up(core, again, now)
        now += 0.1
    assert found == [Eject(A, 10.0, DIGITS)]


def test_ejections_of_an_engine_double_until_a_query_is_completed() -> None:
    core = of_one_class()
    now = 1.0
    pauses: list[float] = []
    for number in range(7):
        commands = request(core, f"r{number}", now)
        while (assignment := dispatched(commands)[0]).worker_id == A and len(pauses) < 3:
            commands = give_up(core, assignment, now)
            pauses += [each.pause_s for each in ejections(commands)]
        answer(core, assignment, now)
        now += pauses[-1] + 0.1
        core.handle(TimePassed(), now)
        if len(pauses) == 3:
            break
    assert pauses == [10.0, 20.0, 40.0]
    [assignment] = dispatched(request(core, "is answered", now))
    assert assignment.worker_id == A
    answer(core, assignment, now)
    assert not core.state.fleet.workers[A].observed.fruitless


def test_assignments_that_fail_together_count_once() -> None:
    core = of_one_class(workers=1, prefetch_count=64, prefetch_s=10.0)
    in_flight = [
        assignment
        for number in range(5)
        for assignment in dispatched(core.handle(make_job(f"j{number}", 1), 1.0))
    ]
    core.handle(WorkerJoined(unanswering(1)), 1.0)
    assert len(in_flight) == 5
    assert not [each for one in in_flight for each in ejections(give_up(core, one, 1.1))]


def test_worker_that_leaves_with_each_assignment_gets_no_more_of_its_engine() -> None:
    core = of_one_class()
    [assignment] = dispatched(core.handle(make_job("job", 100), 1.0))
    assert assignment.worker_id == A
    core.handle(make_job("occupies the other", 1_000_000), 1.0)
    found = []
    for number in range(3):
        now = 2.0 + number
        core.handle(WorkerLeft(A), now)
        commands = core.handle(WorkerJoined(unanswering()), now + 0.1)
        found += ejections(commands)
    assert found == [Eject(A, 10.0, DIGITS)]
    assert dispatched(commands) == []
    [assignment] = dispatched(core.handle(new_job("o", OTHER, 1), now + 0.2))
    assert assignment.worker_id == A


def test_worker_that_computes_until_each_request_expires_is_ejected() -> None:
    core = of_one_class()
    now, expired = 1.0, 0
    while now < 100.0:
        job = new_job(f"r{expired}", DIGITS, 1, arrival=now, deadline=now + 1.0, perishable=True)
        [assignment] = dispatched(core.handle(job, now))
        if assignment.worker_id == B:
            break
        now += 1.0
        core.handle(TimePassed(), now)
        give_up(core, assignment, now)
        expired += 1
    assert assignment.worker_id == B
    assert 60 < expired < 70  # as long as it may be silent


def test_bad_inputs_say_nothing_about_the_worker() -> None:
    core = of_one_class()
    for number in range(10):
        [assignment] = dispatched(request(core, f"r{number}", 1.0))
        assert assignment.worker_id == A
        failed = AssignmentEnded(assignment.id, 0, Outcome.FAILED, Fault.BAD_INPUT)
        assert ejections(core.handle(failed, 1.0)) == []


def test_request_fails_at_the_only_worker_of_its_engine_that_stops_it_unasked() -> None:
    core = of_one_class(workers=1)
    commands = request(core, "r", 1.0)
    for _ in range(3):
        [assignment] = dispatched(commands)
        commands = give_up(core, assignment, 1.0)
    [failed] = commands
    assert isinstance(failed, Fail)
    assert failed.fault is Fault.HOST_DIED
    assert "ended an assignment unasked after 0 of 1 queries" in failed.reason


@pytest.mark.parametrize("kind", ["progress", "started", "loaded", "mode"])
def test_reports_of_anything_but_completed_queries_hide_silence_no_longer(kind: str) -> None:
    core = of_one_class(loaded=kind != "loaded")
    [assignment] = dispatched(core.handle(make_job("job", 1000), 1.0))
    session = Session(DIGITS, ONE)
    now = 1.0
    found: list[Eject] = []
    while now < 2000.0 and not found:
        now += 5.0
        match kind:
            case "progress":
                core.handle(QueriesDone(assignment.id, 0, 0.1), now)
            case "started":
                core.handle(AssignmentStarted(assignment.id, 0.1), now)
            case "loaded":
                core.handle(SessionLoaded(A, session, 1.0), now)
                core.handle(SessionDropped(A, session), now)
            case _:
                core.handle(ModeChanged(A, f"mode {now}"), now)
        found = ejections(check(core, now))
    assert found == [Eject(A, 10.0)]
