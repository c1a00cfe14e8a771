import math
from typing import Any

import pytest
from msgspec.structs import replace

from synergai.core.scheduling.core import SchedulerCore
from synergai.core.scheduling.events import (
    Assignment,
    AssignmentEnded,
    AssignmentStarted,
    Command,
    Dispatch,
    Expire,
    Fail,
    Finish,
    JobArrived,
    JobCancelled,
    Learned,
    ProfilesAdded,
    ProfilesRemoved,
    QueriesDone,
    QueriesReady,
    Reject,
    Stop,
    TimePassed,
    WorkerDraining,
    WorkerJoined,
    WorkerLeft,
)
from synergai.core.scheduling.settings import SchedulingSettings
from synergai.core.scheduling.state.jobs import Lease
from synergai.core.scheduling.state.workers import MOST_AHEAD_S, WorkerRecord
from synergai.domain import (
    Configuration,
    EngineName,
    Fault,
    JobId,
    Outcome,
    Session,
    WorkerClass,
    WorkerId,
)
from synergai.profiles.dictionary import OBSERVED, PREDICTED, ConfigurationDictionary, ProfileEntry
from tests.cores import (
    ONE,
    dispatched,
    make_core,
    new_assignment,
    new_entry,
    new_job,
    new_record,
    new_request,
    new_worker,
    started,
    wakeup_of,
)

DIGITS = EngineName("digits")
TWO = Configuration(2)
FAST, SLOW = WorkerClass("fast"), WorkerClass("slow")
FAST_1, SLOW_1 = WorkerId("fast-1"), WorkerId("slow-1")


def make_entry(
    worker_class: WorkerClass, qps: float, configuration: Configuration = ONE, t_pre: float = 0.0
) -> ProfileEntry:
    return new_entry(DIGITS, worker_class, qps, configuration, model_load_s=t_pre)


def empty_core(*entries: ProfileEntry, **settings: object) -> SchedulerCore:
    """A core without workers."""
    chosen = entries or (make_entry(FAST, 100.0), make_entry(SLOW, 10.0))
    return make_core(chosen, (), **({"policy": "synergai", "preload": False} | settings))


def make_worker(name: WorkerClass, *, warm: bool = True) -> WorkerJoined:
    return WorkerJoined(new_worker(f"{name}-1", name, [DIGITS], (ONE, TWO), loaded=warm))


def fast_core(*entries: ProfileEntry, **settings: object) -> SchedulerCore:
    """A core with the worker `fast-1`, which by default runs 100 queries per second."""
    core = empty_core(*entries or (make_entry(FAST, 100.0),), **settings)
    core.handle(make_worker(FAST), 0.0)
    return core


def both_core(**settings: object) -> SchedulerCore:
    """A core with the workers `fast-1` and `slow-1`, of 100 and 10 queries per second."""
    core = empty_core(**settings)
    core.handle(make_worker(SLOW), 0.0)
    core.handle(make_worker(FAST), 0.0)
    return core


def make_job(name: str, queries: int, deadline: float = math.inf, **fields: Any) -> JobArrived:
    return new_job(name, DIGITS, queries, deadline=deadline, **fields)


def test_job_goes_to_the_fastest_acceptable_worker() -> None:
    core = both_core()
    [assignment] = dispatched(core.handle(make_job("a", 50, deadline=10.0), 0.0))
    assert assignment.worker_id == FAST_1
    assert (assignment.first, assignment.count) == (0, 50)
    assert assignment.estimate_s == 0.5


def test_worker_reports_the_profile_in_use_and_the_observed_pace() -> None:
    core = fast_core(make_entry(FAST, 150.0, TWO))
    [(entry, pace)] = core.profiles(FAST_1)
    assert (entry.configuration, entry.qps, pace) == (TWO, 150.0, None)
    assignment = started(core, make_job("a", 3000), 0.0)
    core.handle(QueriesDone(assignment.id, 1500), 20.0)
    [(_, pace)] = core.profiles(FAST_1)
    assert pace is not None
    assert 1.0 < pace < 2.0


def test_occupied_best_worker_yields_to_the_next_best_acceptable_one() -> None:
    core = both_core()
    core.handle(make_job("a", 500, deadline=10.0), 0.0)
    [assignment] = dispatched(core.handle(make_job("b", 50, deadline=10.0), 0.0))
    assert assignment.worker_id == SLOW_1


def test_job_waits_for_an_acceptable_worker_instead_of_missing_its_deadline() -> None:
    core = both_core()
    [first] = dispatched(core.handle(make_job("a", 500, deadline=100.0), 0.0))
    assert dispatched(core.handle(make_job("b", 50, deadline=4.9), 0.0)) == []
    commands = core.handle(AssignmentEnded(first.id, 500, Outcome.COMPLETED), 4.0)
    assert commands[0] == Finish(JobId("a"))
    [assignment] = dispatched(commands)
    assert assignment.worker_id == FAST_1


