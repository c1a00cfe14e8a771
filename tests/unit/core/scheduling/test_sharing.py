"""Requests that run concurrently with the work of busy workers."""

import math
from collections.abc import Iterable
from typing import Any

import pytest
from msgspec.structs import replace

from synergai.core.scheduling import events
from synergai.core.scheduling.core import SchedulerCore
from synergai.core.scheduling.policies import POLICIES
from synergai.core.scheduling.rules.concurrency import BRIEF_SHARE, MAX_BRIEF_REQUESTS, MEASURED_S
from synergai.core.scheduling.rules.interleaving import QUEUED_SHARE
from synergai.domain import Configuration, EngineName, JobId, Outcome, WorkerClass, WorkerId
from synergai.profiles.dictionary import ProfileEntry
from tests.cores import dispatched, end, make_core, new_entry, new_job, new_request, new_worker

LONG, SHORT, OTHER, THIRD = map(EngineName, ("long", "short", "other", "third"))
CLASS = WorkerClass("box")
BOX = WorkerId("box-0")
QUERY_S = {LONG: 0.1, SHORT: 0.0002, OTHER: 0.05, THIRD: 0.05}


def core_with_box(
    *,
    cores: int = 2,
    threads: int = 2,
    provider: str = "",
    policy: str = "malleable",
    loaded: Iterable[EngineName] = tuple(QUERY_S),
    profiled: Iterable[EngineName] = tuple(QUERY_S),
    **settings: object,
) -> SchedulerCore:
    """A core with a worker whose engines use `threads` of its cores."""
    configuration = Configuration(threads, execution_provider=provider)
    entries = (
        new_entry(engine, CLASS, 1.0 / QUERY_S[engine], configuration, backend_start_s=1.0)
        for engine in profiled
    )
    worker = new_worker(BOX, CLASS, QUERY_S, (configuration,), loaded=loaded, cores=cores)
    return make_core(entries, [worker], policy=policy, **settings)


def send(core: SchedulerCore, name: str, engine: EngineName, now: float) -> list[events.Assignment]:
    """Let a request arrive; return what is dispatched."""
    return dispatched(core.handle(new_request(name, engine, now), now))


def expected_answer_s(core: SchedulerCore, engine: EngineName, now: float) -> float | None:
    return core.expected_answer_s(new_request("new", engine, now).job, now)


every_policy = pytest.mark.parametrize("policy", POLICIES.names())


@every_policy
def test_brief_request_does_not_wait_for_long_ones(policy: str) -> None:
    core = core_with_box(policy=policy)
    [long] = send(core, "long-0", LONG, 0.0)
    send(core, "long-1", LONG, 0.001)
    [short] = send(core, "short", SHORT, 0.002)
    assert (long.concurrent, short.concurrent) == (False, True)
    assert short.estimate_s == pytest.approx(QUERY_S[SHORT])


@pytest.mark.parametrize(
    ("engine", "fields"),
    [
        pytest.param(OTHER, {}, id="it is not brief, and the threads exceed the cores"),
        pytest.param(SHORT, {"cores": 8, "profiled": [SHORT]}, id="the other is measured"),
        pytest.param(SHORT, {"cores": 8, "loaded": [LONG]}, id="it is cold"),
        pytest.param(SHORT, {"cores": 0}, id="the worker reports no cores"),
        pytest.param(SHORT, {"strict": True}, id="the core is strict"),
        pytest.param(SHORT, {"cores": 8, "provider": "CUDA"}, id="both run on the accelerator"),
    ],
)
def test_request_waits_for_a_running_one_if(engine: EngineName, fields: dict[str, Any]) -> None:
    core = core_with_box(**fields)
    send(core, "long", LONG, 0.0)
    assert send(core, "waits", engine, 0.001) == []


def test_requests_run_side_by_side_if_the_cores_suffice_for_their_threads() -> None:
    core = core_with_box(cores=4)
    send(core, "long", LONG, 0.0)
    [other] = send(core, "other", OTHER, 0.001)
    assert other.concurrent


