"""How long an engine takes on a worker: the profile, corrected by what is observed.

``T_estimated = T_pre + q / QPS`` (thesis, Eq. 6.2), with two differences that matter once
sessions stay resident and machines drift: T_pre is charged only as far as it is really still
to be paid, and the profiled QPS is scaled by the worker's observed pace.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from synergai.domain import Session

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gateway.scheduling.state import WorkerRecord
    from synergai.dictionary import ConfigurationDictionary, ProfileEntry
    from synergai.domain import Configuration, EngineName, WorkerId

HALF_LIFE_S: Final = 2.0
"""Observed time after which an old belief about a worker's pace weighs one half."""
MODE_SWITCH_S: Final = 5.0
"""Charged for a change of power mode until the worker has shown what it takes."""


class Estimate(NamedTuple):
    """What an engine costs on a worker.

    Attributes:
        configuration: the one with the highest profiled QPS (thesis, c*).
        setup_s: still to be paid before the first query.
        per_query_s: seconds per query, at the worker's observed pace.
        transfer_s: seconds per query on top, if its tensors travel with it.
        entry: the profile entry that this rests on.
    """

    configuration: Configuration
    setup_s: float
    per_query_s: float
    transfer_s: float
    entry: ProfileEntry

    def seconds(self, queries: int, *, with_tensors: bool = False) -> float:
        """Time for `queries` queries on an idle worker (thesis, Eq. 6.2)."""
        per_query_s = self.per_query_s + (self.transfer_s if with_tensors else 0.0)
        return self.setup_s + queries * per_query_s


@dataclass(slots=True)
class _Belief:
    """An exponentially weighted mean in which an observation weighs by the time it spans."""

    value: float

    def observe(self, value: float, span_s: float) -> None:
        weight = 1.0 - math.exp2(-span_s / HALF_LIFE_S)
        self.value += weight * (value - self.value)


class Estimator:
    """Answers what an engine costs on a worker, and learns from what it is told."""

    def __init__(self, dictionary: ConfigurationDictionary) -> None:
        self._dictionary = dictionary
        self._pace: dict[tuple[WorkerId, EngineName], _Belief] = {}
        self._setup: dict[tuple[WorkerId, EngineName], float] = {}
        self._transfer: dict[tuple[WorkerId, EngineName], _Belief] = {}
        self._cache: dict[tuple[WorkerId, EngineName], Estimate | None] = {}

    def estimate(self, engine: EngineName, worker: WorkerRecord) -> Estimate | None:
        """What `engine` costs on `worker` now, or None if its class was never profiled."""
        key = (worker.id, engine)
        try:
            return self._cache[key]
        except KeyError:
            found = self._cache[key] = self._compute(engine, worker)
            return found

    def _compute(self, engine: EngineName, worker: WorkerRecord) -> Estimate | None:
        entry = self._best(engine, worker)
        if entry is None:
            return None
        key = (worker.id, engine)
        pace = self._pace.get(key)
        transfer = self._transfer.get(key)
        return Estimate(
            entry.configuration,
            self._still_to_pay(entry, worker),
            (pace.value if pace else 1.0) / entry.qps,
            transfer.value if transfer else 0.0,
            entry,
        )

    def _best(self, engine: EngineName, worker: WorkerRecord) -> ProfileEntry | None:
        row = self._dictionary.row(engine, worker.worker.worker_class)
        usable: Iterable[ProfileEntry] = (
            row[configuration]
            for configuration in worker.worker.configurations
            if configuration in row
        )
        return max(usable, key=lambda entry: entry.qps, default=None)

    def _still_to_pay(self, entry: ProfileEntry, worker: WorkerRecord) -> float:
        """Load time only if the session is cold, switch time only if the mode changes."""
        seconds = 0.0
        mode = entry.configuration.power_mode
        if mode and worker.power_mode is not None and worker.power_mode != mode:
            seconds += MODE_SWITCH_S
        if Session(entry.engine, entry.configuration) not in worker.sessions:
            seconds += entry.t_pre_s * self._setup.get((worker.id, entry.engine), 1.0)
        return seconds

    def observe_pace(
        self, worker_id: WorkerId, entry: ProfileEntry, seconds: float, queries: int
    ) -> None:
        """Learn that `queries` queries took `seconds`."""
        if queries <= 0 or seconds <= 0:
            return
        belief = self._pace.setdefault((worker_id, entry.engine), _Belief(1.0))
        belief.observe(seconds / queries * entry.qps, seconds)
        self._cache.pop((worker_id, entry.engine), None)

    def observe_setup(self, worker_id: WorkerId, entry: ProfileEntry, seconds: float) -> None:
        """Learn that making the engine ready took `seconds`.

        Setups are rare, so each one counts as much as all before it.
        """
        if entry.t_pre_s <= 0 or seconds <= 0:
            return
        key = (worker_id, entry.engine)
        self._setup[key] = (self._setup.get(key, 1.0) + seconds / entry.t_pre_s) / 2
        self._cache.pop(key, None)

    def observe_transfer(self, worker_id: WorkerId, engine: EngineName, seconds: float) -> None:
        """Learn that a query with its tensors took `seconds` beyond the engine's own time."""
        key = (worker_id, engine)
        belief = self._transfer.setdefault(key, _Belief(max(0.0, seconds)))
        belief.observe(max(0.0, seconds), HALF_LIFE_S / 8)
        self._cache.pop(key, None)

    def worker_changed(self, worker_id: WorkerId) -> None:
        """Forget what was computed for a worker whose sessions or mode changed."""
        for key in [key for key in self._cache if key[0] == worker_id]:
            del self._cache[key]

    def profile_changed(self) -> None:
        """Forget everything that was computed from the dictionary."""
        self._cache.clear()

    def forget(self, worker_id: WorkerId) -> None:
        """Forget the computed estimates of a worker that left, not what it taught."""
        self.worker_changed(worker_id)
