"""Single queries of an engine with profiled batches."""

import itertools
import math

import pytest
from msgspec.structs import replace

from synergai.core.scheduling import events
from synergai.core.scheduling.core import SchedulerCore
from synergai.domain import Configuration, EngineName, Session, WorkerId
from tests.cores import ONE, dispatched, end, make_core, new_entry, new_job, new_request, new_worker

BATCHED, SINGLE = EngineName("batched"), EngineName("single")
ENTRIES = (
    new_entry(BATCHED, "c", 10.0, batch_qps=(16.0, 20.0)),
    new_entry(SINGLE, "c", 10.0),
)
JOINED = events.WorkerJoined(new_worker("w", "c", [BATCHED, SINGLE]))


def core_with_worker() -> SchedulerCore:
    return make_core(ENTRIES, [JOINED.worker], policy="synergai")


def make_request(
    number: int, engine: EngineName = BATCHED, deadline: float = math.inf
) -> events.JobArrived:
    return new_request(f"r{number}", engine, deadline=deadline)


def test_worker_gets_one_batch_ahead() -> None:
    core = core_with_worker()
    given = [len(dispatched(core.handle(make_request(number), 0.0))) for number in range(12)]
    assert given == [1] * 8 + [0] * 4


def test_assignment_without_batches_ends_the_batch() -> None:
    core = core_with_worker()
    for number, engine in enumerate((BATCHED, SINGLE)):
        assert dispatched(core.handle(make_request(number, engine), 0.0))
    assert not dispatched(core.handle(make_request(2), 0.0))


OTHER, THIRD = EngineName("other"), EngineName("third")


def core_with_three_engines(policy: str, cores: int = 0) -> SchedulerCore:
    """Return a core with a worker that has three engines with batches of up to 4."""
    engines = BATCHED, OTHER, THIRD
    worker = replace(
        JOINED.worker,
        engines=frozenset(engines),
        sessions=frozenset(Session(engine, ONE) for engine in engines),
        cores=cores,
    )
    return make_core(
        [replace(ENTRIES[0], engine=each) for each in engines], [worker], policy=policy
    )


@pytest.mark.parametrize("policy", ["fifo", "edf", "synergai", "malleable"])
def test_requests_of_engines_in_turn_are_dispatched_in_batches(policy: str) -> None:
    core = core_with_three_engines(policy)
    given: list[events.Assignment] = []
    for number in range(30):
        engine = (BATCHED, OTHER, THIRD)[number % 3]
        given += dispatched(core.handle(make_request(number, engine), 0.0))
    order = []
    while given:
        assignment = given.pop(0)
        order.append(assignment.engine)
        given += dispatched(end(core, assignment, core.state.now + 0.1, compute_s=0.1))
    runs = [len(list(run)) for _, run in itertools.groupby(order)]
    assert len(order) == 30
    assert len(runs) <= 10  # of 3 at least, in the mean
    assert not core.state.fleet.workers[WorkerId("w")].groups


def test_requests_next_to_batches_of_another_engine_form_batches_too() -> None:
    core = core_with_three_engines("malleable", cores=2)
    assert dispatched(core.handle(make_request(0), 0.0))
    given = [dispatched(core.handle(make_request(n, OTHER), 0.0)) for n in range(1, 12)]
    concurrent = [assignment for each in given for assignment in each]
    assert [assignment.concurrent for assignment in concurrent] == [True] * 8
    assert concurrent[-1].query_s == pytest.approx(0.05)


@pytest.mark.parametrize("policy", ["fifo", "rr", "lru"])
def test_worker_has_no_more_of_one_engine_than_two_batches(policy: str) -> None:
    core = core_with_three_engines(policy)
    given = [len(dispatched(core.handle(make_request(number), 0.0))) for number in range(20)]
    assert sum(given) == 8


def test_assignment_carries_batch_times_and_compute_by() -> None:
    core = core_with_worker()
    [first] = dispatched(core.handle(make_request(0, deadline=9.0), 0.0))
    assert first.batch_times is not None
    assert first.batch_times.by_size == pytest.approx((0.1, 0.125, 0.2))
    assert first.compute_by == 9.0
    [other] = dispatched(core_with_worker().handle(make_request(1, SINGLE, deadline=9.0), 0.0))
    assert (other.batch_times, other.compute_by) == (None, math.inf)


def test_batched_queries_are_estimated_at_their_share_of_a_batch() -> None:
    core = core_with_worker()
    for number in range(4):
        core.handle(make_request(number), 0.0)
    assert core.state.fleet.workers[WorkerId("w")].free_at(0.0) == pytest.approx(0.1 + 3 * 0.05)


def a_job(
    queries: int, engine: EngineName = BATCHED, *, with_tensors: bool = False
) -> events.JobArrived:
    return new_job("job", engine, queries, with_tensors=with_tensors)


