"""What inputs take to arrive, and how that is learned and planned for."""

import pytest

from synergai.core.scheduling.core import SchedulerCore
from synergai.core.scheduling.events import (
    AssignmentStarted,
    JobArrived,
    QueriesDone,
    QueriesReady,
    TimePassed,
)
from synergai.core.scheduling.state.workers import MOST_AHEAD_S
from synergai.domain import JobId
from tests.cores import dispatched, end, new_job, new_request, started, wakeup_of
from tests.digits import DIGITS, FAST, fast_core, make_entry, make_job


def test_running_job_over_own_inputs_is_expected_to_go_on_at_its_own_pace() -> None:
    core = fast_core()
    assignment = started(core, make_job("a", 1000, with_tensors=True), 0.0)
    for done in (100, 200, 300, 400, 500):  # at a third of the speed, and 10 ms for the inputs
        core.handle(QueriesDone(assignment.id, done, compute_s=0.03 * done), 0.04 * done)
    expected = core.expected_completion(JobId("a"), 20.0)
    assert expected == pytest.approx(20.0 + 500 * 0.04, rel=0.1)


def run_transfers(core: SchedulerCore, *transfers_s: float) -> float:
    """Run requests whose tensors take so long; return when the last one ended."""
    now = 0.0
    for number, transfer_s in enumerate(transfers_s):
        request = new_request(f"request-{number}", DIGITS, now)
        [assignment] = dispatched(core.handle(request, now))
        now += 0.01 + transfer_s
        end(core, assignment, now, compute_s=0.01)
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


def test_first_input_of_a_running_job_was_there_and_says_nothing_about_the_others() -> None:
    core = fast_core()
    assignment = started(core, make_job("job", 40, with_tensors=True), 0.0)
    for done, now in ((2, 0.42), (4, 1.24)):  # 0.4 s for each of the others
        core.handle(QueriesDone(assignment.id, done, compute_s=0.01 * done), now)
    expected = core.expected_completion(JobId("job"), 1.24)
    assert expected == pytest.approx(1.24 + 36 * 0.41, rel=0.01)


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
    [assignment] = dispatched(end(core, running, 1.0))
    assert assignment.count == 100


def test_inputs_of_single_queries_show_what_they_take() -> None:
    core = fast_core(make_entry(FAST, 1.0))
    job = new_job("job", DIGITS, 9, ready=1, with_tensors=True)
    [first] = dispatched(core.handle(job, 0.0))
    end(core, first, 1.2, compute_s=1.0)
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
        end(core, assignment, ends_at)
        core.handle(AssignmentStarted(following.id, 0.0), ends_at + waited_s)
        ahead_s += waited_s
        ends_at += waited_s + 1.0
        assignment = following
