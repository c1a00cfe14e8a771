"""Expected completion of jobs: by their assignments, and by the policy's plan."""

from typing import Any

import pytest

from synergai.core.scheduling.core import SchedulerCore
from synergai.core.scheduling.events import Dispatch, JobArrived, QueriesDone, TimePassed
from synergai.core.scheduling.policies.malleable.policy import MAX_JOBS
from synergai.domain import EngineName, JobId
from tests.cores import make_core, new_entry, new_job, new_worker

DIGITS = EngineName("digits")
A, B = JobId("a"), JobId("b")
QPS = {"fast": 100.0, "slow": 10.0}


def core_with(*names: str, policy: str = "malleable", profiled: bool = True) -> SchedulerCore:
    entries = [new_entry(DIGITS, name, qps) for name, qps in QPS.items()]
    workers = [new_worker(name, name, [DIGITS]) for name in names]
    return make_core(entries if profiled else [], workers, policy=policy)


def arrival(name: str, queries: int, **fields: Any) -> JobArrived:
    return new_job(name, DIGITS, queries, **fields)


def test_job_completes_with_its_last_assignment() -> None:
    core = core_with("fast", "slow")
    core.handle(arrival(A, 1100), 0.0)
    assert core.expected_completion(A, 0.0) == pytest.approx(10.0, rel=0.01)


def test_expectation_follows_the_progress() -> None:
    core = core_with("fast")
    [dispatch] = core.handle(arrival(A, 1000), 0.0)
    assert isinstance(dispatch, Dispatch)
    core.handle(QueriesDone(dispatch.assignment.id, 400), 8.0)  # half as fast as profiled
    expected = core.expected_completion(A, 8.0)
    assert expected is not None
    assert 8.0 + 6.0 < expected <= 8.0 + 12.0


def test_queries_whose_tensors_have_not_arrived_run_on_the_same_workers() -> None:
    core = core_with("fast", "slow", policy="synergai")
    core.handle(arrival(A, 50, ready=1), 0.0)
    assert core.expected_completion(A, 0.0) == pytest.approx(0.5)


def test_waiting_job_is_expected_on_the_worker_that_completes_it_soonest() -> None:
    core = core_with("fast", "slow", policy="fifo")
    core.handle(arrival(A, 500), 0.0)
    core.handle(arrival(B, 500), 0.0)
    core.handle(arrival(JobId("c"), 100), 0.0)
    expected = [core.expected_completion(JobId(name), 0.0) for name in "abc"]
    assert None not in expected
    assert max(e for e in expected if e) == pytest.approx(50.0)


def test_expectation_counts_the_workers_that_the_plan_lets_join_later() -> None:
    core = core_with("fast", "slow")
    core.handle(arrival(A, 1100), 0.0)  # both workers for 10 s
    core.handle(arrival(B, 1100), 0.0)
    by_plan = core.expected_completion(B, 0.0)
    assert by_plan == pytest.approx(20.0, rel=0.02)


def test_job_displaced_from_the_plan_is_not_expected_before_the_work_ahead_of_it() -> None:
    core = core_with("fast")
    core.handle(arrival(A, 1000), 0.0)
    for number in range(MAX_JOBS - 1):
        core.handle(arrival(JobId(f"ahead-{number}"), 1000), 0.0)
    core.handle(arrival(B, 1000), 0.0)
    assert core.expected_completion(B, 0.0) == pytest.approx(60.0)
    for number in range(MAX_JOBS):
        core.handle(arrival(JobId(f"urgent-{number}"), 10, priority=1), 0.0)
    assert core.expected_completion(B, 0.0) == pytest.approx(60.0, rel=0.01)


def test_nothing_is_expected_of_unprofiled_and_unknown_jobs() -> None:
    core = core_with("fast", profiled=False)
    core.handle(arrival(A, 100), 0.0)
    assert core.expected_completion(A, 0.0) is None
    assert core.expected_completion(B, 0.0) is None


def test_nothing_is_expected_without_a_worker() -> None:
    core = core_with()
    core.handle(arrival(A, 100), 0.0)
    assert core.expected_completion(A, 0.0) is None


def test_latest_start_of_a_waiting_job_follows_the_pace_of_a_running_one() -> None:
    core = core_with("fast", policy="fifo")
    [dispatch] = core.handle(arrival(A, 1000), 0.0)
    assert isinstance(dispatch, Dispatch)
    core.handle(arrival(B, 1000, deadline=100.0), 0.0)
    [waiting] = core.state.queue.in_order(now=0.0)
    assert waiting.latest_start == pytest.approx(90.0)
    core.handle(QueriesDone(dispatch.assignment.id, 100, 4.0), 4.0)  # a quarter of its pace
    core.handle(TimePassed(), 4.0 + core.state.settings.reassess_s)
    assert waiting.latest_start < 85.0