@pytest.mark.parametrize("with_tensors", [False, True])
def test_job_runs_in_the_smallest_batches_that_are_nearly_as_fast_as_any(
    *, with_tensors: bool
) -> None:
    times = {"qps": 100.0, "batch_qps": (180.0, 300.0, 310.0, 312.0)}
    core = make_core([replace(ENTRIES[0], **times)], [JOINED.worker])
    [assignment] = dispatched(core.handle(a_job(900, with_tensors=with_tensors), 0.0))
    assert assignment.batch_times is not None
    assert assignment.batch_times.max_rows == 4
    assert assignment.query_s == pytest.approx(1 / 300)
    assert assignment.estimate_s == pytest.approx(3.0)


def test_request_waits_no_longer_for_a_batch_of_a_job_than_for_a_short_query() -> None:
    entry = replace(ENTRIES[0], qps=10.0, batch_qps=(15.0, 25.0, 32.0))
    core = make_core([entry], [JOINED.worker])
    [assignment] = dispatched(core.handle(a_job(900), 0.0))
    assert assignment.batch_times is not None
    assert assignment.batch_times.max_rows == 4  # they take 0.16 s, and 8 would take 0.25 s
    [lease] = core.state.fleet.workers[WorkerId("w")].leases.values()
    assert lease.query_left_s(0.0) == pytest.approx(4 / 25)


def test_job_runs_query_by_query_where_batches_do_not_pay() -> None:
    core = make_core([replace(ENTRIES[0], batch_qps=(9.0, 10.2))], [JOINED.worker])
    [assignment] = dispatched(core.handle(a_job(9), 0.0))
    assert assignment.batch_times is None
    assert assignment.query_s == pytest.approx(0.1)


def test_small_job_is_estimated_at_the_time_of_its_only_batch() -> None:
    core = make_core([replace(ENTRIES[0], qps=100.0, batch_qps=(180.0, 320.0, 640.0))], [])
    core.handle(JOINED, 0.0)
    [assignment] = dispatched(core.handle(a_job(3), 0.0))
    assert assignment.estimate_s == pytest.approx((2 / 180 + 4 / 320) / 2)


def test_job_runs_in_the_configuration_that_is_fastest_in_batches() -> None:
    two = Configuration(2)
    worker = replace(JOINED.worker, configurations=(ONE, two), sessions=frozenset())
    entries = [
        replace(ENTRIES[0], qps=100.0, batch_qps=(110.0, 120.0)),
        replace(ENTRIES[0], configuration=two, qps=80.0, batch_qps=(150.0, 290.0)),
    ]
    [assignment] = dispatched(make_core(entries, [worker]).handle(a_job(900), 0.0))
    assert assignment.configuration == two
    [assignment] = dispatched(make_core(entries, [worker]).handle(make_request(0), 0.0))
    assert assignment.configuration == ONE


def test_pace_of_a_job_in_batches_is_relative_to_batches() -> None:
    core = make_core([replace(ENTRIES[0], qps=100.0, batch_qps=(200.0, 400.0))], [JOINED.worker])
    [assignment] = dispatched(core.handle(a_job(4000), 0.0))
    core.handle(events.AssignmentStarted(assignment.id, 0.0), 0.0)
    core.handle(events.QueriesDone(assignment.id, 2000, 10.0), 10.0)  # twice the profiled 5 s
    [lease] = core.state.fleet.workers[WorkerId("w")].leases.values()
    assert 1.4 < lease.job.paces[WorkerId("w")] < 2.0
    assert 1.2 < core.paces[WorkerId("w"), BATCHED] < 2.0


def test_inputs_of_a_job_say_nothing_about_the_pace_of_full_batches() -> None:
    core = make_core([replace(ENTRIES[0], qps=100.0, batch_qps=(200.0, 400.0))], [JOINED.worker])
    [assignment] = dispatched(core.handle(a_job(4000, with_tensors=True), 0.0))
    core.handle(events.AssignmentStarted(assignment.id, 0.0), 0.0)
    core.handle(events.QueriesDone(assignment.id, 100, 1.0), 1.0)  # one by one, as they arrived
    assert (WorkerId("w"), BATCHED) not in core.paces


def test_pace_is_independent_of_batch_size() -> None:
    """At half the profiled speed, a single query is estimated at twice its profiled time."""
    core = core_with_worker()
    given = [a for number in range(4) for a in dispatched(core.handle(make_request(number), 0.0))]
    for _ in range(300):
        now = core.state.now + 0.4
        for assignment in given:
            end(core, assignment, now, compute_s=0.4, batch=len(given))
        number = given[-1].id
        given = [
            assignment
            for index in range(4)
            for assignment in dispatched(core.handle(make_request(number * 10 + index), now))
        ]
    assert given[0].batch_times is not None
    assert given[0].batch_times.by_size == pytest.approx((0.2, 0.25, 0.4), rel=0.02)
