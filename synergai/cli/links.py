"""Links between the gateway and its workers, as a table and as a fleet file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from synergai.cli.output import format_seconds, print_table
from synergai.routes.links import GATEWAY

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from synergai.client.fleet import WorkerStatus

_BYTES_PER_MBIT = 125_000.0


def show_links(workers: Sequence[WorkerStatus]) -> None:
    """Print a table of what is known of each worker's link."""
    columns = ("worker", "to the worker", "from the worker", "round trip")
    print_table(columns, map(_link_row, workers))


def _link_row(worker: WorkerStatus) -> tuple[str, ...]:
    link = worker.link
    rates = (link.to_bytes_per_s, link.from_bytes_per_s)
    return worker.id, *map(_rate_text, rates), format_seconds(link.round_trip_s or None)


def _rate_text(bytes_per_s: float) -> str:
    return f"{bytes_per_s / _BYTES_PER_MBIT:,.4g} Mbit/s" if bytes_per_s else "unknown"


def print_fleet(workers: Sequence[WorkerStatus]) -> None:
    """Print a fleet file of the workers, with the links as far as they are known."""
    for worker in workers:
        typer.echo("\n".join(_fleet_lines(worker)) + "\n")


def _fleet_lines(worker: WorkerStatus) -> Iterator[str]:
    yield "[[workers]]"
    yield f'id = "{worker.id}"'
    yield f'worker_class = "{worker.worker_class}"'
    if worker.memory_limit_bytes:
        yield f"memory_mb = {worker.memory_limit_bytes / 1e6:.0f}"
    link = worker.link
    for source, target, bytes_per_s in (
        (GATEWAY, worker.id, link.to_bytes_per_s),
        (worker.id, GATEWAY, link.from_bytes_per_s),
    ):
        if bytes_per_s:
            yield ""
            yield "[[links]]"
            yield f'from = "{source}"'
            yield f'to = "{target}"'
            yield f"mbit_s = {bytes_per_s / _BYTES_PER_MBIT:.4g}"
            yield f"latency_ms = {link.round_trip_s / 2 * 1e3:.3g}"