def test_request_whose_transfer_leaves_no_room_to_run_concurrently_is_not_sent_behind_a_job() -> (
    None
):
    core = core_with_box(cores=4, prefetch_s=0.06)
    [running] = dispatched(core.handle(new_job("job", LONG, 10**9), 0.0))
    core.handle(events.AssignmentStarted(running.id, 0.0), 0.0)
    for number in range(10):  # the time that its tensors take is learned
        [request] = send(core, str(number), OTHER, float(number))
        assert request.concurrent
        end(core, request, number + 2 * QUERY_S[OTHER], compute_s=QUERY_S[OTHER])
    send(core, "first", OTHER, 20.0)
    commands = core.handle(new_request("second", OTHER, 20.0), 20.001)
    [request] = dispatched(commands)
    assert not request.concurrent
    assert events.Stop(running.id, BOX, abort=False) in commands


@every_policy
def test_concurrent_requests_do_not_stop_it(policy: str) -> None:
    core = core_with_box(policy=policy)
    [running] = dispatched(core.handle(new_job("job", LONG, 100), 0.0))
    core.handle(events.AssignmentStarted(running.id, 0.0), 0.0)
    for number in range(20):
        now = 0.1 + 0.001 * number
        assert expected_answer_s(core, SHORT, now) == pytest.approx(QUERY_S[SHORT])
        commands = core.handle(new_request(f"r-{number}", SHORT, now), now)
        assert not any(isinstance(command, events.Stop) for command in commands)
        [short] = dispatched(commands)
        end(core, short, now + 0.0005)


@every_policy
def test_requests_run_during_the_load_for_other_work(policy: str) -> None:
    core = core_with_box(policy=policy, loaded=[OTHER])
    [loading] = dispatched(core.handle(new_job("job", LONG, 100), 0.0))
    assert expected_answer_s(core, OTHER, 0.1) == pytest.approx(QUERY_S[OTHER])
    [other] = send(core, "other", OTHER, 0.1)
    assert other.concurrent
    end(core, other, 0.15)
    core.handle(events.AssignmentStarted(loading.id, 1.0), 1.0)
    assert core.expected_completion(JobId("job"), 1.0) == pytest.approx(11.0)


def test_concurrent_requests_in_one_session_are_limited() -> None:
    core = core_with_box()
    send(core, "long", LONG, 0.0)
    requests = range(2 * MAX_BRIEF_REQUESTS)
    found = [send(core, f"short-{number}", SHORT, 0.001) for number in requests]
    assert sum(map(len, found)) == MAX_BRIEF_REQUESTS
    [next_one] = dispatched(end(core, found[0][0], 0.002))
    assert next_one.concurrent


def test_brief_requests_do_not_wait_however_many_there_were_before() -> None:
    core = core_with_box()
    send(core, "long", LONG, 0.0)
    for number in range(2 * int(QUERY_S[LONG] / QUERY_S[SHORT])):
        [short] = send(core, f"short-{number}", SHORT, 0.0001 * number)
        assert short.concurrent
        end(core, short, 0.0001 * number)


def test_brief_request_does_not_wait_for_long_ones_behind_its_own_engine() -> None:
    core = core_with_box()
    send(core, "short-0", SHORT, 0.0)
    send(core, "long", LONG, 0.0)
    [short] = send(core, "short-1", SHORT, 0.0)
    assert short.concurrent


def test_request_stays_brief_although_shared_cores_lengthen_a_few_of_its_queries() -> None:
    core = core_with_box(pace_half_life_s=0.001)
    send(core, "long", LONG, 0.0)
    now = 0.0
    for number in range(60):
        [short] = send(core, f"short-{number}", SHORT, now)
        assert short.concurrent
        compute_s = QUERY_S[SHORT] if number % 3 else 0.1
        now += compute_s
        end(core, short, now, compute_s=compute_s)
    assert short.query_s > BRIEF_SHARE * QUERY_S[LONG], "its mean is long"


def test_request_that_has_become_long_waits() -> None:
    core = core_with_box()
    send(core, "long", LONG, 0.0)
    for number in range(40):
        [short] = send(core, f"short-{number}", SHORT, 0.05 * number)
        ended = events.AssignmentEnded(short.id, 1, Outcome.COMPLETED, compute_s=0.05)
        core.handle(ended, 0.05 * (number + 1))
    assert not short.concurrent


