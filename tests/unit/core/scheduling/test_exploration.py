"""A worker whose first queries stalled gets another one; a slow one gets few."""

from collections.abc import Callable

import pytest

from synergai.core.scheduling.core import SchedulerCore
from synergai.core.scheduling.events import AssignmentEnded, ProgressChecked
from synergai.domain import EngineName, Outcome, WorkerId
from tests.cores import dispatched, make_core, new_entry, new_request, new_worker

ENGINE = EngineName("digits")
INSPECTED_S, STALL_S, OTHER_S = 0.01, 3.0, 0.1
STALLED, OTHER = WorkerId("stalled"), WorkerId("other")
INTERVAL_S = 0.5


def new_core(label: str = "observed", queries: int = 1) -> SchedulerCore:
    """Return a core with a worker on which queries stalled, and another one."""
    entries = [
        new_entry(ENGINE, "new", 1 / STALL_S, label=label, queries=queries),
        new_entry(ENGINE, "known", 1 / OTHER_S),
    ]
    workers = [
        new_worker(name, worker_class, [ENGINE], query_s={ENGINE: INSPECTED_S})
        for name, worker_class in ((STALLED, "new"), (OTHER, "known"))
    ]
    return make_core(entries, workers, preload=False)


def serve(core: SchedulerCore, until: float, seconds: Callable[[float], float]) -> list[WorkerId]:
    """Send a request after another, and return where they ran.

    Args:
        seconds: the time of a query on the worker that stalled, by the time at which it begins.
    """
    ran_on: list[WorkerId] = []
    for number in range(int(until / INTERVAL_S)):
        now = number * INTERVAL_S
        [assignment] = dispatched(core.handle(new_request(f"r{number}", ENGINE, now), now))
        worker = assignment.worker_id
        query_s = OTHER_S if worker == OTHER else seconds(now)
        ended = AssignmentEnded(assignment.id, 1, Outcome.COMPLETED, compute_s=query_s)
        core.handle(ended, now + min(query_s, 0.3))
        core.handle(ProgressChecked(), now + 0.4)
        ran_on.append(worker)
    return ran_on


@pytest.mark.parametrize("queries", [1, 16], ids=["one query", "a whole measurement"])
def test_worker_on_which_an_engine_stalled_is_tried_again_after_a_pause(queries: int) -> None:
    ran_on = serve(new_core(queries=queries), 60.0, lambda _: INSPECTED_S)
    first = ran_on.index(STALLED)
    assert first * INTERVAL_S == pytest.approx(10.0, abs=INTERVAL_S)
    assert set(ran_on[first:]) == {STALLED}


def test_worker_that_stalls_again_is_tried_again() -> None:
    ran_on = serve(new_core(), 120.0, lambda now: STALL_S if 11 <= now < 12 else INSPECTED_S)
    assert ran_on[22:25] == [STALLED, OTHER, OTHER]
    assert set(ran_on[-100:]) == {STALLED}


def test_slow_worker_gets_eight_queries_in_an_hour() -> None:
    ran_on = serve(new_core(), 3600.0, lambda _: STALL_S)
    assert ran_on.count(STALLED) == 8


def test_measured_profile_is_not_doubted() -> None:
    ran_on = serve(new_core(label="measured"), 60.0, lambda _: INSPECTED_S)
    assert set(ran_on) == {OTHER}