def test_least_slack_goes_first_regardless_of_arrival_order() -> None:
    core = fast_core()
    [running] = dispatched(core.handle(make_job("running", 100), 0.0))
    core.handle(make_job("loose", 100, deadline=20.0), 0.0)
    core.handle(make_job("tight", 300, deadline=5.0), 0.0)
    [next_one] = dispatched(core.handle(AssignmentEnded(running.id, 100, Outcome.COMPLETED), 1.0))
    assert next_one.job_id == "tight"


def test_doomed_job_runs_after_all_feasible_jobs() -> None:
    core = fast_core()
    [running] = dispatched(core.handle(make_job("running", 100), 0.0))
    core.handle(make_job("doomed", 300, deadline=0.5), 0.0)
    core.handle(make_job("met", 100, deadline=50.0), 0.0)
    [second] = dispatched(core.handle(AssignmentEnded(running.id, 100, Outcome.COMPLETED), 1.0))
    assert second.job_id == "met"
    [third] = dispatched(core.handle(AssignmentEnded(second.id, 100, Outcome.COMPLETED), 2.0))
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
    core.handle(AssignmentEnded(cold.id, 100, Outcome.COMPLETED), 4.0)
    [warm] = dispatched(core.handle(make_job("b", 100), 4.0))
    assert (warm.setup_s, warm.estimate_s) == (0.0, 1.0)


def test_observed_pace_corrects_the_profile() -> None:
    core = fast_core(pace_trust=1.0)
    slow = started(core, make_job("a", 1000), 0.0)
    core.handle(AssignmentEnded(slow.id, 1000, Outcome.COMPLETED), 20.0)
    [assignment] = dispatched(core.handle(make_job("b", 100), 20.0))
    assert math.isclose(assignment.estimate_s, 2.0, rel_tol=0.02)


def test_lost_workers_reported_queries_stay_done_and_the_rest_runs_elsewhere() -> None:
    core = both_core()
    [lost] = dispatched(core.handle(make_job("a", 100), 0.0))
    core.handle(QueriesDone(lost.id, 40), 0.4)
    [rest] = dispatched(core.handle(WorkerLeft(FAST_1), 0.5))
    assert (rest.worker_id, rest.first, rest.count) == (SLOW_1, 40, 60)
    assert rest.id > lost.id
    assert core._leases.by_id.get(lost.id) is None
    assert core.handle(AssignmentEnded(lost.id, 100, Outcome.COMPLETED), 0.6) == []
    assert core.handle(AssignmentEnded(rest.id, 60, Outcome.COMPLETED), 7.0) == [Finish(JobId("a"))]


def test_cancelled_job_is_stopped_and_its_worker_freed_when_it_reports_the_end() -> None:
    core = fast_core()
    [running] = dispatched(core.handle(make_job("a", 1000), 0.0))
    core.handle(make_job("b", 10), 0.0)
    [stop, *_] = core.handle(JobCancelled(JobId("a")), 1.0)
    assert stop == Stop(running.id, FAST_1, abort=True)
    core.handle(AssignmentEnded(running.id, 100, Outcome.STOPPED), 1.1)
    assert core.queued == 0


def test_first_queries_of_an_unprofiled_engine_become_its_profile() -> None:
    core = empty_core(make_entry(SLOW, 10.0), probe_queries=16)
    core.handle(make_worker(FAST, warm=False), 0.0)
    [probe] = dispatched(core.handle(make_job("a", 116), 0.0))
    assert probe.probe
    assert (probe.first, probe.count, probe.configuration) == (0, 16, TWO)
    core.handle(AssignmentStarted(probe.id, 2.0), 2.0)
    learned, dispatch = core.handle(AssignmentEnded(probe.id, 16, Outcome.COMPLETED), 2.5)
    assert isinstance(learned, Learned)
    assert (learned.entry.qps, learned.entry.t_pre_s, learned.entry.label) == (
        32.0,
        2.0,
        "observed",
    )
    assert isinstance(dispatch, Dispatch)
    assert math.isclose(dispatch.assignment.estimate_s, 3.125)


@pytest.mark.parametrize(("queries", "compute_s"), [(1, 0.001), (16, 0.016)])
def test_first_profile_is_the_time_in_the_engine_as_far_as_it_is_reported(
    queries: int, compute_s: float
) -> None:
    core = empty_core(make_entry(SLOW, 10.0), probe_queries=16)
    core.handle(make_worker(FAST, warm=False), 0.0)
    [probe] = dispatched(core.handle(make_job("a", queries), 0.0))
    core.handle(AssignmentStarted(probe.id, 2.0), 2.0)
    ended = AssignmentEnded(probe.id, queries, Outcome.COMPLETED, compute_s=compute_s)
    [learned, *_] = core.handle(ended, 2.5)
    assert isinstance(learned, Learned)
    assert learned.entry.qps == pytest.approx(1000.0)


