"""Metrics of the connected workers."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from gateway.monitoring.collectors import SnapshotCollector, counter, gauge
from synergai.v1 import common_pb2

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from prometheus_client.core import Metric

    from gateway.fleet.descriptions import EngineConflict
    from gateway.fleet.worker import ConnectedWorker
    from synergai.domain import EngineName, WorkerId

    Paces = Mapping[tuple[WorkerId, EngineName], float]

_MAX_CONFLICTS: Final = 1000
"""Variants that are exported. Agents may make up engines."""
_MAX_LABEL: Final = 160
"""Characters of a label."""


class WorkerState(NamedTuple):
    """Snapshot of a connected worker.

    Attributes:
        queued_queries: number of their queries that are not completed.
        paces: observed over profiled time per query, by engine.
        watts: power of the machine; None if not measured.
        joules: energy of the machine since the agent started; None if not measured.
        engine_joules: energy since it connected while an engine computed, by engine.
    """

    id: str
    queries: int
    busy_s: float
    assignments: int
    queued_queries: int
    run_s: float
    estimated_run_s: float
    estimate_error_s: float
    paces: dict[str, float]
    watts: float | None
    joules: float | None
    engine_joules: dict[EngineName, float]


class WorkerCollector(SnapshotCollector[list[WorkerState]]):
    """Collector of the metrics of all connected workers; counters restart at a reconnection."""

    def __init__(
        self, workers: Callable[[], Iterable[ConnectedWorker]], paces: Callable[[], Paces]
    ) -> None:
        super().__init__()
        self._workers = workers
        self._paces = paces

    def read(self) -> list[WorkerState]:
        """Return a snapshot of all workers."""
        paces: dict[str, dict[str, float]] = {}
        for (worker_id, engine), pace in self._paces().items():
            paces.setdefault(worker_id, {})[engine] = pace
        return [_worker_state(worker, paces.get(worker.id, {})) for worker in self._workers()]

    def families(self, state: list[WorkerState]) -> Iterator[Metric]:
        """Yield the families of load, estimates and power."""
        yield from _load_families(state)
        yield from _estimate_families(state)
        yield from _power_families(state)


class ConflictCollector(SnapshotCollector["list[EngineConflict]"]):
    """Collector of the engines and variants that differ from those in service."""

    def __init__(self, conflicts: Callable[[], Iterable[EngineConflict]]) -> None:
        super().__init__()
        self._conflicts = conflicts

    def read(self) -> list[EngineConflict]:
        """Return them, up to a limit, as workers may offer any number."""
        return list(islice(self._conflicts(), _MAX_CONFLICTS))

    def families(self, state: list[EngineConflict]) -> Iterator[Metric]:
        """Yield the family."""
        family = gauge(
            "worker_engine_conflicts",
            "Engines of the worker, or variants of them, that are not used, because they differ "
            "from those in service; 1 for each, with the SHA-256 of both files.",
            *("worker", "engine", "variant", "digest", "in_service"),
        )
        for each in state:
            family.add_metric([text[:_MAX_LABEL] for text in each[:5]], 1)
        yield family


class PlacementCollector(SnapshotCollector["Counter[tuple[WorkerId, str]]"]):
    """Collector of the engine versions that are placed on the workers, by state."""

    def __init__(self, workers: Callable[[], Iterable[ConnectedWorker]]) -> None:
        super().__init__()
        self._workers = workers

    def read(self) -> Counter[tuple[WorkerId, str]]:
        """Return the number of these versions by worker and state."""
        return Counter(
            (worker.id, _STATES.get(placed.state, "waiting"))
            for worker in self._workers()
            for placed in worker.placed.values()
        )

    def families(self, state: Counter[tuple[WorkerId, str]]) -> Iterator[Metric]:
        """Yield the family."""
        family = gauge(
            "worker_placements",
            "Engine versions of the store that are placed on the worker, by state.",
            "worker",
            "state",
        )
        for (worker_id, name), count in state.items():
            family.add_metric([worker_id, name], count)
        yield family


_STATES: Final[dict[int, str]] = {
    common_pb2.PLACED_STATE_FETCHING: "fetching",
    common_pb2.PLACED_STATE_INSTALLED: "installed",
    common_pb2.PLACED_STATE_FAILED: "failed",
    common_pb2.PLACED_STATE_CONFLICT: "conflict",
}


def _worker_state(worker: ConnectedWorker, paces: dict[str, float]) -> WorkerState:
    return WorkerState(
        id=worker.id,
        queries=worker.queries_done,
        busy_s=worker.busy_s,
        assignments=len(worker.in_flight),
        queued_queries=sum(
            progress.assignment.count - progress.done for progress in worker.in_flight.values()
        ),
        run_s=worker.run_s,
        estimated_run_s=worker.estimated_run_s,
        estimate_error_s=worker.estimate_error_s,
        paces=paces,
        watts=worker.power.watts,
        joules=worker.power.joules,
        engine_joules=worker.power.engines.copy(),
    )


def _load_families(workers: list[WorkerState]) -> Iterator[Metric]:
    queries = counter("worker_queries", "Queries that the worker completed.", "worker")
    busy = counter("worker_busy_seconds", "Time that the worker's engines computed.", "worker")
    assignments = gauge(
        "worker_assignments", "Assignments sent to the worker that have not ended.", "worker"
    )
    depth = gauge(
        "worker_queue_depth", "Queries of these assignments that are not completed.", "worker"
    )
    for worker in workers:
        queries.add_metric([worker.id], worker.queries)
        busy.add_metric([worker.id], worker.busy_s)
        assignments.add_metric([worker.id], worker.assignments)
        depth.add_metric([worker.id], worker.queued_queries)
    yield from (queries, busy, assignments, depth)


def _estimate_families(workers: list[WorkerState]) -> Iterator[Metric]:
    pace = gauge(
        "worker_pace_ratio",
        "Observed over profiled time per query; above 1, the worker is slower than profiled.",
        "worker",
        "engine",
    )
    run = counter(
        "worker_run_seconds",
        "Time from dispatch to completion of completed assignments that had an estimate.",
        "worker",
    )
    estimated = counter(
        "worker_estimated_run_seconds", "Estimated time of the same assignments.", "worker"
    )
    error = counter(
        "worker_estimate_error_seconds",
        "Absolute difference of estimated and actual time, summed over the same assignments.",
        "worker",
    )
    for worker in workers:
        for engine, ratio in worker.paces.items():
            pace.add_metric([worker.id, engine], ratio)
        run.add_metric([worker.id], worker.run_s)
        estimated.add_metric([worker.id], worker.estimated_run_s)
        error.add_metric([worker.id], worker.estimate_error_s)
    yield from (pace, run, estimated, error)


def _power_families(workers: list[WorkerState]) -> Iterator[Metric]:
    watts = gauge(
        "worker_power_watts", "Power of the worker's machine at the last heartbeat.", "worker"
    )
    joules = counter(
        "worker_energy_joules", "Energy of the worker's machine since its agent started.", "worker"
    )
    engines = counter(
        "worker_engine_energy_joules",
        "Energy of the worker's machine while the engine computed.",
        "worker",
        "engine",
    )
    for worker in workers:
        if worker.watts is not None and worker.joules is not None:
            watts.add_metric([worker.id], worker.watts)
            joules.add_metric([worker.id], worker.joules)
        for engine, used in worker.engine_joules.items():
            engines.add_metric([worker.id, engine], used)
    yield from (watts, joules, engines)
