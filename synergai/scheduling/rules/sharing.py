"""Sharing of a worker's cores by requests and other work; see `WorkerRecord.runs_concurrently`.

Engines are small or large. If all of a worker's took turns, a query of a tenth of a millisecond
would wait for every long one ahead of it. So a request runs at once if the cores suffice for its
threads too, if it is brief, or if the worker is busy loading another session.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from synergai.scheduling.policy import Assign
from synergai.scheduling.state.records import MEASURED_S, is_brief

if TYPE_CHECKING:
    from collections.abc import Iterator

    from synergai.scheduling.rules.kernel import State
    from synergai.scheduling.state.estimate import Estimate
    from synergai.scheduling.state.records import Lease, WorkerRecord


class CoreSharing:
    """Selects the waiting requests that run concurrently with the work of busy workers."""

    def __init__(self, state: State) -> None:
        self._state = state

    def decisions(self) -> Iterator[Assign]:
        """Yield what runs concurrently with other work now, in the queue's order.

        The caller executes each one before it asks for the next.
        """
        while self._state.queue.requests and self._state.fleet.shared and (found := self._first()):
            yield found

    def _first(self) -> Assign | None:
        # Workers that an earlier request, brief or long, waits for: others that join a session
        # there would keep it from ever getting there.
        awaited: set[tuple[int, bool]] = set()
        for request in self._state.queue.first_requests(self._state.now):
            found: list[tuple[float, int, WorkerRecord, Estimate]] = []
            for worker in self._state.serving(request.job.engine):
                if not worker.leases and not worker.withdrawn:
                    found.clear()  # which is the policy's to decide
                    break
                estimate = next(iter(self._state.estimator.for_job(request, worker)), None)
                if estimate is None or (head := worker.head) is None:
                    continue
                if head.estimate is None and head.session in worker.sessions:
                    self._await_measurement(head)
                place = worker.index, is_brief(estimate, head)
                if place in awaited:
                    continue
                if worker.runs_concurrently(estimate):
                    answer_s = worker.ahead_s(estimate, self._state.now) + estimate.per_query_s
                    found.append((answer_s, worker.index, worker, estimate))
                elif worker.may_run_concurrently(estimate):
                    awaited.add(place)
            if found:
                _, _, worker, estimate = min(found, key=lambda each: each[:2])
                return Assign(request, worker, estimate, 1)
        return None

    def _await_measurement(self, head: Lease) -> None:
        """Let a request wait for a query that is measured, but not for a long one."""
        now = self._state.now
        if head.awaited_since is None:
            head.awaited_since = now
        elif head.is_long_probe or now < head.awaited_since + MEASURED_S:
            return
        elif head.reported_at is None or head.reported_at + MEASURED_S <= now:
            head.is_long_probe = True
            return
        else:  # another query has begun
            head.awaited_since = head.reported_at
        at = head.awaited_since + MEASURED_S
        self._state.call_at(at, lambda: None, head.job)  # decisions follow