def test_longer_assignment_in_service_replaces_the_profile_of_a_short_probe() -> None:
    core = empty_core(make_entry(SLOW, 10.0), probe_queries=16)
    core.handle(make_worker(FAST, warm=False), 0.0)
    [probe] = dispatched(core.handle(make_job("a", 16), 0.0))
    core.handle(AssignmentStarted(probe.id, 2.0), 2.0)
    core.handle(AssignmentEnded(probe.id, 16, Outcome.COMPLETED), 2.5)
    longer = started(core, make_job("b", 1000), 3.0)
    [learned, *_] = core.handle(AssignmentEnded(longer.id, 1000, Outcome.COMPLETED), 4.0)
    assert isinstance(learned, Learned)
    assert (learned.entry.qps, learned.entry.queries) == (1000.0, 1000)
    assert learned.entry.t_pre_s == 2.0
    [after] = dispatched(core.handle(make_job("c", 500), 4.0))
    assert math.isclose(after.estimate_s, 0.5)


def test_jobs_over_own_inputs_replace_such_a_profile_by_their_time_in_the_engine() -> None:
    core = empty_core(make_entry(SLOW, 10.0), probe_queries=16)
    core.handle(make_worker(FAST, warm=False), 0.0)
    [probe] = dispatched(core.handle(make_job("a", 1000, with_tensors=True), 0.0))
    core.handle(AssignmentStarted(probe.id, 2.0), 2.0)
    ended = AssignmentEnded(probe.id, 16, Outcome.COMPLETED, compute_s=0.5)
    [rest] = dispatched(core.handle(ended, 4.0))
    core.handle(AssignmentStarted(rest.id, 0.0), 4.0)
    ended = AssignmentEnded(rest.id, 984, Outcome.COMPLETED, compute_s=1.0)
    [learned, *_] = core.handle(ended, 50.0)
    assert isinstance(learned, Learned)
    assert (learned.entry.qps, learned.entry.queries) == (984.0, 984)


def test_running_job_over_own_inputs_is_expected_to_go_on_at_its_own_pace() -> None:
    core = fast_core()
    assignment = started(core, make_job("a", 1000, with_tensors=True), 0.0)
    for done in (100, 200, 300, 400, 500):  # at a third of the speed, and 10 ms for the inputs
        core.handle(QueriesDone(assignment.id, done, compute_s=0.03 * done), 0.04 * done)
    expected = core.expected_completion(JobId("a"), 20.0)
    assert expected == pytest.approx(20.0 + 500 * 0.04, rel=0.1)


def test_profiler_measurements_are_not_replaced_by_service() -> None:
    core = fast_core()
    assignment = started(core, make_job("a", 1000), 0.0)
    commands = core.handle(AssignmentEnded(assignment.id, 1000, Outcome.COMPLETED), 1.0)
    assert commands == [Finish(JobId("a"))]


def make_prediction(qps: float, error: float, configuration: Configuration = ONE) -> ProfileEntry:
    entry = make_entry(FAST, qps, configuration)
    return replace(entry, label=PREDICTED, error=error, batch_qps=())


def test_prediction_is_planned_with_its_error_and_not_probed() -> None:
    core = fast_core(make_prediction(100.0, 0.1))
    [assignment] = dispatched(core.handle(make_job("a", 100), 0.0))
    assert not assignment.probe
    assert math.isclose(assignment.estimate_s, math.exp(0.1))


def test_measured_configuration_is_preferred_to_a_prediction_within_its_error() -> None:
    core = fast_core(make_entry(FAST, 100.0, ONE), make_prediction(104.0, 0.1, TWO))
    [assignment] = dispatched(core.handle(make_job("a", 100), 0.0))
    assert assignment.configuration == ONE


def test_prediction_is_replaced_by_what_service_shows() -> None:
    core = fast_core(make_prediction(100.0, 0.1), probe_queries=16)
    short = started(core, make_job("a", 15), 0.0)
    commands = core.handle(AssignmentEnded(short.id, 15, Outcome.COMPLETED), 1.0)
    assert commands == [Finish(JobId("a"))]

    longer = started(core, make_job("b", 16), 1.0)
    [learned, *_] = core.handle(AssignmentEnded(longer.id, 16, Outcome.COMPLETED), 1.2)
    assert isinstance(learned, Learned)
    assert (learned.entry.label, learned.entry.queries, learned.entry.error) == (OBSERVED, 16, 0.0)
    assert math.isclose(learned.entry.qps, 80.0)


def test_bad_input_fails_the_job_without_retry() -> None:
    core = fast_core()
    [assignment] = dispatched(core.handle(make_job("a", 1), 0.0))
    ended = AssignmentEnded(assignment.id, 0, Outcome.FAILED, Fault.BAD_INPUT, "wrong shape")
    assert core.handle(ended, 0.1) == [Fail(JobId("a"), "wrong shape", Fault.BAD_INPUT)]


