"""Statistics of a run's requests."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiler.loadgen.outcome import RequestOutcome, outcome_of
from profiler.loadgen.traces.request_log import RequestLog, by_second, summarise
from synergai.errors import DeadlineExceeded, Overloaded, SynergaiError, Unavailable

LATE_S = 0.01


def log_of(*requests: tuple[float, float, float, SynergaiError | None]) -> RequestLog:
    """A run of requests (due, sent, ended, error) with a deadline of 0.1 s."""
    made = RequestLog()
    for due, sent, ended, error in requests:
        made.record(due=due, sent=sent, ended=ended, deadline_s=0.1, error=error)
    return made


@pytest.mark.parametrize(
    ("error", "latency_s", "outcome"),
    [
        (None, 0.1, RequestOutcome.MET),
        (None, 0.11, RequestOutcome.LATE),
        (Overloaded("too much"), 0.01, RequestOutcome.REJECTED),
        (DeadlineExceeded("too late"), 0.1, RequestOutcome.EXPIRED),
        (Unavailable("gone"), 0.01, RequestOutcome.FAILED),
    ],
)
def test_outcome_follows_from_error_and_latency(
    error: SynergaiError | None, latency_s: float, outcome: RequestOutcome
) -> None:
    assert outcome_of(error, latency_s, 0.1) is outcome


def test_latency_counts_from_the_due_time() -> None:
    # Sent 90 ms late and completed 20 ms later: its user has waited 110 ms.
    figures = summarise(log_of((1.0, 1.09, 1.11, None)), 2.0, LATE_S, 0.01)
    assert (figures.late, figures.met) == (1, 0)
    assert figures.latency_s[50.0] == pytest.approx(0.11, rel=1e-3)


def test_rejections_and_expiries_are_excluded_from_latencies() -> None:
    figures = summarise(
        log_of(
            (0.0, 0.0, 0.05, None),
            (0.1, 0.1, 0.102, Overloaded("too much")),
            (0.2, 0.2, 0.3, DeadlineExceeded("too late")),
            (0.3, 0.3, 0.31, Unavailable("gone")),
        ),
        2.0,
        LATE_S,
        0.01,
    )
    assert (figures.met, figures.rejected, figures.expired, figures.failed) == (1, 1, 1, 1)
    assert (figures.violations, figures.attainment) == (3, 0.25)
    assert (figures.offered, figures.goodput) == (2.0, 0.5)
    assert figures.max_s == pytest.approx(0.05, rel=1e-3)
    assert figures.rejection_s[99.0] == pytest.approx(0.002, rel=1e-3)
    assert figures.first_failure == "gone"


def test_backlog_completed_after_the_run_lowers_the_goodput() -> None:
    figures = summarise(log_of((0.0, 0.0, 0.05, None), (3.95, 3.95, 4.0, None)), 2.0, LATE_S, 0.01)
    assert (figures.offered, figures.goodput) == (1.0, 0.5)


@pytest.mark.parametrize(("late", "is_valid"), [(1, True), (2, False)])
def test_too_many_requests_sent_late_make_a_run_invalid(late: int, is_valid: bool) -> None:
    requests = [
        (i * 0.1, i * 0.1 + (0.02 if i < late else 0.0), i * 0.1 + 0.03, None) for i in range(100)
    ]
    found = summarise(log_of(*requests), 10.0, LATE_S, 0.01).send_delay
    assert (found.late, found.is_valid) == (late, is_valid)
    assert found.max_s == pytest.approx(0.02)


def test_a_run_without_answers_has_no_percentiles() -> None:
    figures = summarise(log_of((0.0, 0.0, 0.1, DeadlineExceeded("late"))), 1.0, LATE_S, 0.01)
    assert (figures.latency_s, figures.rejection_s) == ({}, {})
    assert math.isnan(figures.mean_s)


@given(st.lists(st.floats(1e-6, 10.0), min_size=1, max_size=50))
@settings(max_examples=25)
def test_percentile_is_the_least_latency_that_so_many_requests_do_not_exceed(
    latencies: list[float],
) -> None:
    made = RequestLog()
    for latency in latencies:
        made.record(due=0.0, sent=0.0, ended=latency, deadline_s=math.inf, error=None)
    found = summarise(made, 1.0, LATE_S, 0.01).latency_s
    for percentile, value in found.items():
        wanted = percentile / 100 * len(latencies)
        assert value in latencies
        assert sum(each <= value for each in latencies) >= wanted - 1e-9
        assert sum(each < value for each in latencies) < wanted + 1e-9


def test_requests_are_grouped_by_the_second_they_are_due() -> None:
    rows = by_second(
        log_of((0.2, 0.2, 0.25, None), (0.9, 0.9, 1.3, None), (2.0, 2.0, 2.0, Overloaded("")))
    )
    assert [(row.at, row.offered, row.met) for row in rows] == [(0, 2, 1), (1, 0, 0), (2, 1, 0)]
    assert rows[0].latency_s == {50.0: pytest.approx(0.05), 99.0: pytest.approx(0.4)}
    assert rows[2].latency_s == {}
