"""Links of the gateway and its workers, as a table and as a fleet file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from synergai.cli.output import format_seconds, print_table
from synergai.routes.links import GATEWAY

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from synergai.client.fleet import WorkerStatus

_BYTES_PER_MBIT = 125_000.0


def show_links(workers: Sequence[WorkerStatus]) -> None:
    """Print a table of what is known of the links between the workers and the gateway."""
    print_table(
        ("from", "to", "rate", "round trip"),
        (
            (source, target, _rate_text(bytes_per_s), format_seconds(round_trip_s or None))
            for worker in workers
            for source, target, bytes_per_s, round_trip_s in _links(worker)
        ),
    )


def _links(worker: WorkerStatus) -> Iterator[tuple[str, str, float, float]]:
    """Yield the ends, bytes per second and round trip of links; 0 is unknown."""
    link = worker.link
    yield GATEWAY, worker.id, link.to_bytes_per_s, link.round_trip_s
    yield worker.id, GATEWAY, link.from_bytes_per_s, link.round_trip_s
    for each in worker.peers:
        yield each.worker_id, worker.id, each.bytes_per_s, each.round_trip_s


def _rate_text(bytes_per_s: float) -> str:
    return f"{bytes_per_s / _BYTES_PER_MBIT:,.4g} Mbit/s" if bytes_per_s else "unknown"


def print_fleet(workers: Sequence[WorkerStatus]) -> None:
    """Print a fleet file of the workers, with the links as far as they are known."""
    connected = {GATEWAY, *(worker.id for worker in workers)}
    for worker in workers:
        typer.echo("\n".join(_fleet_lines(worker, connected)) + "\n")


def _fleet_lines(worker: WorkerStatus, connected: Collection[str]) -> Iterator[str]:
    yield "[[workers]]"
    yield f'id = "{worker.id}"'
    yield f'worker_class = "{worker.worker_class}"'
    if worker.memory_limit_bytes:
        yield f"memory_mb = {worker.memory_limit_bytes / 1e6:.0f}"
    for source, target, bytes_per_s, round_trip_s in _links(worker):
        if bytes_per_s and source in connected:
            yield ""
            yield "[[links]]"
            yield f'from = "{source}"'
            yield f'to = "{target}"'
            yield f"mbit_s = {bytes_per_s / _BYTES_PER_MBIT:.4g}"
            yield f"latency_ms = {round_trip_s / 2 * 1e3:.3g}"
