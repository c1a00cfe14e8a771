"""Which job runs where, and when."""

import math
from typing import Any

import pytest
from msgspec.structs import replace

from synergai.core.scheduling.events import (
    AssignmentEnded,
    AssignmentStarted,
    Expire,
    Finish,
    JobArrived,
    JobCancelled,
    QueriesDone,
    Reject,
    Stop,
    TimePassed,
)
from synergai.core.scheduling.state.jobs import Lease
from synergai.core.scheduling.state.workers import WorkerRecord
from synergai.domain import Configuration, EngineName, JobId, Outcome, Session
from tests.cores import (
    ONE,
    dispatched,
    end,
    new_assignment,
    new_record,
    new_worker,
    started,
    wakeup_of,
)
from tests.digits import (
    DIGITS,
    FAST,
    FAST_1,
    SLOW_1,
    TWO,
    both_core,
    empty_core,
    fast_core,
    make_entry,
    make_job,
    make_worker,
)


def test_job_goes_to_the_fastest_acceptable_worker() -> None:
    core = both_core()
    [assignment] = dispatched(core.handle(make_job("a", 50, deadline=10.0), 0.0))
    assert assignment.worker_id == FAST_1
    assert (assignment.first, assignment.count) == (0, 50)
    assert assignment.estimate_s == 0.5


def test_occupied_best_worker_yields_to_the_next_best_acceptable_one() -> None:
    core = both_core()
    core.handle(make_job("a", 500, deadline=10.0), 0.0)
    [assignment] = dispatched(core.handle(make_job("b", 50, deadline=10.0), 0.0))
    assert assignment.worker_id == SLOW_1


def test_job_waits_for_an_acceptable_worker_instead_of_missing_its_deadline() -> None:
    core = both_core()
    [first] = dispatched(core.handle(make_job("a", 500, deadline=100.0), 0.0))
    assert dispatched(core.handle(make_job("b", 50, deadline=4.9), 0.0)) == []
    commands = end(core, first, 4.0)
    assert commands[0] == Finish(JobId("a"))
    [assignment] = dispatched(commands)
    assert assignment.worker_id == FAST_1


TENANT = {"tenant": "greedy"}


@pytest.mark.parametrize(
    ("running", "waiting"),
    [
        ({}, {"loose": {"deadline": 40.0}, "next": {"queries": 300, "deadline": 25.0}}),
        ({}, {"tight": {"deadline": 23.0}, "next": {"deadline": 70.0, "priority": 5}}),
        (TENANT, {"more": {"deadline": 25.0} | TENANT, "next": {"deadline": 90.0}}),
        (TENANT, {"next": TENANT}),
    ],
    ids=["least slack", "higher priority", "tenant within its share", "only tenant"],
)
def test_next_job_is_that_of_the_rule_regardless_of_arrival_order(
    running: dict[str, Any], waiting: dict[str, dict[str, Any]]
) -> None:
    core = fast_core(fair_burst_s=5.0)
    [first] = dispatched(core.handle(make_job("running", 2000, **running), 0.0))
    for name, fields in waiting.items():
        core.handle(make_job(name, **({"queries": 100} | fields)), 0.0)
    [following] = dispatched(end(core, first, 20.0))
    assert following.job_id == "next"


def test_doomed_job_runs_after_all_feasible_jobs() -> None:
    core = fast_core()
    [running] = dispatched(core.handle(make_job("running", 100), 0.0))
    core.handle(make_job("doomed", 300, deadline=0.5), 0.0)
    core.handle(make_job("met", 100, deadline=50.0), 0.0)
    [second] = dispatched(end(core, running, 1.0))
    assert second.job_id == "met"
    [third] = dispatched(end(core, second, 2.0))
    assert third.job_id == "doomed"