def test_engine_broken_on_one_worker_runs_on_another() -> None:
    core = both_core()
    [assignment] = dispatched(core.handle(make_job("a", 10), 0.0))
    ended = AssignmentEnded(assignment.id, 0, Outcome.FAILED, Fault.ENGINE_BROKEN, "corrupt")
    [again] = dispatched(core.handle(ended, 0.1))
    assert again.worker_id == SLOW_1


def test_small_assignments_are_prefetched_by_a_nearly_idle_worker() -> None:
    core = fast_core(make_entry(FAST, 1000.0), prefetch_s=0.005)
    sent = [dispatched(core.handle(make_job(str(i), 1), 0.0)) for i in range(10)]
    assert [len(s) for s in sent] == [1] * 6 + [0] * 4


def test_higher_priority_goes_first() -> None:
    core = fast_core()
    [running] = dispatched(core.handle(make_job("running", 100), 0.0))
    core.handle(make_job("tight", 100, deadline=3.0), 0.0)
    core.handle(make_job("vip", 100, deadline=50.0, priority=5), 0.0)
    [following] = dispatched(core.handle(AssignmentEnded(running.id, 100, Outcome.COMPLETED), 1.0))
    assert following.job_id == "vip"


def test_deadline_of_a_finished_request_does_not_expire_a_later_one_with_its_id() -> None:
    core = fast_core(strict=True)
    [first] = dispatched(core.handle(make_job("r", 1, deadline=2.0, perishable=True), 0.0))
    core.handle(AssignmentEnded(first.id, 1, Outcome.COMPLETED), 0.1)
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


def test_premature_completion_report_counts_as_a_fault() -> None:
    core = fast_core(max_faults=2)
    [first] = dispatched(core.handle(make_job("a", 10), 0.0))
    [second] = dispatched(core.handle(AssignmentEnded(first.id, 4, Outcome.COMPLETED), 0.1))
    assert (second.first, second.count) == (4, 6)
    [failed] = core.handle(AssignmentEnded(second.id, 0, Outcome.COMPLETED), 0.2)
    assert isinstance(failed, Fail)
    assert failed.reason == "worker fast-1 ended an assignment unasked after 0 of 6 queries"


def fail_host(core: SchedulerCore, assignment: Assignment, done: int, now: float) -> list[Command]:
    return core.handle(
        AssignmentEnded(assignment.id, done, Outcome.FAILED, Fault.HOST_DIED, "it died"), now
    )


def test_faults_with_progress_in_between_never_fail_a_job() -> None:
    core = fast_core()
    [assignment] = dispatched(core.handle(make_job("a", 1000), 0.0))
    for number in range(20):
        [assignment] = dispatched(fail_host(core, assignment, 10, 1.0 + number))
    assert assignment.first == 200


def test_progress_of_another_assignment_counts_as_well() -> None:
    core = fast_core(max_faults=2, policy="malleable")
    core.handle(WorkerJoined(replace(make_worker(FAST).worker, id=WorkerId("fast-2"))), 0.0)
    one, two = dispatched(core.handle(make_job("a", 10_000), 0.0))
    [one] = dispatched(fail_host(core, one, 0, 1.0))
    core.handle(QueriesDone(two.id, 10), 1.5)
    [one] = dispatched(fail_host(core, one, 0, 2.0))
    core.handle(WorkerDraining(WorkerId("fast-2")), 2.5)  # the engine is not ejected instead
    [failed, *_] = [c for c in fail_host(core, one, 0, 3.0) if isinstance(c, Fail)]
    assert failed.job_id == "a"


def test_assignments_that_a_host_takes_with_it_count_as_one_fault() -> None:
    core = fast_core(make_entry(FAST, 10_000.0), max_faults=2)
    arrived = replace(make_job("a", 50), done=((10, 20), (30, 40)))
    lost = dispatched(core.handle(arrived, 0.0))
    assert len(lost) == 3
    for assignment in lost:
        again = dispatched(fail_host(core, assignment, 0, 1.0))
    assert again
    [failed, *_] = [c for c in fail_host(core, again[0], 0, 2.0) if isinstance(c, Fail)]
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
        [assignment] = dispatched(core.handle(TimePassed(), now))
    assert pauses == [1.0, 2.0, 4.0]
    assert [type(command) for command in fail_host(core, assignment, 0, now)] == [Fail]
    assert core.wakeup() is None


def test_jobs_that_pause_can_be_cancelled_and_let_others_run() -> None:
    core = fast_core(max_faults=5)
    [assignment] = dispatched(core.handle(make_job("a", 100), 0.0))
    [assignment] = dispatched(fail_host(core, assignment, 0, 0.0))
    fail_host(core, assignment, 0, 0.0)
    [other] = dispatched(core.handle(make_job("b", 100), 0.1))
    assert other.job_id == "b"
    core.handle(JobCancelled(JobId("a")), 0.2)
    core.handle(AssignmentEnded(other.id, 100, Outcome.COMPLETED), 0.3)
    assert core.wakeup() is None


