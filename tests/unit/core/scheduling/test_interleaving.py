"""Rules for running requests between two queries of a job."""

import random
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from synergai.core.scheduling.core import SchedulerCore
from synergai.core.scheduling.events import (
    Assignment,
    AssignmentEnded,
    AssignmentStarted,
    Command,
    Dispatch,
    Event,
    JobArrived,
    JobCancelled,
    QueriesDone,
    Stop,
    TimePassed,
    WorkerLeft,
)
from synergai.core.scheduling.policies import POLICIES
from synergai.core.scheduling.rules.interleaving import MAX_INTERRUPTIONS, PROBE_S
from synergai.core.scheduling.state.workers import MAX_REQUESTS
from synergai.domain import EngineName, JobId, Outcome, WorkerClass, WorkerId
from synergai.profiles.dictionary import ProfileEntry
from tests.cores import dispatched, end, make_core, new_entry, new_job, new_request, new_worker

BATCH, LIVE = EngineName("batch"), EngineName("live")
CLASS = WorkerClass("box")
SETUP_S = 5.0


def make_entry(engine: EngineName, qps: float = 10.0) -> ProfileEntry:
    return new_entry(engine, CLASS, qps, backend_start_s=SETUP_S)


def core_with(
    *,
    workers: int = 1,
    profiled: Iterable[EngineName] = (BATCH, LIVE),
    loaded: Iterable[EngineName] = (BATCH, LIVE),
    cores: int = 0,
    **settings: object,
) -> SchedulerCore:
    """A core with workers that serve both engines at 10 queries per second."""
    boxes = [
        new_worker(f"box-{number}", CLASS, [BATCH, LIVE], loaded=loaded, cores=cores)
        for number in range(workers)
    ]
    usual = {"policy": "synergai", "preload": False}
    return make_core(map(make_entry, profiled), boxes, **(usual | settings))


def make_job(
    name: str, queries: int = 1000, engine: EngineName = BATCH, **fields: Any
) -> JobArrived:
    return new_job(name, engine, queries, **fields)


def make_request(name: str, now: float, engine: EngineName = LIVE, **fields: Any) -> JobArrived:
    return new_request(name, engine, now, **{"deadline": now + 1.0, **fields})


def expected_answer_s(core: SchedulerCore, now: float, **fields: Any) -> float | None:
    return core.expected_answer_s(make_request("new", now, **fields).job, now)


def stopped(commands: Sequence[Command]) -> list[int]:
    return [c.assignment_id for c in commands if isinstance(c, Stop)]


@pytest.mark.parametrize("policy", POLICIES.names())
@pytest.mark.parametrize("workers", [1, 3])
def test_request_runs_after_the_current_query_of_a_job_under_every_policy(
    policy: str, workers: int
) -> None:
    core = core_with(policy=policy, workers=workers)
    running: list[Assignment] = []
    for number in range(workers):
        running += dispatched(core.handle(make_job(f"job-{number}"), 0.0))
    commands = core.handle(make_request("r", 1.05), 1.05)
    [request] = dispatched(commands)
    assert request.job_id == "r"
    stopped_ids = {a.id for a in running if a.worker_id == request.worker_id}
    assert stopped_ids & set(stopped(commands))
    assert request.estimate_s == pytest.approx(0.2), "one query of the job and its own"


@pytest.mark.parametrize("policy", sorted({*POLICIES.names()} - {"malleable"}))
def test_requests_spread_over_workers_that_answer_equally_soon(policy: str) -> None:
    core = core_with(policy=policy, workers=3)
    running: dict[WorkerId, Assignment] = {}
    for number in range(3):
        for job in dispatched(core.handle(make_job(f"job-{number}"), 0.0)):
            running[job.worker_id] = job
    interrupted: list[WorkerId] = []
    for number in range(6):
        now = 1.05 + number
        [request] = dispatched(core.handle(make_request(f"r-{number}", now), now))
        job = running[request.worker_id]
        done = round(10 * now) - job.first
        core.handle(AssignmentEnded(job.id, done, Outcome.STOPPED), now + 0.1)
        commands = end(core, request, now + 0.2)
        [running[request.worker_id]] = dispatched(commands)
        interrupted.append(request.worker_id)
    assert len(set(interrupted[:3])) == len(set(interrupted[3:])) == 3