def test_job_that_becomes_doomed_while_waiting_takes_any_worker() -> None:
    core = both_core()
    core.handle(make_job("long", 1000, deadline=100.0), 0.0)
    core.handle(make_job("tight", 50, deadline=3.0), 0.0)
    wakeup = wakeup_of(core)
    assert math.isclose(wakeup, 2.5)
    [assignment] = dispatched(core.handle(TimePassed(), wakeup))
    assert (assignment.job_id, assignment.worker_id) == (JobId("tight"), SLOW_1)


def test_infeasible_job_is_rejected_if_so_configured() -> None:
    core = fast_core(infeasible="reject")
    [command] = core.handle(make_job("late", 100, deadline=0.5), 0.0)
    reason = "no worker can meet the deadline: the fastest needs 1 s, 0.5 s remain"
    assert command == Reject(JobId("late"), reason)


def test_configuration_with_the_highest_profiled_qps_is_used() -> None:
    core = fast_core(make_entry(FAST, 100.0, ONE), make_entry(FAST, 170.0, TWO))
    [assignment] = dispatched(core.handle(make_job("a", 10), 0.0))
    assert assignment.configuration == TWO


def test_load_time_is_charged_only_while_the_session_is_cold() -> None:
    core = empty_core(make_entry(FAST, 100.0, t_pre=3.0))
    core.handle(make_worker(FAST, warm=False), 0.0)
    [cold] = dispatched(core.handle(make_job("a", 100), 0.0))
    assert (cold.setup_s, cold.estimate_s) == (3.0, 4.0)
    core.handle(AssignmentStarted(cold.id, 3.0), 3.0)
    end(core, cold, 4.0)
    [warm] = dispatched(core.handle(make_job("b", 100), 4.0))
    assert (warm.setup_s, warm.estimate_s) == (0.0, 1.0)


def test_setup_in_which_an_assignment_was_stopped_is_paid_again() -> None:
    for keeps_sessions in (False, True):
        core = empty_core(make_entry(FAST, 100.0, t_pre=3.0))
        joined = make_worker(FAST, warm=False)
        worker = replace(joined.worker, keeps_sessions=keeps_sessions)
        core.handle(replace(joined, worker=worker), 0.0)
        [stopped] = dispatched(core.handle(make_job("a", 100), 0.0))
        [again] = dispatched(end(core, stopped, 2.0, Outcome.STOPPED, done=0))
        assert again.setup_s == 3.0


def test_worker_is_set_up_for_the_job_whose_assignment_is_its_last() -> None:
    worker = WorkerRecord(new_worker("w", FAST, [DIGITS]), 0, set(), set())
    session = Session(EngineName(DIGITS), Configuration(1))
    jobs = [new_record(name, DIGITS) for name in ("running", "stopped")]
    leases = [
        Lease(new_assignment(number, DIGITS, "w"), job, None, 1.0, 0.0, session)
        for number, job in enumerate(jobs)
    ]
    for lease in leases:
        worker.append(lease, 0.0)
    worker.remove(leases[1], 0.0)
    assert [worker.is_set_up_for(job, 0.0) for job in jobs] == [True, False]


def test_cancelled_job_is_stopped_and_its_worker_freed_when_it_reports_the_end() -> None:
    core = fast_core()
    [running] = dispatched(core.handle(make_job("a", 1000), 0.0))
    core.handle(make_job("b", 10), 0.0)
    [stop, *_] = core.handle(JobCancelled(JobId("a")), 1.0)
    assert stop == Stop(running.id, FAST_1, abort=True)
    core.handle(AssignmentEnded(running.id, 100, Outcome.STOPPED), 1.1)
    assert core.queued == 0


def test_small_assignments_are_prefetched_by_a_nearly_idle_worker() -> None:
    core = fast_core(make_entry(FAST, 1000.0), prefetch_s=0.005)
    sent = [dispatched(core.handle(make_job(str(i), 1), 0.0)) for i in range(10)]
    assert [len(s) for s in sent] == [1] * 6 + [0] * 4