def test_requests_are_retried_without_a_pause() -> None:
    core = fast_core(max_faults=4)
    job = replace(make_job("a", 1, deadline=60.0).job, perishable=True, with_tensors=True)
    [assignment] = dispatched(core.handle(JobArrived(job, 1), 0.0))
    for _ in range(3):
        [assignment] = dispatched(fail_host(core, assignment, 0, 0.0))


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


def test_probing_worker_gets_no_other_assignment() -> None:
    core = empty_core(make_entry(SLOW, 10.0))
    core.handle(make_worker(FAST, warm=False), 0.0)
    [probe] = dispatched(core.handle(make_job("a", 116), 0.0))
    assert probe.probe
    assert core.handle(make_job("b", 1), 0.1) == []


def test_unprofiled_engine_is_probed_even_under_a_backlog() -> None:
    core = empty_core()
    new = EngineName("new")
    core.handle(make_worker(FAST), 0.0)
    joined = make_worker(FAST).worker
    core.handle(WorkerJoined(replace(joined, engines=frozenset({DIGITS, new}))), 0.0)
    [running] = dispatched(core.handle(make_job("running", 100), 0.0))
    core.handle(new_job("new", new, 100), 0.0)
    core.handle(make_job("tight", 100, deadline=2.5), 0.0)
    [probe, *_] = dispatched(core.handle(AssignmentEnded(running.id, 100, Outcome.COMPLETED), 1.0))
    assert (probe.job_id, probe.probe) == (JobId("new"), True)


def test_tenant_over_its_share_yields_to_others_of_the_same_priority() -> None:
    core = fast_core(fair_burst_s=5.0)
    [greedy] = dispatched(core.handle(make_job("g1", 2000, tenant="greedy"), 0.0))
    core.handle(make_job("g2", 100, deadline=25.0, tenant="greedy"), 0.0)
    core.handle(make_job("m1", 100, deadline=90.0, tenant="modest"), 0.0)
    ended = AssignmentEnded(greedy.id, 2000, Outcome.COMPLETED)
    [following] = dispatched(core.handle(ended, 20.0))
    assert following.job_id == "m1"


def test_single_tenant_gets_all_capacity() -> None:
    core = fast_core(fair_burst_s=0.0)
    [running] = dispatched(core.handle(make_job("a", 2000, tenant="greedy"), 0.0))
    core.handle(make_job("b", 100, tenant="greedy"), 0.0)
    ended = AssignmentEnded(running.id, 2000, Outcome.COMPLETED)
    assert len(dispatched(core.handle(ended, 20.0))) == 1


def test_energy_objective_uses_the_least_joules_that_meet_the_deadline() -> None:
    minimizes_energy = replace(make_entry(FAST, 50.0, ONE), watts=5.0)
    hungry = replace(make_entry(FAST, 100.0, TWO), watts=30.0)
    core = fast_core(minimizes_energy, hungry, objective="energy")
    [loose] = dispatched(core.handle(make_job("loose", 100, deadline=2.5), 0.0))
    core.handle(AssignmentEnded(loose.id, 100, Outcome.COMPLETED), 2.0)
    [tight] = dispatched(core.handle(make_job("tight", 100, deadline=3.2), 2.0))
    assert (loose.configuration, tight.configuration) == (ONE, TWO)


def test_profiles_that_arrive_together_are_scheduled_with_once() -> None:
    core = SchedulerCore(SchedulingSettings(policy="synergai"), ConfigurationDictionary())
    core.handle(make_worker(SLOW), 0.0)
    core.handle(make_worker(FAST), 0.0)
    core.handle(make_job("a", 16), 0.0)
    core.handle(make_job("b", 16), 0.0)
    core.handle(make_job("c", 1000), 0.0)
    commands = core.handle(ProfilesAdded((make_entry(SLOW, 10.0), make_entry(FAST, 100.0))), 0.1)
    assert not any(isinstance(command, Stop) for command in commands)
    assert {entry.qps for name in (FAST_1, SLOW_1) for entry, _ in core.profiles(name)} == {
        10.0,
        100.0,
    }


def test_engine_without_its_profile_is_measured_again() -> None:
    absurd = make_entry(FAST, 0.001)
    core = fast_core(absurd)
    core.handle(ProfilesRemoved((absurd,)), 0.1)
    assert core.unprofiled(FAST_1) == [DIGITS]
    assert core.profiles(FAST_1) == []
    [probe] = dispatched(core.handle(make_job("a", 16), 0.2))
    assert probe.probe


def test_new_profile_voids_the_pace_observed_against_the_old_one() -> None:
    core = fast_core()
    assignment = started(core, make_job("a", 1000), 0.0)
    core.handle(QueriesDone(assignment.id, 500), 10.0)
    assert core.paces[FAST_1, DIGITS] > 1.0
    core.handle(ProfilesAdded((make_entry(FAST, 100.0),)), 10.0)
    assert core.paces[FAST_1, DIGITS] > 1.0, "the same profile again"
    core.handle(ProfilesAdded((make_entry(FAST, 50.0),)), 10.0)
    assert (FAST_1, DIGITS) not in core.paces


