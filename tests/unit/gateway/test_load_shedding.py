"""The rules by which a request is refused because it would come too late."""

from __future__ import annotations

import math
from itertools import count
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.admission.load_shedding import FORGET_S, MARGIN, MEMORY, Backlog
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


def busy(backlog: Backlog, interval_s: float, run_s: float = 0.0, until: float = 0.0) -> None:
    """Let requests go one after the other, the last one at `until`, with one more waiting."""
    backlog.enter(request(1e9))
    for step in range(MEMORY, -1, -1):
        job = request(1e8)
        backlog.enter(job)
        backlog.dispatched(job, run_s, until - step * interval_s)


def waiting(backlog: Backlog, number: int, deadline: float, priority: int = 0) -> None:
    for _ in range(number):
        backlog.enter(request(deadline, priority))


def test_nobody_is_refused_where_nobody_waits() -> None:
    backlog = Backlog()
    job = request(5.0)
    backlog.enter(job)
    backlog.dispatched(job, 100.0, 0.0)
    backlog.check(0, 1e-6, 0.0)


def test_nobody_is_refused_before_anything_was_seen() -> None:
    backlog = Backlog()
    waiting(backlog, 1000, deadline=0.5)
    backlog.check(0, 1.0, 0.0)


def test_a_request_that_would_come_too_late_is_refused_with_the_reason() -> None:
    backlog = Backlog()
    busy(backlog, interval_s=0.01)
    waiting(backlog, 50, deadline=0.1)
    with pytest.raises(Overloaded, match=r"50 requests come first.* about 0\.5 s, but 0\.25 s"):
        backlog.check(0, 0.25, 0.0)


@pytest.mark.parametrize("run_s", [0.0, 0.1])
def test_the_expected_answer_may_take_a_part_of_the_time_left(run_s: float) -> None:
    backlog = Backlog()
    busy(backlog, interval_s=0.01, run_s=run_s)
    waiting(backlog, 20, deadline=0.1)
    needed = (0.2 + run_s) / MARGIN
    backlog.check(0, needed * 1.01, 0.0)
    with pytest.raises(Overloaded):
        backlog.check(0, needed * 0.99, 0.0)


def test_those_with_a_later_deadline_stand_in_nobodys_way() -> None:
    backlog = Backlog()
    busy(backlog, interval_s=0.01)
    waiting(backlog, 1000, deadline=60.0)
    backlog.check(0, 0.25, 0.0)


def test_those_of_a_lower_priority_stand_in_nobodys_way() -> None:
    backlog = Backlog()
    busy(backlog, interval_s=0.01)
    waiting(backlog, 1000, deadline=0.1, priority=3)
    backlog.check(4, 0.25, 0.0)
    with pytest.raises(Overloaded):
        backlog.check(3, 0.25, 0.0)


def test_without_a_deadline_nobody_is_refused() -> None:
    backlog = Backlog()
    busy(backlog, interval_s=1.0)
    waiting(backlog, 1000, deadline=math.inf)
    backlog.check(0, None, 0.0)


def test_what_was_seen_long_ago_refuses_nobody() -> None:
    backlog = Backlog()
    busy(backlog, interval_s=0.01, until=0.0)
    waiting(backlog, 50, deadline=FORGET_S + 0.2)
    with pytest.raises(Overloaded):
        backlog.check(0, 0.25, FORGET_S)
    backlog.check(0, 0.25, FORGET_S + 0.1)


def test_time_in_which_nobody_waited_is_no_sign_of_slowness() -> None:
    backlog = Backlog()
    busy(backlog, interval_s=0.01, until=0.0)
    while len(backlog):
        backlog.leave(request(1e9))
    first, second = request(9.1), request(9.1)
    for job in (first, second):
        backlog.enter(job)
    backlog.dispatched(first, 0.0, 9.0)
    backlog.dispatched(second, 0.0, 9.01)
    waiting(backlog, 20, deadline=9.1)
    backlog.check(0, 0.3, 9.02)


@given(
    st.lists(
        st.tuples(st.floats(0, 10), st.integers(0, 9), st.sampled_from(["dispatched", "leave"])),
        max_size=40,
    ),
    st.randoms(use_true_random=False),
)
def test_whoever_enters_leaves_once(steps: list[tuple[float, int, str]], random: Random) -> None:
    backlog = Backlog()
    inside = []
    for deadline, priority, how in steps:
        job = request(deadline, priority)
        backlog.enter(job)
        inside.append((job, how))
    random.shuffle(inside)
    for now, (job, how) in enumerate(inside):
        if how == "leave":
            backlog.leave(job)
        else:
            backlog.dispatched(job, 0.0, float(now))
    assert len(backlog) == 0