def test_deadline_of_a_finished_request_does_not_expire_a_later_one_with_its_id() -> None:
    core = fast_core(strict=True)
    [first] = dispatched(core.handle(make_job("r", 1, deadline=2.0, perishable=True), 0.0))
    end(core, first, 0.1)
    core.handle(make_job("running", 10_000), 0.2)
    core.handle(make_job("r", 1, deadline=9.0, perishable=True), 0.3)
    assert core.handle(TimePassed(), 2.0) == []
    assert core.handle(TimePassed(), 9.0) == [Expire(JobId("r"))]


def test_overdue_worker_causes_no_repeated_wakeups() -> None:
    core = fast_core(prefetch_s=0.02)
    for name in ("head", "behind"):
        core.handle(make_job(name, 2), 0.0)
    core.handle(make_job("waiting", 100), 0.0)
    wakeups = 0
    while (wakeup := core.wakeup()) is not None:
        core.handle(TimePassed(), wakeup)
        wakeups += 1
    assert wakeups <= 2


def test_remaining_ranges_go_to_one_worker_as_several_assignments() -> None:
    core = empty_core(make_entry(FAST, 100.0, t_pre=3.0))
    core.handle(make_worker(FAST, warm=False), 0.0)
    job = make_job("a", 100).job
    pieces = dispatched(core.handle(JobArrived(job, 100, done=((20, 50),)), 0.0))
    assert [(p.first, p.count, p.setup_s) for p in pieces] == [(0, 20, 3.0), (50, 50, 0.0)]


def test_late_job_is_rejected_by_timer_regardless_of_queue_order() -> None:
    core = fast_core(policy="fifo", infeasible="reject")
    core.handle(make_job("running", 10_000), 0.0)
    core.handle(make_job("late", 100, deadline=5.0), 0.0)
    wakeup = wakeup_of(core)
    assert math.isclose(wakeup, 4.0)
    [rejected] = core.handle(TimePassed(), wakeup)
    assert isinstance(rejected, Reject)
    assert rejected.job_id == "late"


def test_energy_objective_uses_the_least_joules_that_meet_the_deadline() -> None:
    minimizes_energy = replace(make_entry(FAST, 50.0, ONE), watts=5.0)
    hungry = replace(make_entry(FAST, 100.0, TWO), watts=30.0)
    core = fast_core(minimizes_energy, hungry, objective="energy")
    [loose] = dispatched(core.handle(make_job("loose", 100, deadline=2.5), 0.0))
    end(core, loose, 2.0)
    [tight] = dispatched(core.handle(make_job("tight", 100, deadline=3.2), 2.0))
    assert (loose.configuration, tight.configuration) == (ONE, TWO)


def test_expected_completion_of_a_job_starts_from_the_pace_of_its_worker() -> None:
    core = fast_core()
    now = 0.0
    for name in "abcdefgh":  # twice as slow as profiled
        assignment = started(core, make_job(name, 500), now)
        now += 10.0
        end(core, assignment, now)
    assignment = started(core, make_job("last", 500), now)
    core.handle(QueriesDone(assignment.id, 5), now + 0.1)
    expected = core.expected_completion(JobId("last"), now + 0.1)
    assert expected is not None
    assert 9.0 < expected - now < 10.5


def test_work_behind_the_head_is_the_sum_of_what_is_expected_of_it() -> None:
    worker = WorkerRecord(new_worker("w", FAST, [DIGITS]), 0, set(), set())
    session, job = Session(EngineName(DIGITS), Configuration(1)), new_record("job", DIGITS)
    leases = [
        Lease(new_assignment(number, DIGITS, "w"), job, None, seconds, 0.0, session)
        for number, seconds in enumerate((1.0, 2.0, 4.0))
    ]
    for lease in leases:
        worker.append(lease, 0.0)
    assert worker.free_at(0.0) == 7.0
    worker.stop(leases[1], 0.0)
    assert worker.free_at(0.0) == 5.0
    worker.remove(leases[2], 0.0)
    assert worker.free_at(0.0) == 1.0