def test_requests_take_no_turns_on_a_worker_that_answers_much_later() -> None:
    entries = [
        new_entry(engine, name, qps)
        for name, qps in (("slow", 5.0), ("fast", 10.0))
        for engine in (BATCH, LIVE)
    ]
    workers = [new_worker(name, name, [BATCH, LIVE]) for name in ("slow", "fast")]
    core = make_core(entries, workers, policy="rr", preload=False)
    for number in range(2):
        [job] = dispatched(core.handle(make_job(f"job-{number}"), 0.0))
    for number in range(3):
        now = 1.05 + number
        [request] = dispatched(core.handle(make_request(f"r-{number}", now), now))
        assert request.worker_id == job.worker_id == "fast"
        core.handle(AssignmentEnded(job.id, round(10 * now) - job.first, Outcome.STOPPED), now)
        [job] = dispatched(end(core, request, now + 0.1))


@pytest.mark.parametrize("policy", ["rr", "srr"])
def test_request_does_not_advance_the_rotation_of_jobs(policy: str) -> None:
    core = core_with(policy=policy, workers=3)
    [first] = dispatched(core.handle(make_job("job-0"), 0.0))
    [request] = dispatched(core.handle(make_request("r", 1.0), 1.0))
    end(core, request, 1.1)
    [second] = dispatched(core.handle(make_job("job-1"), 2.0))
    assert (first.worker_id, second.worker_id) == ("box-0", "box-1")


@pytest.mark.parametrize("policy", POLICIES.names())
def test_interrupted_job_is_resumed_behind_the_request(policy: str) -> None:
    core = core_with(policy=policy)
    [job] = dispatched(core.handle(make_job("job", queries=100), 0.0))
    [request] = dispatched(core.handle(make_request("r", 1.05), 1.05))
    core.handle(AssignmentEnded(job.id, 11, Outcome.STOPPED), 1.1)
    commands = end(core, request, 1.2)
    [rest] = dispatched(commands)
    assert (rest.job_id, rest.first, rest.count) == ("job", 11, 89)


@pytest.mark.parametrize("fields", [{}, {"loaded": [LIVE], "cores": 1}], ids=["run", "load"])
def test_strict_core_lets_the_job_finish_first(fields: dict[str, Any]) -> None:
    core = core_with(strict=True, **fields)
    core.handle(make_job("job"), 0.0)
    assert core.handle(make_request("r", 1.0), 1.0) == []


def test_job_of_higher_priority_does_not_yield() -> None:
    core = core_with(policy="synergai")
    core.handle(make_job("job", priority=5), 0.0)
    assert core.handle(make_request("r", 1.0, priority=4), 1.0) == []
    assert dispatched(core.handle(make_request("s", 1.0, priority=5), 1.0)) != []


@pytest.mark.parametrize(("deadline", "yields"), [(10.3, False), (5.0, True)])
def test_job_yields_unless_it_would_miss_its_deadline_by_that(
    deadline: float, *, yields: bool
) -> None:
    core = core_with()
    core.handle(make_job("job", queries=100, deadline=deadline), 0.0)
    assert bool(core.handle(make_request("r", 0.0), 0.0)) is yields


def test_few_requests_are_in_flight_and_the_others_wait_in_the_queues_order() -> None:
    core = core_with(policy="synergai")
    core.handle(make_job("job"), 0.0)
    names = [f"r{number}" for number in range(MAX_REQUESTS + 3)]
    sent = [a for name in names for a in dispatched(core.handle(make_request(name, 0.0), 0.0))]
    assert [a.job_id for a in sent] == names[:MAX_REQUESTS]
    assert core.queued == 3