def test_long_request_waits_for_the_one_that_runs_concurrently_in_its_session() -> None:
    seconds = {LONG: 3.0, SHORT: 0.01}
    entries = [new_entry(engine, CLASS, 1.0 / each) for engine, each in seconds.items()]
    core = make_core(entries, [new_worker(BOX, CLASS, seconds, cores=2)])
    [head] = send(core, "head", SHORT, 0.0)
    [concurrent] = send(core, "long-0", LONG, 0.001)
    assert concurrent.concurrent
    assert not send(core, "long-1", LONG, 0.002)
    assert not dispatched(end(core, head, 0.01))
    behind_both_s = 3.001 - 0.5 + 3.0 / QUEUED_SHARE + 3.0
    assert expected_answer_s(core, LONG, 0.5) == pytest.approx(behind_both_s)
    [following] = dispatched(end(core, concurrent, 3.001))
    assert following.job_id == "long-1"


def test_request_that_waits_for_cores_is_not_overtaken() -> None:
    core = core_with_box(cores=4)
    send(core, "long", LONG, 0.0)
    [other] = send(core, "other", OTHER, 0.001)
    assert send(core, "third", THIRD, 0.002) == []
    assert send(core, "fourth", OTHER, 0.003) == [], "its session never becomes free otherwise"
    [third] = dispatched(end(core, other, 0.05))
    assert (third.engine, third.concurrent) == (THIRD, True)
    [short] = send(core, "short", SHORT, 0.051)
    assert short.concurrent, "brief ones take no cores"


def test_request_in_the_session_of_the_running_one_queues_behind_it() -> None:
    core = core_with_box(cores=8)
    send(core, "first", SHORT, 0.0)
    [second] = send(core, "second", SHORT, 0.0001)
    assert not second.concurrent


@every_policy
def test_request_does_not_wait_for_a_measurement_of_a_long_query(policy: str) -> None:
    core = core_with_box(policy=policy, profiled=[SHORT])
    send(core, "long", LONG, 0.0)
    assert send(core, "short", SHORT, 1.0) == []
    wait_until = 1.0 + MEASURED_S
    assert core.wakeup() == wait_until
    [short] = dispatched(core.handle(events.TimePassed(), wait_until))
    assert short.concurrent
    [another] = send(core, "another", SHORT, wait_until)
    assert another.concurrent


def test_request_waits_for_a_measurement_that_advances() -> None:
    core = core_with_box(profiled=[SHORT], probe_queries=10)
    [probe] = dispatched(core.handle(new_job("job", LONG, 10), 0.0))
    core.handle(events.AssignmentStarted(probe.id, 0.0), 0.0)
    assert send(core, "short", SHORT, 0.0) == []
    advanced_at = 0.5 * MEASURED_S
    core.handle(events.QueriesDone(probe.id, 1), advanced_at)
    assert dispatched(core.handle(events.TimePassed(), MEASURED_S)) == []
    [short] = dispatched(core.handle(events.TimePassed(), advanced_at + MEASURED_S))
    assert short.concurrent


def test_request_does_not_wait_for_a_measured_query_that_began_long_ago() -> None:
    core = core_with_box(profiled=[SHORT], probe_queries=10)
    [probe] = dispatched(core.handle(new_job("job", LONG, 10), 0.0))
    core.handle(events.AssignmentStarted(probe.id, 0.0), 0.0)
    assert send(core, "cancelled", SHORT, 0.0) == []
    core.handle(events.JobCancelled(JobId("cancelled")), 0.1)
    core.handle(events.QueriesDone(probe.id, 1), 1.0)
    now = 1.0 + 2.0 * MEASURED_S
    [short] = send(core, "short", SHORT, now)
    assert short.concurrent
    assert (core.wakeup() or math.inf) > now


