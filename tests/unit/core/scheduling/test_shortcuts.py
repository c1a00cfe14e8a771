"""Fast paths of the core agree with the general ones."""

import math

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from synergai.core.scheduling import events
from synergai.core.scheduling.core import SchedulerCore
from synergai.core.scheduling.job_queue import JobQueue
from synergai.core.scheduling.settings import SchedulingSettings
from synergai.core.scheduling.state.estimate import Observation
from synergai.core.scheduling.state.estimator import Estimator
from synergai.core.scheduling.state.jobs import JobRecord, Lease
from synergai.core.scheduling.state.loads import Loads
from synergai.core.scheduling.view import Fleet
from synergai.domain import Configuration, EngineName, JobId, Session, WorkerClass
from synergai.profiles.dictionary import ConfigurationDictionary
from tests.cores import end, new_assignment, new_entry, new_record, new_request, new_worker

ENGINE, OTHER = EngineName("engine"), EngineName("other")
CLASS = WorkerClass("class")
CONFIGURATIONS = (Configuration(1), Configuration(2))
SECONDS = st.floats(0.0, 10.0)


def make_record(
    name: str, engine: EngineName = ENGINE, deadline: float = math.inf, sequence: int = 0
) -> JobRecord:
    return new_record(name, engine, sequence, deadline=deadline)


def make_dictionary() -> ConfigurationDictionary:
    return ConfigurationDictionary(
        new_entry(ENGINE, CLASS, 50.0 * each.threads, each, model_load_s=1.0, watts=10.0)
        for each in CONFIGURATIONS
    )


def make_worker() -> events.Worker:
    loaded = [Session(ENGINE, CONFIGURATIONS[0])]
    return new_worker("worker", CLASS, [ENGINE], CONFIGURATIONS, loaded=loaded)


@given(rank=SECONDS, now=st.none() | SECONDS, priority=st.integers(0, 9), asked=st.booleans())
def test_single_queued_job_is_found_as_among_others(
    rank: float, now: float | None, priority: int, asked: bool
) -> None:
    found = []
    for bystanders in (0, 1):
        queue = JobQueue()
        record = make_record("job")
        record.job, record.rank = replace(record.job, priority=priority), rank
        queue.add(record)
        for number in range(bystanders):
            queue.add(make_record(f"bystander-{number}", OTHER, sequence=1 + number))
        engines = {ENGINE} if asked else set()
        found.append([one.job.id for one in queue.in_order(engines, now)])
    assert found[0] == found[1] == (["job"] if asked else [])


@given(st.lists(st.tuples(st.floats(1e-6, 5.0), st.none() | st.floats(1e-6, 5.0)), max_size=8))
def test_refreshed_estimates_equal_recomputed_ones(
    seen: list[tuple[float, float | None]],
) -> None:
    settings = SchedulingSettings(policy="synergai")
    estimator = Estimator(make_dictionary(), Loads(), settings)
    worker = Fleet(settings).add(make_worker(), 0.0)
    estimate = estimator.estimate(ENGINE, worker)
    assert estimate is not None
    for engine_s, transfer_s in seen:
        assignment = new_assignment(1, ENGINE, worker.id, 1, estimate.configuration)
        lease = Lease(assignment, make_record("job"), estimate, 1.0, 0.0, estimate.session, done=1)
        estimator.observe_queries(lease, worker, Observation(engine_s, transfer_s))
        drifted = estimator.estimates(ENGINE, worker)
        worker.estimates.clear()
        assert drifted == estimator.estimates(ENGINE, worker)


def test_deadlines_of_ended_jobs_do_not_accumulate() -> None:
    core = SchedulerCore(SchedulingSettings(preload=False), make_dictionary())
    for number in range(1000):
        job = make_record(f"job-{number}", deadline=3600.0 + number).job
        core.handle(events.JobArrived(replace(job, perishable=True), ready=1), 0.0)
        if number:
            core.handle(events.JobCancelled(job.id), 0.0)
    assert len(core.state.timers) < 100
    assert core.wakeup() == 3600.0
    assert core.handle(events.TimePassed(), 1e9) == [events.Expire(JobId("job-0"))]


@given(st.lists(st.tuples(SECONDS, SECONDS), min_size=1, max_size=20))
def test_single_requests_are_dispatched_at_once_and_leave_no_state(
    steps: list[tuple[float, float]],
) -> None:
    core = SchedulerCore(SchedulingSettings(policy="synergai", preload=False), make_dictionary())
    core.handle(events.WorkerJoined(make_worker()), 0.0)
    now = 0.0
    for number, (pause_s, compute_s) in enumerate(steps):
        now += pause_s
        [dispatch] = core.handle(new_request(str(number), ENGINE, now, deadline=now + 1000.0), now)
        assert isinstance(dispatch, events.Dispatch)
        now += compute_s
        end(core, dispatch.assignment, now, compute_s=compute_s)
        assert not core._leases.by_id
        assert not core._jobs.by_id
        assert not list(core._leases.paced_jobs(ENGINE))
        assert core.queued == 0
        assert core.wakeup() is None