class Box:
    """Executes the assignments of one worker in order, one query per tick."""

    def __init__(self, core: SchedulerCore) -> None:
        self._core = core
        self._assignments: list[Assignment] = []
        self._stopping: set[int] = set()
        self._done = 0
        self.ran: list[JobId] = []

    def handle(self, event: Event, now: float) -> None:
        for command in self._core.handle(event, now):
            if isinstance(command, Dispatch):
                self._assignments.append(command.assignment)
            elif isinstance(command, Stop):
                self._stopping.add(command.assignment_id)

    def tick(self, now: float) -> None:
        while self._assignments and self._assignments[0].id in self._stopping:
            self._end(Outcome.STOPPED, now)
        if not self._assignments:
            return
        head = self._assignments[0]
        self._done += 1
        self.ran.append(head.job_id)
        if self._done == head.count:
            self._end(Outcome.COMPLETED, now)
        else:
            self.handle(QueriesDone(head.id, self._done, self._done * 0.1), now)

    def _end(self, outcome: Outcome, now: float) -> None:
        head = self._assignments.pop(0)
        done, self._done = self._done, 0
        self.handle(AssignmentEnded(head.id, done, outcome), now)


@pytest.mark.parametrize("policy", ["be", "fifo", "lru", "mru", "rr", "srr"])
def test_saturating_requests_do_not_starve_a_job_under_policies_without_deadlines(
    policy: str,
) -> None:
    box = Box(core_with(policy=policy))
    box.handle(make_job("job"), 0.0)
    for number in range(300):
        now = number * 0.1
        box.handle(make_request(f"r{number}", now, deadline=now + 60.0), now)
        box.tick(now + 0.05)
    done = box.ran.count(JobId("job"))
    assert done >= len(box.ran) / (MAX_INTERRUPTIONS + 2)
    assert done <= len(box.ran) / 2, "requests do run"


@pytest.mark.parametrize("policy", POLICIES.names())
def test_requests_at_half_load_leave_the_other_half_to_the_job(policy: str) -> None:
    box = Box(core_with(policy=policy))
    box.handle(make_job("job"), 0.0)
    for number in range(200):
        now = number * 0.1
        if number % 2:
            box.handle(make_request(f"r{number}", now), now)
        box.tick(now + 0.05)
    assert len(box.ran) == 200
    assert 99 <= box.ran.count(JobId("job")) <= 101


def test_request_for_an_unprofiled_engine_is_measured_between_two_queries() -> None:
    core = core_with(policy="synergai", profiled=[BATCH])
    core.handle(make_job("job"), 0.0)
    [probe] = dispatched(core.handle(make_request("r", 1.0), 1.0))
    assert (probe.job_id, probe.probe) == ("r", True)
    assert dispatched(core.handle(make_request("s", 1.0), 1.0)) == [], "one probe at a time"


# SLO-MAEL chooses jobs by their slack on the available worker.
@pytest.mark.parametrize("policy", sorted({*POLICIES.names()} - {"malleable", "slo_mael"}))
def test_rest_of_an_interrupted_job_goes_before_others_and_keeps_the_rotation(policy: str) -> None:
    core = core_with(policy=policy, workers=3)
    running: dict[WorkerId, Assignment] = {}
    for number in range(4):
        for job in dispatched(core.handle(make_job(f"job-{number}"), 0.0)):
            running.setdefault(job.worker_id, job)
    [request] = dispatched(core.handle(make_request("r", 1.05), 1.05))
    job = running[request.worker_id]
    core.handle(AssignmentEnded(job.id, 11, Outcome.STOPPED), 1.1)
    commands = end(core, request, 1.2)
    [rest] = dispatched(commands)
    assert (rest.job_id, rest.worker_id, rest.first) == (job.job_id, job.worker_id, 11)


@pytest.mark.parametrize("policy", sorted({*POLICIES.names()} - {"slo_mael"}))
def test_waiting_job_of_higher_priority_runs_before_the_rest_of_an_interrupted_one(
    policy: str,
) -> None:
    core = core_with(policy=policy)
    [low] = dispatched(core.handle(make_job("low"), 0.0))
    [request] = dispatched(core.handle(make_request("r", 1.05), 1.05))
    urgent = dispatched(core.handle(make_job("urgent", priority=5), 1.06))
    core.handle(AssignmentEnded(low.id, 11, Outcome.STOPPED), 1.1)
    urgent += dispatched(end(core, request, 1.2))
    assert [assignment.job_id for assignment in urgent][:1] == ["urgent"]