def test_concurrent_requests_are_taken_back_with_them() -> None:
    core = core_with_box()
    send(core, "long", LONG, 0.0)
    send(core, "short", SHORT, 0.001)
    commands = core.handle(events.AssignmentsRevoked(BOX), 0.002)
    assert sum(isinstance(command, events.Revoke) for command in commands) == 2
    assert len(dispatched(commands)) == 2


def test_hung_worker_is_ejected_though_concurrent_requests_complete() -> None:
    core = core_with_box()
    worker = core.state.fleet.workers[BOX].worker
    core.handle(
        events.WorkerJoined(replace(worker, id=WorkerId("box-1"), engines=frozenset({LONG}))), 0.0
    )
    send(core, "hung", LONG, 0.0)
    for second in range(1, 100):
        [short] = send(core, f"short-{second}", SHORT, float(second))
        end(core, short, second + 0.001)
        commands = core.handle(events.ProgressChecked(), second + 0.2)
        if any(isinstance(each, events.Eject) and each.worker_id == BOX for each in commands):
            return
    pytest.fail("it was not ejected")


@pytest.mark.parametrize("others", [1, 2])
def test_worker_is_ejected_if_only_a_concurrent_request_hangs(others: int) -> None:
    core = core_with_box()
    [long] = send(core, "long-0", LONG, 0.0)
    [hung] = send(core, "hung", SHORT, 0.0)
    for number in range(1, others):
        send(core, f"long-{number}", LONG, 0.0)
    end(core, long, 100.0)
    other = replace(core.state.fleet.workers[BOX].worker, id=WorkerId("box-1"))
    core.handle(events.WorkerJoined(other), 100.0)
    commands = core.handle(events.ProgressChecked(), 100.2)
    assert events.Revoke(hung.id, BOX) in commands
    assert any(isinstance(each, events.Eject) and each.worker_id == BOX for each in commands)


def test_profile_of_one_cold_request_is_corrected_by_the_requests_that_follow() -> None:
    core = core_with_box(profiled=[], probe_queries=16)
    learned: list[float] = []
    for number in range(20):
        [assignment] = send(core, f"r-{number}", LONG, 2.0 * number)
        assert assignment.probe == (number == 0)
        if number > 1:
            assert assignment.query_s == pytest.approx(0.03)
        compute_s = 0.03 if number else 1.6
        commands = end(core, assignment, 2.0 * number + compute_s, compute_s=compute_s)
        learned += [1 / each.entry.qps for each in commands if isinstance(each, events.Learned)]
    assert learned == pytest.approx([1.6, 0.03]), "and stored once it rests on enough of them"


THREADS = tuple(Configuration(count) for count in (1, 2, 4))


def core_of(
    *entries: ProfileEntry, query_s: dict[EngineName, float] | None = None
) -> SchedulerCore:
    """A core with a worker of four cores and the thread counts 1, 2 and 4."""
    worker = new_worker(BOX, CLASS, QUERY_S, THREADS, loaded=(), query_s=query_s or {}, cores=4)
    return make_core(entries, [worker])


def entry_of(engine: EngineName, threads: int, qps: float) -> ProfileEntry:
    return new_entry(engine, CLASS, qps, Configuration(threads))


@pytest.mark.parametrize(("query_s", "threads"), [(0.0005, 1), (0.02, 4), (0.0, 4)])
def test_engine_that_was_brief_on_inspection_is_measured_with_one_thread(
    query_s: float, threads: int
) -> None:
    core = core_of(query_s={SHORT: query_s})
    [probe] = send(core, "first", SHORT, 0.0)
    assert probe.probe
    assert probe.configuration.threads == threads


@pytest.mark.parametrize(
    ("qps", "threads"),
    [((900, 1000, 950), 1), ((500, 1000, 950), 2), ((90, 100, 95), 2), ((500, 600, 1000), 4)],
)
def test_brief_engine_runs_with_the_fewest_threads_that_are_about_as_fast(
    qps: tuple[float, ...], threads: int
) -> None:
    entries = [entry_of(SHORT, each.threads, rate) for each, rate in zip(THREADS, qps, strict=True)]
    [assignment] = send(core_of(*entries), "first", SHORT, 0.0)
    assert assignment.configuration.threads == threads
