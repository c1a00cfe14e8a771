"""What service teaches about profiles and paces, and when that is forgotten."""

import math

import pytest
from msgspec.structs import replace

from synergai.core.scheduling.core import SchedulerCore
from synergai.core.scheduling.events import (
    Assignment,
    AssignmentStarted,
    Dispatch,
    Finish,
    JobArrived,
    Learned,
    ProfilesAdded,
    ProfilesRemoved,
    QueriesDone,
    Stop,
    WorkerJoined,
    WorkerLeft,
)
from synergai.core.scheduling.settings import SchedulingSettings
from synergai.domain import Configuration, EngineName, JobId, Outcome
from synergai.profiles.dictionary import OBSERVED, PREDICTED, ConfigurationDictionary, ProfileEntry
from tests.cores import ONE, dispatched, end, new_entry, new_job, new_worker, started
from tests.digits import (
    DIGITS,
    FAST,
    FAST_1,
    SLOW,
    SLOW_1,
    TWO,
    empty_core,
    fast_core,
    make_entry,
    make_job,
    make_worker,
)


def test_worker_reports_the_profile_in_use_and_the_observed_pace() -> None:
    core = fast_core(make_entry(FAST, 150.0, TWO))
    [(entry, pace)] = core.profiles(FAST_1)
    assert (entry.configuration, entry.qps, pace) == (TWO, 150.0, None)
    assignment = started(core, make_job("a", 3000), 0.0)
    core.handle(QueriesDone(assignment.id, 1500), 20.0)
    [(_, pace)] = core.profiles(FAST_1)
    assert pace is not None
    assert 1.0 < pace < 2.0


def test_observed_pace_corrects_the_profile() -> None:
    core = fast_core(pace_trust=1.0)
    slow = started(core, make_job("a", 1000), 0.0)
    end(core, slow, 20.0)
    [assignment] = dispatched(core.handle(make_job("b", 100), 20.0))
    assert math.isclose(assignment.estimate_s, 2.0, rel_tol=0.02)


def probing(job: JobArrived) -> tuple[SchedulerCore, Assignment]:
    """Return a core, and the probe of an engine without a profile that it began after 2 s."""
    core = empty_core(make_entry(SLOW, 10.0), probe_queries=16)
    core.handle(make_worker(FAST, warm=False), 0.0)
    [probe] = dispatched(core.handle(job, 0.0))
    assert probe.probe
    core.handle(AssignmentStarted(probe.id, 2.0), 2.0)
    return core, probe


def test_first_queries_of_an_unprofiled_engine_become_its_profile() -> None:
    core, probe = probing(make_job("a", 116))
    assert (probe.first, probe.count, probe.configuration) == (0, 16, TWO)
    learned, dispatch = end(core, probe, 2.5)
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
    core, probe = probing(make_job("a", queries))
    [learned, *_] = end(core, probe, 2.5, compute_s=compute_s)
    assert isinstance(learned, Learned)
    assert learned.entry.qps == pytest.approx(1000.0)


def test_longer_assignment_in_service_replaces_the_profile_of_a_short_probe() -> None:
    core, probe = probing(make_job("a", 16))
    end(core, probe, 2.5)
    longer = started(core, make_job("b", 1000), 3.0)
    [learned, *_] = end(core, longer, 4.0)
    assert isinstance(learned, Learned)
    assert (learned.entry.qps, learned.entry.queries) == (1000.0, 1000)
    assert learned.entry.t_pre_s == 2.0
    [after] = dispatched(core.handle(make_job("c", 500), 4.0))
    assert math.isclose(after.estimate_s, 0.5)


def test_jobs_over_own_inputs_replace_such_a_profile_by_their_time_in_the_engine() -> None:
    core, probe = probing(make_job("a", 1000, with_tensors=True))
    [rest] = dispatched(end(core, probe, 4.0, compute_s=0.5))
    core.handle(AssignmentStarted(rest.id, 0.0), 4.0)
    [learned, *_] = end(core, rest, 50.0, compute_s=1.0)
    assert isinstance(learned, Learned)
    assert (learned.entry.qps, learned.entry.queries) == (984.0, 984)


def test_profiler_measurements_are_not_replaced_by_service() -> None:
    core = fast_core()
    assignment = started(core, make_job("a", 1000), 0.0)
    commands = end(core, assignment, 1.0)
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
    commands = end(core, short, 1.0)
    assert commands == [Finish(JobId("a"))]

    longer = started(core, make_job("b", 16), 1.0)
    [learned, *_] = end(core, longer, 1.2)
    assert isinstance(learned, Learned)
    assert (learned.entry.label, learned.entry.queries, learned.entry.error) == (OBSERVED, 16, 0.0)
    assert math.isclose(learned.entry.qps, 80.0)


def test_probing_worker_gets_no_other_assignment() -> None:
    core, _ = probing(make_job("a", 116))
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
    [probe, *_] = dispatched(end(core, running, 1.0))
    assert (probe.job_id, probe.probe) == (JobId("new"), True)


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
    commands = end(core, probe, 12.0)
    assert any(isinstance(command, Learned) for command in commands)
    assert core.paces[FAST_1, DIGITS] == pace


def test_new_profile_replaces_the_pace_that_a_job_has_shown_which_teaches_none_then() -> None:
    core = fast_core(make_entry(FAST, 10.0))
    assignment = started(core, make_job("a", 1000), 0.0)
    core.handle(QueriesDone(assignment.id, 400), 80.0)
    core.handle(ProfilesAdded((make_entry(FAST, 5.0),)), 80.0)
    core.handle(QueriesDone(assignment.id, 500), 100.0)
    assert (FAST_1, DIGITS) not in core.paces
    assert core.expected_completion(JobId("a"), 100.0) == 200.0
    [resumed] = dispatched(end(core, assignment, 100.0, Outcome.STOPPED, done=500))
    assert resumed.query_s == 0.2


def test_pace_starts_again_from_the_profile_after_another_configuration_was_measured() -> None:
    core = fast_core(make_entry(FAST, 10.0, ONE), make_entry(FAST, 8.0, TWO), pace_trust=0.01)
    now = 0.0
    for name in "abcdefgh":  # twice as slow as profiled
        assignment = started(core, make_job(name, 500), now)
        now += 100.0
        end(core, assignment, now)
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
    end(core, assignment, now + compute_s, compute_s=compute_s)


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


def test_measured_profile_that_arrives_during_a_probe_is_kept() -> None:
    core = SchedulerCore(SchedulingSettings(), ConfigurationDictionary())
    core.handle(make_worker(FAST), 0.0)
    [probe] = dispatched(core.handle(make_job("a", 100), 0.0))
    assert probe.probe
    measured = new_entry(DIGITS, FAST, 1119.0, probe.configuration)
    core.handle(ProfilesAdded((measured,)), 0.1)
    commands = end(core, probe, 0.5, compute_s=0.5)
    assert not any(isinstance(command, Learned) for command in commands)
    [rest] = dispatched(commands)
    assert math.isclose(rest.query_s, 1 / 1119.0)