@pytest.mark.parametrize("policy", sorted({*POLICIES.names()} - {"malleable"}))
def test_interrupted_job_whose_worker_has_left_runs_elsewhere(policy: str) -> None:
    core = core_with(policy=policy, workers=2)
    first = dispatched(core.handle(make_job("first"), 0.0))
    first += dispatched(core.handle(make_job("second"), 0.0))
    [request] = dispatched(core.handle(make_request("r", 1.05), 1.05))
    job = next(each for each in first if each.worker_id == request.worker_id)
    other = next(each for each in first if each.worker_id != request.worker_id)
    core.handle(AssignmentEnded(job.id, 11, Outcome.STOPPED), 1.1)
    core.handle(WorkerLeft(request.worker_id), 1.15)
    commands = end(core, other, 100.0)
    [rest] = dispatched(commands)
    assert (rest.job_id, rest.worker_id, rest.first) == (job.job_id, other.worker_id, 11)


@pytest.mark.parametrize("policy", POLICIES.names())
def test_cancelled_job_is_never_dispatched(policy: str) -> None:
    for seed in range(20):
        rng = random.Random(seed)
        core = core_with(policy=policy, workers=3)
        in_flight: dict[int, Assignment] = {}
        stopping: set[int] = set()
        waiting = [f"job-{number}" for number in range(3)]
        cancelled: set[str] = set()
        now = 0.0

        def handle(event: Event) -> None:
            commands = core.handle(event, now)  # noqa: B023 - called within this iteration
            stopping.update(stopped(commands))  # noqa: B023 - likewise
            for assignment in dispatched(commands):
                assert assignment.job_id not in cancelled  # noqa: B023 - likewise
                in_flight[assignment.id] = assignment  # noqa: B023 - likewise

        for name in waiting:
            handle(make_job(name, queries=10**9))
        for number in range(60):
            now += rng.choice([0.001, 0.01, 0.02, 0.3])
            draw = rng.random()
            if draw < 0.3:
                handle(make_request(f"r-{number}", now))
            elif draw < 0.9 and in_flight:
                assignment = rng.choice(list(in_flight.values()))
                if assignment.count == 1:
                    del in_flight[assignment.id]
                    handle(AssignmentEnded(assignment.id, 1, Outcome.COMPLETED))
                elif assignment.id in stopping:
                    del in_flight[assignment.id]
                    handle(AssignmentEnded(assignment.id, rng.randint(0, 50), Outcome.STOPPED))
                else:
                    handle(QueriesDone(assignment.id, rng.randint(1, 30)))
            elif number > 30 and waiting:
                cancelled.add(waiting[-1])
                handle(JobCancelled(JobId(waiting.pop())))


@pytest.mark.parametrize("policy", ["rr", "srr"])
def test_requests_rotate_among_themselves(policy: str) -> None:
    core = core_with(policy=policy, workers=3)
    workers: list[WorkerId] = []
    for number in range(6):
        [request] = dispatched(core.handle(make_request(f"r-{number}", number), number))
        end(core, request, number + 0.1)
        workers.append(request.worker_id)
    assert workers == ["box-0", "box-1", "box-2"] * 2


def test_idle_worker_that_was_interrupted_before_is_preferred_to_an_interruption() -> None:
    core = core_with(policy="srr", workers=2)
    jobs = dispatched(core.handle(make_job("a", queries=100), 0.0))
    jobs += dispatched(core.handle(make_job("b"), 0.0))
    [request] = dispatched(core.handle(make_request("r-0", 1.05), 1.05))
    job = next(each for each in jobs if each.worker_id == request.worker_id)
    core.handle(AssignmentEnded(job.id, 11, Outcome.STOPPED), 1.1)
    [rest] = dispatched(end(core, request, 1.2))
    end(core, rest, 20.0)
    commands = core.handle(make_request("r-1", 21.0), 21.0)
    assert stopped(commands) == []
    assert [each.worker_id for each in dispatched(commands)] == [rest.worker_id]


def test_requests_in_flight_count_together_against_a_jobs_deadline() -> None:
    core = core_with(policy="synergai")
    core.handle(make_job("tight", queries=20, deadline=2.35), 0.0)
    answered = [dispatched(core.handle(make_request(f"r{n}", 0.0), 0.0)) for n in range(4)]
    assert [len(each) for each in answered] == [1, 1, 0, 0]


