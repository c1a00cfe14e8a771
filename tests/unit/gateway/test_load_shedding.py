"""Load shedding of requests that would miss their deadlines."""

from __future__ import annotations

import math
from itertools import count
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.admission.load_shedding import DEADLINE_SHARE, SMOOTHING, STALE_AFTER_S, LoadShedder
from synergai.domain import EngineName, Job, JobId
from synergai.errors import Overloaded

if TYPE_CHECKING:
    from random import Random

_NUMBERS = count()


def request(deadline: float, priority: int = 0) -> Job:
    return Job(
        id=JobId(f"r{next(_NUMBERS)}"),
        engine=EngineName("echo"),
        queries=1,
        arrival=0.0,
        deadline=deadline,
        priority=priority,
    )


def busy(shedder: LoadShedder, interval_s: float, run_s: float = 0.0, until: float = 0.0) -> None:
    """Dispatch requests at a steady pace, the last one at `until`, while another one is queued."""
    shedder.add(request(1e9))
    for step in range(SMOOTHING, -1, -1):
        job = request(1e8)
        shedder.add(job)
        shedder.dispatch(job, run_s, until - step * interval_s)


def enqueue(shedder: LoadShedder, number: int, deadline: float, priority: int = 0) -> None:
    for _ in range(number):
        shedder.add(request(deadline, priority))


def test_request_is_accepted_while_the_queue_is_empty() -> None:
    shedder = LoadShedder()
    job = request(5.0)
    shedder.add(job)
    shedder.dispatch(job, 100.0, 0.0)
    shedder.check(0, 1e-6, 0.0)


def test_request_is_accepted_before_any_dispatch_was_observed() -> None:
    shedder = LoadShedder()
    enqueue(shedder, 1000, deadline=0.5)
    shedder.check(0, 1.0, 0.0)


def test_request_that_would_be_late_is_rejected_with_the_reason() -> None:
    shedder = LoadShedder()
    busy(shedder, interval_s=0.01)
    enqueue(shedder, 50, deadline=0.1)
    with pytest.raises(Overloaded, match=r"50 requests .* about 0\.5 s, but .* in 0\.25 s"):
        shedder.check(0, 0.25, 0.0)


@pytest.mark.parametrize("run_s", [0.0, 0.1])
def test_expected_response_may_take_a_share_of_the_time_left(run_s: float) -> None:
    shedder = LoadShedder()
    busy(shedder, interval_s=0.01, run_s=run_s)
    enqueue(shedder, 20, deadline=0.1)
    needed = (0.2 + run_s) / DEADLINE_SHARE
    shedder.check(0, needed * 1.01, 0.0)
    with pytest.raises(Overloaded):
        shedder.check(0, needed * 0.99, 0.0)


def test_requests_with_later_deadlines_do_not_count() -> None:
    shedder = LoadShedder()
    busy(shedder, interval_s=0.01)
    enqueue(shedder, 1000, deadline=60.0)
    shedder.check(0, 0.25, 0.0)


def test_requests_of_lower_priority_do_not_count() -> None:
    shedder = LoadShedder()
    busy(shedder, interval_s=0.01)
    enqueue(shedder, 1000, deadline=0.1, priority=3)
    shedder.check(4, 0.25, 0.0)
    with pytest.raises(Overloaded):
        shedder.check(3, 0.25, 0.0)


def test_request_without_deadline_is_accepted() -> None:
    shedder = LoadShedder()
    busy(shedder, interval_s=1.0)
    enqueue(shedder, 1000, deadline=math.inf)
    shedder.check(0, None, 0.0)


def test_stale_observations_reject_no_request() -> None:
    shedder = LoadShedder()
    busy(shedder, interval_s=0.01, until=0.0)
    enqueue(shedder, 50, deadline=STALE_AFTER_S + 0.2)
    with pytest.raises(Overloaded):
        shedder.check(0, 0.25, STALE_AFTER_S)
    shedder.check(0, 0.25, STALE_AFTER_S + 0.1)


def test_time_with_an_empty_queue_is_not_observed() -> None:
    shedder = LoadShedder()
    busy(shedder, interval_s=0.01, until=0.0)
    while len(shedder):
        shedder.remove(request(1e9))
    first, second = request(9.1), request(9.1)
    for job in (first, second):
        shedder.add(job)
    shedder.dispatch(first, 0.0, 9.0)
    shedder.dispatch(second, 0.0, 9.01)
    enqueue(shedder, 20, deadline=9.1)
    shedder.check(0, 0.3, 9.02)


@given(
    st.lists(
        st.tuples(st.floats(0, 10), st.integers(0, 9), st.sampled_from(["dispatch", "remove"])),
        max_size=40,
    ),
    st.randoms(use_true_random=False),
)
def test_every_added_request_is_removed_once(
    steps: list[tuple[float, int, str]], random: Random
) -> None:
    shedder = LoadShedder()
    inside = []
    for deadline, priority, how in steps:
        job = request(deadline, priority)
        shedder.add(job)
        inside.append((job, how))
    random.shuffle(inside)
    for now, (job, how) in enumerate(inside):
        if how == "remove":
            shedder.remove(job)
        else:
            shedder.dispatch(job, 0.0, float(now))
    assert len(shedder) == 0


def test_pace_is_that_of_the_fastest_variant() -> None:
    shedder = LoadShedder()
    shedder.add(request(1e9))
    for step in range(SMOOTHING, -1, -1):
        job = request(1e8)
        shedder.add(job)
        shedder.dispatch(job, 0.01, -step * 0.01, 0.1)
    enqueue(shedder, 100, deadline=0.05)
    shedder.check(0, 0.25, 0.0)  # 101 ms, although these took ten times as long
    with pytest.raises(Overloaded):
        shedder.check(0, 0.1, 0.0)
