"""Metrics of the connected workers."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING, Final, TypeAlias

from gateway.monitoring.metrics import counter, gauge
from synergai.v1 import common_pb2

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from gateway.fleet.descriptions import EngineConflict
    from gateway.fleet.worker import ConnectedWorker
    from gateway.monitoring.metrics import MetricFamily, Series
    from synergai.domain import EngineName, WorkerId
    from synergai.wire.work_transport import SentOver

    Value: TypeAlias = Callable[[ConnectedWorker], float | None]

_MAX_CONFLICTS: Final = 1000
"""Variants that are exported. Agents may make up engines."""
_MAX_LABEL: Final = 160
"""Characters of a label."""
_STATES: Final[dict[int, str]] = {
    common_pb2.PLACED_STATE_FETCHING: "fetching",
    common_pb2.PLACED_STATE_INSTALLED: "installed",
    common_pb2.PLACED_STATE_FAILED: "failed",
    common_pb2.PLACED_STATE_CONFLICT: "conflict",
}


_COUNTERS: Final[dict[str, tuple[str, Value]]] = {
    "queries": ("Queries that the worker completed.", lambda each: each.queries_done),
    "busy_seconds": ("Time that the worker's engines computed.", lambda each: each.busy_s),
    "run_seconds": (
        "Time from dispatch to completion of completed assignments that had an estimate.",
        lambda each: each.run_s,
    ),
    "estimated_run_seconds": (
        "Estimated time of the same assignments.",
        lambda each: each.estimated_run_s,
    ),
    "estimate_error_seconds": (
        "Absolute difference of estimated and actual time, summed over the same assignments.",
        lambda each: each.estimate_error_s,
    ),
    "energy_joules": (
        "Energy of the worker's machine since its agent started.",
        lambda each: each.power.joules,
    ),
}
_GAUGES: Final[dict[str, tuple[str, Value]]] = {
    "assignments": (
        "Assignments sent to the worker that have not ended.",
        lambda each: len(each.in_flight),
    ),
    "queue_depth": (
        "Queries of these assignments that are not completed.",
        lambda each: sum(a.assignment.count - a.done for a in each.in_flight.values()),
    ),
    "power_watts": (
        "Power of the worker's machine at the last heartbeat.",
        lambda each: each.power.watts,
    ),
    "send_speed_bytes": (
        "Bytes per second of the last larger transfer to the worker.",
        lambda each: None if (sent := each.measure_link()) is None else sent.bytes_per_s,
    ),
    "receive_speed_bytes": (
        "Bytes per second of the last larger transfer from the worker, as its agent measured it.",
        lambda each: each.received_bytes_per_s or None,
    ),
}


def worker_families(
    workers: Callable[[], Iterable[ConnectedWorker]],
    paces: Callable[[], Mapping[tuple[WorkerId, EngineName], float]],
) -> Iterator[MetricFamily]:
    """Yield the families of connected workers; counters restart at a reconnection."""

    def series(value: Value) -> Callable[[], Iterator[Series]]:
        return lambda: (
            ([worker.id], number) for worker in workers() if (number := value(worker)) is not None
        )

    for new, families in ((counter, _COUNTERS), (gauge, _GAUGES)):
        for name, (text, value) in families.items():
            yield new(f"worker_{name}", text, series(value), "worker")
    yield gauge(
        "worker_pace_ratio",
        "Observed over profiled time per query; above 1, the worker is slower than profiled.",
        lambda: paces().items(),
        "worker",
        "engine",
    )
    yield counter(
        "worker_engine_energy_joules",
        "Energy of the worker's machine while the engine computed.",
        lambda: (
            ([worker.id, engine], joules)
            for worker in workers()
            for engine, joules in worker.power.engines.items()
        ),
        "worker",
        "engine",
    )

    yield gauge(
        "peer_link_speed_bytes",
        "Bytes per second of the last larger transfer of tensors from a worker to another one.",
        _links(workers, lambda link: link.bytes_per_s),
        "source",
        "worker",
    )
    yield gauge(
        "peer_link_round_trip_seconds",
        "Shortest round trip between the two workers.",
        _links(workers, lambda link: link.round_trip_s),
        "source",
        "worker",
    )
    yield gauge(
        "worker_placements",
        "Engine versions of the store that are placed on the worker, by state.",
        lambda: Counter(
            (worker.id, _STATES.get(placed.state, "waiting"))
            for worker in workers()
            for placed in worker.placed.values()
        ).items(),
        "worker",
        "state",
    )


def _links(
    workers: Callable[[], Iterable[ConnectedWorker]], value: Callable[[SentOver], float]
) -> Callable[[], Iterator[Series]]:
    def read() -> Iterator[Series]:
        connected = {worker.id: worker for worker in workers()}
        for worker in connected.values():
            for source, link in worker.peer_links.items():
                # Agents report links from any name; those of other workers are real.
                if source in connected and (number := value(link)):
                    yield [source, worker.id], number

    return read


def conflict_family(conflicts: Callable[[], Iterable[EngineConflict]]) -> MetricFamily:
    """Return the family of the engines and variants that differ from those in service."""
    return gauge(
        "worker_engine_conflicts",
        "Engines of the worker, or variants of them, that are not used, because they differ "
        "from those in service; 1 for each, with the SHA-256 of both files.",
        lambda: (
            ([text[:_MAX_LABEL] for text in conflict[:5]], 1)
            for conflict in islice(conflicts(), _MAX_CONFLICTS)
        ),
        *("worker", "engine", "variant", "digest", "in_service"),
    )