def test_profile_measured_on_one_class_leaves_the_paces_of_others() -> None:
    core = fast_core()
    assignment = started(core, make_job("a", 1000), 0.0)
    core.handle(QueriesDone(assignment.id, 500), 10.0)
    core.handle(make_worker(SLOW), 10.0)
    [probe] = dispatched(core.handle(make_job("b", 16), 10.0))
    assert probe.probe
    core.handle(AssignmentStarted(probe.id, 0.0), 10.0)
    pace = core.paces[FAST_1, DIGITS]
    commands = core.handle(AssignmentEnded(probe.id, 16, Outcome.COMPLETED), 12.0)
    assert any(isinstance(command, Learned) for command in commands)
    assert core.paces[FAST_1, DIGITS] == pace


def test_assignment_dispatched_with_a_replaced_profile_teaches_no_pace() -> None:
    core = fast_core(make_entry(FAST, 10.0))
    assignment = started(core, make_job("a", 1000), 0.0)
    core.handle(QueriesDone(assignment.id, 100), 20.0)
    core.handle(ProfilesAdded((make_entry(FAST, 5.0),)), 20.0)
    core.handle(QueriesDone(assignment.id, 200), 40.0)
    assert (FAST_1, DIGITS) not in core.paces


def test_new_profile_replaces_the_pace_that_a_job_has_shown() -> None:
    core = fast_core(make_entry(FAST, 10.0))
    assignment = started(core, make_job("a", 1000), 0.0)
    core.handle(QueriesDone(assignment.id, 400), 80.0)
    core.handle(ProfilesAdded((make_entry(FAST, 5.0),)), 80.0)
    core.handle(QueriesDone(assignment.id, 500), 100.0)
    assert core.expected_completion(JobId("a"), 100.0) == 200.0
    stopped = AssignmentEnded(assignment.id, 500, Outcome.STOPPED)
    [resumed] = dispatched(core.handle(stopped, 100.0))
    assert resumed.query_s == 0.2


def test_pace_starts_again_from_the_profile_after_another_configuration_was_measured() -> None:
    core = fast_core(make_entry(FAST, 10.0, ONE), make_entry(FAST, 8.0, TWO), pace_trust=0.01)
    now = 0.0
    for name in "abcdefgh":  # twice as slow as profiled
        assignment = started(core, make_job(name, 500), now)
        now += 100.0
        core.handle(AssignmentEnded(assignment.id, 500, Outcome.COMPLETED), now)
    assignment = started(core, make_job("last", 500), now)
    core.handle(QueriesDone(assignment.id, 5), now + 1.0)
    assert core.paces[FAST_1, DIGITS] > 1.05
    core.handle(ProfilesAdded((make_entry(FAST, 9.0, TWO),)), now + 1.0)
    core.handle(QueriesDone(assignment.id, 10), now + 2.0)
    assert core.paces[FAST_1, DIGITS] < 1.02


def run_request(core: SchedulerCore, number: int, now: float, compute_s: float) -> None:
    """Run a request of one query with tensors on the only worker."""
    [assignment] = dispatched(
        core.handle(new_job(f"r{number}", DIGITS, 1, now, with_tensors=True), now)
    )
    core.handle(
        AssignmentEnded(assignment.id, 1, Outcome.COMPLETED, compute_s=compute_s), now + compute_s
    )


def test_only_the_last_workers_to_leave_keep_their_paces() -> None:
    core = empty_core()
    workers = [
        new_worker(f"agent-{number}", FAST, [DIGITS], (ONE,), loaded=True) for number in range(300)
    ]
    for number, worker in enumerate(workers):
        core.handle(WorkerJoined(worker), number)
        run_request(core, number, number, 0.02)
        assert core.paces
        core.handle(WorkerLeft(worker.id), number + 0.5)
    assert not core.paces
    core.handle(WorkerJoined(workers[0]), 300.0)
    assert not core.paces
    core.handle(WorkerJoined(workers[-1]), 300.0)
    assert core.paces.keys() == {(workers[-1].id, DIGITS)}


def test_worker_that_returns_has_its_pace_unless_the_profile_was_replaced() -> None:
    core = empty_core(make_entry(FAST, 100.0))
    joined = make_worker(FAST)
    core.handle(joined, 0.0)
    for number in range(20):
        run_request(core, number, number, 0.02)
    pace = core.paces[FAST_1, DIGITS]
    assert pace > 1.01
    core.handle(WorkerLeft(FAST_1), 30.0)
    core.handle(joined, 31.0)
    assert core.paces == {(FAST_1, DIGITS): pace}
    core.handle(WorkerLeft(FAST_1), 32.0)
    core.handle(ProfilesAdded((make_entry(FAST, 50.0),)), 33.0)
    core.handle(joined, 34.0)
    assert not core.paces


