"""Metrics of the connected workers."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING, Final

from gateway.monitoring.families import counter, gauge
from synergai.v1 import common_pb2

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from gateway.fleet.descriptions import EngineConflict
    from gateway.fleet.worker import ConnectedWorker
    from gateway.monitoring.families import Family, Series
    from synergai.domain import EngineName, WorkerId
    from synergai.protocol.tcp_info import SentOver

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


def worker_families(
    workers: Callable[[], Iterable[ConnectedWorker]],
    paces: Callable[[], Mapping[tuple[WorkerId, EngineName], float]],
) -> Iterator[Family]:
    """Yield the families of connected workers; counters restart at a reconnection."""

    def each(value: Callable[[ConnectedWorker], float | None]) -> Callable[[], Iterator[Series]]:
        return lambda: (
            ([worker.id], number) for worker in workers() if (number := value(worker)) is not None
        )

    yield counter(
        "worker_queries",
        "Queries that the worker completed.",
        each(lambda worker: worker.queries_done),
        "worker",
    )
    yield counter(
        "worker_busy_seconds",
        "Time that the worker's engines computed.",
        each(lambda worker: worker.busy_s),
        "worker",
    )
    yield gauge(
        "worker_assignments",
        "Assignments sent to the worker that have not ended.",
        each(lambda worker: len(worker.in_flight)),
        "worker",
    )
    yield gauge(
        "worker_queue_depth",
        "Queries of these assignments that are not completed.",
        each(lambda worker: sum(a.assignment.count - a.done for a in worker.in_flight.values())),
        "worker",
    )
    yield gauge(
        "worker_pace_ratio",
        "Observed over profiled time per query; above 1, the worker is slower than profiled.",
        lambda: paces().items(),
        "worker",
        "engine",
    )
    yield counter(
        "worker_run_seconds",
        "Time from dispatch to completion of completed assignments that had an estimate.",
        each(lambda worker: worker.run_s),
        "worker",
    )
    yield counter(
        "worker_estimated_run_seconds",
        "Estimated time of the same assignments.",
        each(lambda worker: worker.estimated_run_s),
        "worker",
    )
    yield counter(
        "worker_estimate_error_seconds",
        "Absolute difference of estimated and actual time, summed over the same assignments.",
        each(lambda worker: worker.estimate_error_s),
        "worker",
    )
    yield gauge(
        "worker_power_watts",
        "Power of the worker's machine at the last heartbeat.",
        each(lambda worker: worker.power.watts),
        "worker",
    )
    yield counter(
        "worker_energy_joules",
        "Energy of the worker's machine since its agent started.",
        each(lambda worker: worker.power.joules),
        "worker",
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
        "worker_send_speed_bytes",
        "Bytes per second of the last larger transfer to the worker.",
        each(lambda worker: None if (sent := worker.measure_link()) is None else sent.bytes_per_s),
        "worker",
    )
    yield gauge(
        "worker_receive_speed_bytes",
        "Bytes per second of the last larger transfer from the worker, as its agent measured it.",
        each(lambda worker: worker.received_bytes_per_s or None),
        "worker",
    )

    def links(value: Callable[[SentOver], float]) -> Callable[[], Iterator[Series]]:
        def read() -> Iterator[Series]:
            connected = {worker.id: worker for worker in workers()}
            for worker in connected.values():
                for source, link in worker.peer_links.items():
                    # Agents report links from any name; those of other workers are real.
                    if source in connected and (number := value(link)):
                        yield [source, worker.id], number

        return read

    yield gauge(
        "peer_link_speed_bytes",
        "Bytes per second of the last larger transfer of tensors from a worker to another one.",
        links(lambda link: link.bytes_per_s),
        "source",
        "worker",
    )
    yield gauge(
        "peer_link_round_trip_seconds",
        "Shortest round trip between the two workers.",
        links(lambda link: link.round_trip_s),
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


def conflict_family(conflicts: Callable[[], Iterable[EngineConflict]]) -> Family:
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
