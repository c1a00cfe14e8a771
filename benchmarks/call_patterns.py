"""Call patterns: unary or stream, with a number of requests in flight."""

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
class CallPattern:
    """Kind of call and concurrency, a column of a table."""

    call: Literal["unary", "stream"]
    in_flight: int

    def __str__(self) -> str:
        return f"{self.call}, {self.in_flight} in flight"


UNARY_1 = CallPattern("unary", 1)
UNARY_4 = CallPattern("unary", 4)
UNARY_16 = CallPattern("unary", 16)
STREAM_1 = CallPattern("stream", 1)
STREAM_3 = CallPattern("stream", 3)
STREAM_4 = CallPattern("stream", 4)
STREAM_16 = CallPattern("stream", 16)


def probes(
    stack: AsyncExitStack,
    row: str,
    address: str,
    workload: Workload,
    patterns: Iterable[CallPattern],
    dialect: Dialect = TRITON,
) -> list[Probe]:
    """Create the probes of one server; the client is closed with `stack`."""
    client = Client(address, workload, dialect)
    stack.push_async_callback(client.close)
    calls = {"unary": client.unary, "stream": client.stream}
    return [
        Probe(row=row, column=str(pattern), measure=partial(calls[pattern.call], pattern.in_flight))
        for pattern in patterns
    ]
