"""How long an engine takes on a worker: the profile, corrected by what is observed.

``T_estimated = T_pre + q / QPS`` (thesis, Eq. 6.2), with two differences that matter once
sessions stay resident and machines drift: T_pre is charged only as far as it is really still
to be paid, and the profiled QPS is scaled by the worker's observed pace.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from synergai.domain import Session
from synergai.scheduling.estimate import Estimate

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from synergai.domain import EngineName, WorkerId
    from synergai.profiles.dictionary import ConfigurationDictionary, ProfileEntry
    from synergai.scheduling.events import SchedulingSettings
    from synergai.scheduling.state import JobRecord, Lease, WorkerRecord

_TRANSFER_WEIGHT: Final = 0.08
"""What one observed transfer counts against all before it."""


class Estimator:
    """Answers what an engine costs on a worker, and learns from what it is told."""

    def __init__(self, dictionary: ConfigurationDictionary, settings: SchedulingSettings) -> None:
        self._dictionary = dictionary
        self._settings = settings
        self._pace: dict[tuple[WorkerId, EngineName], float] = {}
        self._setup: dict[tuple[WorkerId, EngineName], float] = {}
        self._transfer: dict[tuple[WorkerId, EngineName], float] = {}
        self._switch: dict[WorkerId, float] = {}
        self._fastest: dict[EngineName, list[Estimate]] = {}

    # --- answers ------------------------------------------------------------------------

    def estimate(self, engine: EngineName, worker: WorkerRecord) -> Estimate | None:
        """What `engine` costs on `worker` now in its fastest configuration (thesis, c*).

        None if the engine was never profiled on the worker's class.
        """
        found = self.estimates(engine, worker)
        return found[0] if found else None

    def estimates(self, engine: EngineName, worker: WorkerRecord) -> tuple[Estimate, ...]:
        """What `engine` costs on `worker` in each profiled configuration, highest QPS first."""
        try:
            return worker.estimates[engine]
        except KeyError:
            found = worker.estimates[engine] = self._compute(engine, worker)
            return found

    def fastest_s(self, job: JobRecord, serving: Sequence[WorkerRecord]) -> float:
        """The least time in which any of `serving` could run what of the job is pending.

        0 if the job's engine is profiled on none of them.
        """
        engine = job.job.engine
        fastest = self._fastest.get(engine)
        if fastest is None:
            fastest = self._fastest[engine] = self._undominated(engine, serving)
        queries, with_tensors = job.pending.total, job.job.with_tensors
        if len(fastest) == 1:
            return fastest[0].seconds(queries, with_tensors=with_tensors)
        return min((e.seconds(queries, with_tensors=with_tensors) for e in fastest), default=0.0)

    def _undominated(self, engine: EngineName, serving: Sequence[WorkerRecord]) -> list[Estimate]:
        """The estimates of which none is worse than another one for every number of queries."""
        found = [e for worker in serving if (e := self.estimate(engine, worker)) is not None]
        if len(found) == 1:
            return found
        found.sort(key=lambda e: (e.setup_s, e.per_query_s))
        kept: list[Estimate] = []
        compute_s = total_s = math.inf
        for e in found:
            if e.per_query_s < compute_s or e.per_query_s + e.transfer_s < total_s:
                kept.append(e)
                compute_s = min(compute_s, e.per_query_s)
                total_s = min(total_s, e.per_query_s + e.transfer_s)
        return kept

    def _compute(self, engine: EngineName, worker: WorkerRecord) -> tuple[Estimate, ...]:
        row = self._dictionary.row(engine, worker.worker.worker_class)
        entries = [row[c] for c in worker.worker.configurations if c in row]
        entries.sort(key=lambda entry: -entry.qps)
        pace, transfer_s = self._believed(engine, worker)
        found: list[Estimate] = []
        for entry in entries:
            session = Session(engine, entry.configuration)
            found.append(
                Estimate(
                    entry.configuration,
                    self._still_to_pay(entry, session, worker),
                    pace / entry.qps,
                    transfer_s,
                    entry.watts / entry.qps if entry.watts > 0 else math.inf,
                    entry,
                    session,
                )
            )
        return tuple(found)

    def _believed(self, engine: EngineName, worker: WorkerRecord) -> tuple[float, float]:
        """The pace and the seconds of transfer per query."""
        key = worker.id, engine
        return self._pace.get(key, 1.0), self._transfer.get(key, 0.0)

    def _still_to_pay(self, entry: ProfileEntry, session: Session, worker: WorkerRecord) -> float:
        """Load time only if the session is cold, switch time only if the mode changes."""
        seconds = 0.0
        mode = entry.configuration.power_mode
        if mode and worker.power_mode is not None and worker.power_mode != mode:
            seconds += self._switch.get(worker.id, self._settings.mode_switch_s)
        if not self._resident(session, worker):
            seconds += entry.t_pre_s * self._setup.get((worker.id, entry.engine), 1.0)
        return seconds

    @staticmethod
    def _resident(session: Session, worker: WorkerRecord) -> bool:
        """Whether the session will be in memory once the worker is through with its work."""
        if not worker.worker.keeps_sessions:
            return False
        return session in worker.sessions or any(
            lease.assignment.engine == session.engine
            and lease.assignment.configuration == session.configuration
            for lease in worker.leases.values()
        )

    # --- what it is told ----------------------------------------------------------------

    def observe_queries(
        self,
        lease: Lease,
        worker: WorkerRecord,
        engine_s: float,
        transfer_s: float | None = None,
    ) -> None:
        """Learn from what the lease has done.

        To be told in the order in which the worker runs its leases. However long an
        assignment runs, it is one witness: its word moves what was believed of the worker's pace
        before it by `pace_trust` at most.

        Args:
            lease: what ran.
            worker: where.
            engine_s: what the engine took for all that is done of it; 0 if unknown.
            transfer_s: what each query took beyond that, if it came with its tensors and tells.
        """
        if lease.estimate is None:
            return
        entry = lease.estimate.entry
        key = worker.id, entry.engine
        if lease.done > 0 and engine_s > 0:
            if lease.pace_before is None:
                lease.pace_before = self._pace.get(key, 1.0)
            weight = 1.0 - math.exp2(-engine_s / self._settings.pace_half_life_s)
            weight = min(weight, self._settings.pace_trust)
            seen = engine_s / lease.done * entry.qps
            self._pace[key] = _moved(lease.pace_before, seen, weight)
        if transfer_s is not None:
            seen = max(0.0, transfer_s)
            self._transfer[key] = _moved(self._transfer.get(key, seen), seen, _TRANSFER_WEIGHT)
        self._drifted(worker, entry.engine)

    def forget_paces(self, engine: EngineName, workers: Iterable[WorkerRecord]) -> None:
        """Believe the profile of `engine` as it is: it has just been taken from service."""
        for worker in workers:
            self._pace.pop((worker.id, engine), None)
            self._changed(worker, engine)

    def observe_setup(self, worker: WorkerRecord, entry: ProfileEntry, seconds: float) -> None:
        """Learn that making the engine ready took `seconds`.

        Setups are rare, so each one counts as much as all before it.
        """
        if entry.t_pre_s <= 0 or seconds <= 0:
            return
        key = worker.id, entry.engine
        self._setup[key] = _moved(self._setup.get(key, 1.0), seconds / entry.t_pre_s, 0.5)
        self._changed(worker, entry.engine)

    def observe_switch(self, worker: WorkerRecord, seconds: float) -> None:
        """Learn that a switch of the worker's power mode took `seconds`.

        The first one replaces what the settings suppose; then each counts as much as all before.
        """
        if seconds > 0:
            believed = self._switch.get(worker.id, seconds)
            self._switch[worker.id] = _moved(believed, seconds, 0.5)

    def _changed(self, worker: WorkerRecord, engine: EngineName) -> None:
        before = worker.estimates.pop(engine, None)
        self._compare(worker, engine, before)

    def _drifted(self, worker: WorkerRecord, engine: EngineName) -> None:
        """Bring estimates up to date of which only pace and transfer are others.

        That happens with every report, so that they are not computed anew from the profile.
        """
        before = worker.estimates.get(engine)
        if before is not None:
            pace, transfer_s = self._believed(engine, worker)
            worker.estimates[engine] = tuple([e.at(pace, transfer_s) for e in before])
        self._compare(worker, engine, before)

    def _compare(
        self, worker: WorkerRecord, engine: EngineName, before: tuple[Estimate, ...] | None
    ) -> None:
        """Forget which estimates are the fastest, if the worker's may have made a difference."""
        fastest = self._fastest.get(engine)
        if fastest is None:
            return
        # Of a thousand workers hardly one is among the fastest: the others' paces may drift.
        if before and any(one is before[0] for one in fastest):
            del self._fastest[engine]
            return
        now = self.estimate(engine, worker) if engine in worker.engines else None
        if now is not None and not any(one.dominates(now) for one in fastest):
            del self._fastest[engine]

    def engine_changed(self, worker: WorkerRecord, engine: EngineName) -> None:
        """Forget what was computed of an engine that was loaded on the worker, or dropped."""
        self._changed(worker, engine)

    def worker_changed(self, worker: WorkerRecord) -> None:
        """Forget what was computed of a worker that came, went or changed its mode or engines."""
        worker.estimates.clear()
        for engine in worker.engines:
            self._fastest.pop(engine, None)

    def profile_changed(self, engine: EngineName, workers: Sequence[WorkerRecord]) -> None:
        """Forget what was computed from the dictionary's rows of `engine`."""
        for worker in workers:
            self._changed(worker, engine)


def _moved(believed: float, seen: float, weight: float) -> float:
    """What is believed of a quantity that is observed with noise, after one more look."""
    return believed + weight * (seen - believed)