@pytest.mark.parametrize(("slack_s", "yields"), [(PROBE_S - 1.0, False), (PROBE_S + 2.0, True)])
def test_job_with_a_deadline_yields_to_a_probe_if_it_has_time_for_one(
    slack_s: float, *, yields: bool
) -> None:
    core = core_with(policy="synergai", profiled=[BATCH])
    core.handle(make_job("job", queries=100, deadline=10.0 + slack_s), 0.0)
    assert bool(stopped(core.handle(make_request("r", 1.0), 1.0))) is yields


# --- expected answer --------------------------------------------------------------------


def test_expected_answer_is_one_query_of_the_job_and_the_requests_own() -> None:
    core = core_with(policy="synergai")
    core.handle(make_job("job"), 0.0)
    assert expected_answer_s(core, 1.0) == pytest.approx(0.2)


def test_expected_answer_counts_the_remaining_work_of_jobs_that_do_not_yield() -> None:
    core = core_with(policy="synergai", strict=True)
    core.handle(make_job("job", queries=100), 0.0)
    assert expected_answer_s(core, 1.0) == pytest.approx(9.1)


def test_expected_answer_is_soon_while_the_job_has_its_turn_between_requests() -> None:
    core = core_with(policy="synergai")
    box = Box(core)
    box.handle(make_job("job"), 0.0)
    for number in range(100):
        now = number * 0.1
        box.handle(make_request(f"r{number}", now, deadline=now + 60.0), now)
        expected_s = expected_answer_s(core, now)
        assert expected_s is not None
        assert expected_s <= 1.0
        box.tick(now + 0.05)


def test_expected_answer_of_an_idle_worker_is_its_query_time_although_others_are_busy() -> None:
    core = core_with(policy="synergai", workers=2, strict=True)
    core.handle(make_job("job"), 0.0)
    assert expected_answer_s(core, 0.0) == pytest.approx(0.1)


def test_expected_answer_of_an_idle_worker_is_no_longer_than_profiled() -> None:
    core = core_with(policy="synergai")
    [slow] = dispatched(core.handle(make_job("slow", queries=10, engine=LIVE), 0.0))
    core.handle(QueriesDone(slow.id, 9, 9.0), 9.0)
    end(core, slow, 10.0)
    assert core.paces[WorkerId("box-0"), LIVE] > 2.0
    assert expected_answer_s(core, 11.0) == pytest.approx(0.1)


def test_least_answer_is_the_query_time_of_the_fastest_worker_although_it_is_busy() -> None:
    core = core_with(policy="synergai", strict=True)
    core.handle(make_job("job", queries=100), 0.0)
    assert core.least_answer_s(LIVE) == pytest.approx(0.1)
    assert core.least_answer_s(EngineName("absent")) == 0.0


def test_expected_answer_of_an_unknown_engine_is_unknown() -> None:
    core = core_with(policy="synergai")
    assert expected_answer_s(core, 0.0, engine=EngineName("absent")) is None


def test_expected_answer_counts_only_the_rest_of_a_running_request() -> None:
    core = core_with(policy="synergai")
    core.handle(make_request("running", 0.0), 0.0)
    assert expected_answer_s(core, 0.05) == pytest.approx(0.15)


def test_requests_wait_for_the_load_of_a_worker_that_runs_nothing_beside_it() -> None:
    core = core_with(policy="synergai", loaded=[LIVE])
    core.handle(make_job("job"), 0.0)
    assert expected_answer_s(core, 1.0) == pytest.approx(4.2), "with the rest of the load"


def test_assignment_that_runs_before_the_end_of_the_one_ahead_is_heard_has_paid_its_setup() -> None:
    core = core_with(policy="synergai", loaded=[LIVE])
    usual: dict[str, Any] = {"deadline": 100.0}
    [first] = dispatched(core.handle(make_request("first", 0.0), 0.0))
    core.handle(make_job("job", queries=100, **usual), 0.0)
    [job] = dispatched(core.handle(TimePassed(), 0.09))
    core.handle(AssignmentStarted(job.id, SETUP_S), 5.0)
    end(core, first, 5.1)
    assert core.expected_completion(JobId("job"), 5.1) == pytest.approx(15.0)