def test_pace_is_the_mean_also_if_some_queries_take_much_longer() -> None:
    core = fast_core(make_entry(FAST, 1000.0))
    now = 0.0
    for number in range(4_000):
        # As on a worker whose CPU quota is used up once in a while.
        compute_s = 0.0501 if number % 100 == 99 else 0.0005
        run_request(core, number, now, compute_s)
        now += 0.06
    assert 0.9 < core.paces[FAST_1, DIGITS] < 1.1


def run_transfers(core: SchedulerCore, *transfers_s: float) -> float:
    """Run requests whose tensors take so long; return when the last one ended."""
    now = 0.0
    for number, transfer_s in enumerate(transfers_s):
        request = new_request(f"request-{number}", DIGITS, now)
        [assignment] = dispatched(core.handle(request, now))
        now += 0.01 + transfer_s
        ended = AssignmentEnded(assignment.id, 1, Outcome.COMPLETED, compute_s=0.01)
        core.handle(ended, now)
    return now


def expected_of(core: SchedulerCore, arrived: JobArrived, now: float) -> float:
    """Return how long a job or request is expected to take."""
    core.handle(arrived, now)
    expected = core.expected_completion(arrived.job.id, now)
    assert expected is not None
    return expected - now


@pytest.mark.parametrize(("count", "stalled"), [(1, 0), (2, 0), (2, 1), (3, 1), (30, 0), (30, 29)])
def test_one_stalled_transfer_is_not_expected_again(count: int, stalled: int) -> None:
    core = fast_core()
    transfers_s = [0.005] * count
    transfers_s[stalled] = 2.0
    now = run_transfers(core, *transfers_s)
    assert 0.0075 < expected_of(core, new_request("next", DIGITS, now), now) < 0.0175


@pytest.mark.parametrize("count", [2, 3, 30])
def test_transfers_that_always_take_long_are_expected(count: int) -> None:
    core = fast_core()
    now = run_transfers(core, *[2.0] * count)
    expected_s = expected_of(core, new_request("next", DIGITS, now), now)
    assert expected_s == pytest.approx(2.01, rel=0.01)


def test_inputs_of_a_job_are_not_expected_to_take_what_single_requests_did() -> None:
    core = fast_core()
    now = run_transfers(core, *[2.0] * 3)
    expected_s = expected_of(core, make_job("job", 40, with_tensors=True), now)
    assert expected_s == pytest.approx(40 * 0.01, rel=0.01)


def test_transfers_that_a_running_job_shows_are_expected_of_its_rest() -> None:
    core = fast_core()
    assignment = started(core, make_job("job", 40, with_tensors=True), 0.0)
    now = 0.0
    for done in range(1, 11):
        now += 0.51
        core.handle(QueriesDone(assignment.id, done, compute_s=0.01 * done), now)
    expected = core.expected_completion(JobId("job"), now)
    assert expected == pytest.approx(now + 30 * 0.51, rel=0.01)


@pytest.mark.parametrize(
    ("transfers_s", "expected_s"),
    [([0.8, 0.0] * 4, 0.4), ([0.0, 0.0, 2.0, *[0.0] * 5], 0.0), ([*[0.0] * 3, 1.2] * 4, 0.3)],
    ids=["in pairs", "one stall", "in fours"],
)
def test_inputs_that_arrive_together_are_expected_to_take_their_mean(
    transfers_s: list[float], expected_s: float
) -> None:
    core = fast_core()
    assignment = started(core, make_job("job", 40, with_tensors=True), 0.0)
    now, done = 0.01, 1
    core.handle(QueriesDone(assignment.id, done, compute_s=now), now)
    for transfer_s in transfers_s:
        now += 0.01 + transfer_s
        done += 1
        core.handle(QueriesDone(assignment.id, done, compute_s=0.01 * done), now)
    completes_at = core.expected_completion(JobId("job"), now)
    assert completes_at is not None
    per_query_s = (completes_at - now) / (40 - done)
    assert per_query_s == pytest.approx(0.01 + expected_s, rel=0.3)


def rest_is_sent_before(first_input_s: float, *, setup_s: float = 0.0) -> float:
    """Return how long before the end of its queries a worker gets the next ones of a job.

    The first input of the job reaches it after some time, in which it perhaps sets up.
    """
    core = fast_core()
    job = new_job("job", DIGITS, 200, ready=100, with_tensors=True)
    [assignment] = dispatched(core.handle(job, 0.0))
    core.handle(AssignmentStarted(assignment.id, setup_s), first_input_s)
    core.handle(QueriesReady(JobId("job"), 200), first_input_s)
    wakeup = wakeup_of(core)
    [following] = dispatched(core.handle(TimePassed(), wakeup))
    assert following.first == 100
    return first_input_s + 1.0 - wakeup


