"""Changes of profiles: those that jobs measure, and those that others add and remove.

Each change is followed by what rests on it: cached estimates, observed paces, engines to probe, and
the ranks of waiting jobs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from synergai.core.scheduling.events import Learned
from synergai.core.scheduling.state.estimate import SHORTEST_S
from synergai.profiles.dictionary import OBSERVED, PREDICTED, ProfileEntry

if TYPE_CHECKING:
    from collections.abc import Sequence

    from synergai.core.scheduling.events import ProfilesAdded, ProfilesRemoved
    from synergai.core.scheduling.rules.kernel import State
    from synergai.core.scheduling.rules.leases import Leases
    from synergai.core.scheduling.rules.probes import Probes
    from synergai.core.scheduling.state.jobs import Lease
    from synergai.core.scheduling.state.workers import WorkerRecord
    from synergai.domain import EngineName, WorkerClass


class ProfileChanges:
    """Applies changes of profiles."""

    def __init__(self, state: State, probes: Probes, leases: Leases) -> None:
        self._state = state
        self._probes = probes
        self._leases = leases

    def learn(self, lease: Lease) -> None:
        """Store a profile measured in service if it is the first or better than the known one."""
        worker = self._state.fleet.workers[lease.assignment.worker_id]
        if lease.assignment.probe:
            entry = self._measured(lease, worker.worker.worker_class)
            self._state.extended_at = self._state.now
        else:
            entry = self._refined(lease) or self._state.estimator.settled_profile(lease, worker)
        if entry is None or self._has_better(entry):
            return
        self._reset_paces(entry)
        self._state.dictionary.put(entry)
        self._refresh([entry.engine])
        self._state.commands.append(Learned(entry))

    def _measured(self, lease: Lease, worker_class: WorkerClass) -> ProfileEntry | None:
        """Return the profile measured by a finished probe; None if its duration is unknown."""
        started = lease.first_query_at if lease.first_query_at is not None else lease.head_at
        wall_s = self._state.now - started if started is not None else 0.0
        seconds = lease.compute_s or wall_s
        if seconds < SHORTEST_S:
            return None
        return ProfileEntry(
            engine=lease.assignment.engine,
            worker_class=worker_class,
            configuration=lease.assignment.configuration,
            qps=lease.done / seconds,
            model_load_s=lease.setup_s,
            queries=lease.done,
            label=OBSERVED,
        )

    def _refined(self, lease: Lease) -> ProfileEntry | None:
        """Return a better profile if the lease's own rests on fewer queries in service.

        A probe is short and includes an engine's first queries, so it gives only the order of
        magnitude. A prediction is refined by as many queries as a probe has. Entries measured by
        the profiler are never replaced. Of queries that came with tensors, the time in the engine
        counts, which is not that of each one if they ran in batches.
        """
        if lease.estimate is None or lease.job.is_request or lease.first_query_at is None:
            return None
        entry = lease.estimate.entry
        seconds = self._state.now - lease.first_query_at
        if lease.brings_inputs:
            seconds = lease.compute_s if lease.assignment.batch_times is None else 0.0
        if entry.label not in {OBSERVED, PREDICTED} or seconds <= 0:
            return None
        known = (
            self._state.settings.probe_queries - 1 if entry.label == PREDICTED else entry.queries
        )
        if lease.done <= known:
            return None
        return replace(
            entry, qps=lease.done / seconds, queries=lease.done, label=OBSERVED, error=0.0
        )

    def add(self, event: ProfilesAdded) -> None:
        """Put entries into the dictionary; paces relative to a replaced one are void."""
        entries = event.entries
        for entry in entries:
            known = self._state.dictionary.row(entry.engine, entry.worker_class).get(
                entry.configuration
            )
            if known is not None and known.qps != entry.qps:
                self._reset_paces(entry)
            if known is not None:
                self._remove_kept(known)
            self._state.dictionary.put(entry)
        engines = sorted({entry.engine for entry in entries})
        for engine in engines:
            for worker in self._state.fleet.serving(engine):
                if engine in worker.variants:
                    self._keep(engine, worker)
        self._refresh(engines)

    def keep(self, worker: WorkerRecord) -> None:
        """Let profiles of a file count for the variant that it has become on a worker."""
        kept = [engine for engine in sorted(worker.variants) if self._keep(engine, worker)]
        if kept:
            self._refresh(kept)

    def _keep(self, engine: EngineName, worker: WorkerRecord) -> bool:
        """Put profiles of its variants' files into the dictionary; return whether there are any."""
        row = self._state.dictionary.row(engine, worker.worker.worker_class)
        names = {each.digest: each.name for each in worker.variants[engine] if each.digest}
        kept = [
            _as_variant(entry, name)
            for entry in row.values()
            if not entry.configuration.variant and (name := names.get(entry.digest))
        ]
        kept = [entry for entry in kept if entry.configuration not in row]
        for entry in kept:
            self._state.dictionary.put(entry)
        return bool(kept)

    def _remove_kept(self, entry: ProfileEntry) -> None:
        """Remove what `_keep` has put for the profile of a file, which is removed or replaced."""
        if entry.configuration.variant:
            return
        for kept in list(self._state.dictionary.row(entry.engine, entry.worker_class).values()):
            variant = kept.configuration.variant
            if variant and kept == _as_variant(entry, variant):
                self._state.dictionary.remove(kept)

    def remove(self, event: ProfilesRemoved) -> None:
        """Remove entries from the dictionary; an engine without any is measured again."""
        entries = event.entries
        for entry in entries:
            self._reset_paces(entry)
            self._state.dictionary.remove(entry)
            self._remove_kept(entry)
        self._refresh(sorted({entry.engine for entry in entries}))
        for worker in self._state.fleet.workers.values():
            self._probes.update_worker(worker)

    def _has_better(self, entry: ProfileEntry) -> bool:
        """Return whether the profiler measured what was only observed, while it was observed."""
        row = self._state.dictionary.row(entry.engine, entry.worker_class)
        known = row.get(entry.configuration)
        return known is not None and known.label not in {entry.label, PREDICTED}

    def _reset_paces(self, entry: ProfileEntry) -> None:
        """Void the paces that were observed on the class of an entry, which is replaced."""
        workers = self._state.fleet.serving(entry.engine)
        self._state.estimator.reset_paces(
            entry.engine,
            [w for w in workers if w.worker.worker_class == entry.worker_class],
            self._leases.paced_jobs(entry.engine),
        )
        self._state.fleet.void_absent_paces(entry.engine)

    def _refresh(self, engines: Sequence[EngineName]) -> None:
        """Compute what rests on the profiles of `engines` again."""
        for engine in engines:
            for worker in self._state.fleet.serving(engine):
                self._state.estimator.invalidate_engine(worker, engine)
        self._probes.refresh()
        for engine in engines:
            self._state.waiting.rerank(engine)


def _as_variant(entry: ProfileEntry, variant: str) -> ProfileEntry:
    return replace(entry, configuration=replace(entry.configuration, variant=variant))
