"""Exploration: second tries of engines that look slow on a worker.

An engine without a profile is estimated from the queries that it has answered. If these stalled, it
looks slow, gets no others, and nothing corrects the estimate. So an engine that is not used on a
worker, and looks much slower there than when the worker inspected it, is expected after a pause to
take what it took then. The next query shows which is right. The pause doubles each time: a worker
that is slow gets a query after 10, 30, 70 s and so on, which are eight in an hour.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from synergai.profiles.dictionary import OBSERVED

if TYPE_CHECKING:
    from synergai.core.scheduling.rules.kernel import State
    from synergai.core.scheduling.rules.leases import Leases
    from synergai.core.scheduling.state.estimate import Estimate
    from synergai.core.scheduling.state.workers import WorkerRecord
    from synergai.domain import EngineName, WorkerId

MUCH_SLOWER: Final = 4.0
"""Multiple of the inspected time of a query from which on an estimate is doubted."""
FIRST_PAUSE_S: Final = 10.0


@dataclass(slots=True)
class _Doubt:
    """An estimate that looks too long.

    Attributes:
        pace: the observed pace, which changes with every query.
        since: when it last changed.
        tries: how often the engine was tried again.
    """

    pace: float
    since: float
    tries: int = 0


class Exploration:
    """Doubts estimates that rest on queries in service, and are not corrected by others."""

    def __init__(self, state: State, leases: Leases) -> None:
        self._state = state
        self._leases = leases
        self._doubts: dict[tuple[WorkerId, EngineName], _Doubt] = {}
        state.forget_worker.append(self._forget_worker)

    def _forget_worker(self, worker: WorkerRecord) -> None:
        for engine in worker.query_s:
            self._doubts.pop((worker.id, engine), None)

    def check(self) -> None:
        """Expect the inspected times again of engines that have been avoided for long."""
        for worker in self._state.fleet.workers.values():
            for engine, inspected_s in worker.query_s.items():
                known = worker.estimates.get(engine)
                if known and all(each.entry.label == OBSERVED for each in known):
                    self._look_at(worker, engine, known[0], inspected_s)

    def _look_at(
        self, worker: WorkerRecord, engine: EngineName, estimate: Estimate, inspected_s: float
    ) -> None:
        observed, now = worker.observed, self._state.now
        if engine in observed.guessed:
            return
        if estimate.per_query_s <= MUCH_SLOWER * inspected_s:
            self._doubts.pop((worker.id, engine), None)
            return
        pace = observed.pace.get(engine, 1.0)
        doubt = self._doubts.setdefault((worker.id, engine), _Doubt(pace, now))
        if pace != doubt.pace or any(
            lease.assignment.engine == engine for lease in worker.all_leases()
        ):
            doubt.pace, doubt.since = pace, now
        elif now - doubt.since >= FIRST_PAUSE_S * 2.0 ** min(doubt.tries, 30):
            doubt.tries, doubt.since = doubt.tries + 1, now
            self._state.estimator.guess(
                engine, worker, inspected_s, self._leases.paced_jobs(engine)
            )
            self._state.waiting.mark_drifted(engine)
