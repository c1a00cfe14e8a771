"""The ways in which a server is asked: unary or on a stream, with so many requests under way."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal

from benchmarks.client import TRITON, Client, Dialect
from benchmarks.interleaving import Probe

if TYPE_CHECKING:
    from collections.abc import Iterable
    from contextlib import AsyncExitStack

    from benchmarks.workloads import Workload


@dataclass(frozen=True, slots=True)
class Way:
    """A column of a table."""

    call: Literal["unary", "stream"]
    in_flight: int

    def __str__(self) -> str:
        return f"{self.call}, {self.in_flight} in flight"


UNARY_1 = Way("unary", 1)
UNARY_4 = Way("unary", 4)
UNARY_16 = Way("unary", 16)
STREAM_1 = Way("stream", 1)
STREAM_3 = Way("stream", 3)
STREAM_4 = Way("stream", 4)
STREAM_16 = Way("stream", 16)


def probes(
    stack: AsyncExitStack,
    row: str,
    address: str,
    workload: Workload,
    ways: Iterable[Way],
    dialect: Dialect = TRITON,
) -> list[Probe]:
    """Probes of one server in these ways; the client is closed with `stack`."""
    client = Client(address, workload, dialect)
    stack.push_async_callback(client.close)
    calls = {"unary": client.unary, "stream": client.stream}
    return [
        Probe(row=row, column=str(way), measure=partial(calls[way.call], way.in_flight))
        for way in ways
    ]