def test_next_queries_are_sent_ahead_by_what_their_inputs_take() -> None:
    assert rest_is_sent_before(0.3) == pytest.approx(0.3)
    assert rest_is_sent_before(0.001) == pytest.approx(0.02)
    assert rest_is_sent_before(0.9) == pytest.approx(MOST_AHEAD_S)


def test_inputs_that_arrive_during_a_setup_do_not_show_what_they_take() -> None:
    assert rest_is_sent_before(0.3, setup_s=0.3) == pytest.approx(0.02)


def test_queries_that_are_ready_stay_so_although_a_report_of_fewer_is_late() -> None:
    core = fast_core()
    running = started(core, make_job("running", 100), 0.0)
    core.handle(new_job("job", DIGITS, 100, ready=10, with_tensors=True), 0.0)
    for ready in (100, 60):
        core.handle(QueriesReady(JobId("job"), ready), 0.1)
    [assignment] = dispatched(core.handle(AssignmentEnded(running.id, 100, Outcome.COMPLETED), 1.0))
    assert assignment.count == 100


def test_inputs_of_single_queries_show_what_they_take() -> None:
    core = fast_core(make_entry(FAST, 1.0))
    job = new_job("job", DIGITS, 9, ready=1, with_tensors=True)
    [first] = dispatched(core.handle(job, 0.0))
    core.handle(AssignmentEnded(first.id, 1, Outcome.COMPLETED, compute_s=1.0), 1.2)
    [second] = dispatched(core.handle(QueriesReady(JobId("job"), 3), 1.2))
    assert second.count == 2
    core.handle(QueriesReady(JobId("job"), 9), 1.3)
    assert not dispatched(core.handle(TimePassed(), 1.2 + 2.0 - 0.21))
    assert dispatched(core.handle(TimePassed(), 1.2 + 2.0 - 0.19))


def test_worker_is_available_earlier_as_soon_as_inputs_show_what_they_take() -> None:
    core = fast_core(make_entry(FAST, 10.0))
    core.handle(make_job("first", 1, with_tensors=True), 0.0)
    [second] = dispatched(core.handle(make_job("second", 1, with_tensors=True), 0.09))
    core.handle(make_job("third", 1, with_tensors=True), 0.09)
    # Its report arrives before that of the query ahead of it.
    [third] = dispatched(core.handle(QueriesDone(second.id, 1), 0.09 + 0.3))
    assert third.job_id == "third"


def test_inputs_for_which_a_busy_worker_waits_are_sent_earlier_from_then_on() -> None:
    core = fast_core()
    job = new_job("job", DIGITS, 300, ready=100, with_tensors=True)
    [assignment] = dispatched(core.handle(job, 0.0))
    core.handle(AssignmentStarted(assignment.id, 1.0), 1.0)
    ends_at, ahead_s = 2.0, 0.02
    for ready, waited_s in ((200, 0.2), (300, 0.0)):
        core.handle(QueriesReady(JobId("job"), ready), ends_at - 0.3)
        assert not dispatched(core.handle(TimePassed(), ends_at - ahead_s - 0.001))
        [following] = dispatched(core.handle(TimePassed(), ends_at - ahead_s + 0.001))
        core.handle(AssignmentEnded(assignment.id, 100, Outcome.COMPLETED), ends_at)
        core.handle(AssignmentStarted(following.id, 0.0), ends_at + waited_s)
        ahead_s += waited_s
        ends_at += waited_s + 1.0
        assignment = following


def test_expected_completion_of_a_job_starts_from_the_pace_of_its_worker() -> None:
    core = fast_core()
    now = 0.0
    for name in "abcdefgh":  # twice as slow as profiled
        assignment = started(core, make_job(name, 500), now)
        now += 10.0
        core.handle(AssignmentEnded(assignment.id, 500, Outcome.COMPLETED), now)
    assignment = started(core, make_job("last", 500), now)
    core.handle(QueriesDone(assignment.id, 5), now + 0.1)
    expected = core.expected_completion(JobId("last"), now + 0.1)
    assert expected is not None
    assert 9.0 < expected - now < 10.5


def test_measured_profile_that_arrives_during_a_probe_is_kept() -> None:
    core = SchedulerCore(SchedulingSettings(), ConfigurationDictionary())
    core.handle(make_worker(FAST), 0.0)
    [probe] = dispatched(core.handle(make_job("a", 100), 0.0))
    assert probe.probe
    measured = new_entry(DIGITS, FAST, 1119.0, probe.configuration)
    core.handle(ProfilesAdded((measured,)), 0.1)
    commands = core.handle(
        AssignmentEnded(probe.id, probe.count, Outcome.COMPLETED, compute_s=0.5), 0.5
    )
    assert not any(isinstance(command, Learned) for command in commands)
    [rest] = dispatched(commands)
    assert math.isclose(rest.query_s, 1 / 1119.0)


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
