"""What each engine has done since the gateway started, for the protocol's ModelStatistics.

Plain numbers that the event loop adds to: a request is counted in less than a microsecond.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from synergai.errors import Cancelled, DeadlineExceeded, Overloaded

if TYPE_CHECKING:
    from synergai.errors import SynergaiError


@dataclass(slots=True)
class Duration:
    """So many of something, and how many seconds they took together."""

    count: int = 0
    seconds: float = 0.0

    def add(self, seconds: float) -> None:
        """Count one more."""
        self.count += 1
        self.seconds += seconds


@dataclass(slots=True)
class EngineStatistics:
    """The counts of one engine.

    Attributes:
        success: requests answered, from arrival to result.
        queue: their part that they waited for a worker.
        transfer: their part between dispatch and result that was not computing.
        fail: requests that failed by the engine, the worker or their own input.
        rejected: those that were turned away: too many, or no worker in time.
        expired: those whose deadline passed.
        cancelled: those whose client left.
        compute: all queries, those of jobs included, inside the engine; each of a batch counts
            with the time of the whole batch.
        batches: those of them that were computed together with others, by the batch's size.
        last_query_at: when the last query was done, on the gateway's clock; None if none was.
    """

    success: Duration = field(default_factory=Duration)
    queue: Duration = field(default_factory=Duration)
    transfer: Duration = field(default_factory=Duration)
    fail: Duration = field(default_factory=Duration)
    rejected: Duration = field(default_factory=Duration)
    expired: Duration = field(default_factory=Duration)
    cancelled: Duration = field(default_factory=Duration)
    compute: Duration = field(default_factory=Duration)
    batches: dict[int, Duration] = field(default_factory=dict)
    last_query_at: float | None = None

    def computed(self, queries: int, seconds: float, now: float, batch: int = 1) -> None:
        """A worker is further by so many queries, `batch` of which were computed at once."""
        self.compute.count += queries
        self.compute.seconds += seconds
        self.last_query_at = now
        if batch > 1:
            self.batches.setdefault(batch, Duration()).add(seconds)

    def executions(self) -> dict[int, Duration]:
        """How often the engine ran, and for how long, by how many queries it ran with."""
        single = Duration(self.compute.count, self.compute.seconds)
        found = {1: single}
        for size, queries in sorted(self.batches.items()):
            single.count -= queries.count
            single.seconds = max(0.0, single.seconds - queries.seconds)
            # Of a batch, single queries may have been given up and never reported.
            found[size] = Duration(math.ceil(queries.count / size), queries.seconds / size)
        return {size: duration for size, duration in found.items() if duration.count}

    def answered(self, queue_s: float, transfer_s: float, compute_s: float) -> None:
        """A request has its response, after these times one after the other."""
        # Every request passes here: calls of `add` would cost more than the sums.
        success, queue, transfer = self.success, self.queue, self.transfer
        success.count += 1
        success.seconds += queue_s + transfer_s + compute_s
        queue.count += 1
        queue.seconds += queue_s
        transfer.count += 1
        transfer.seconds += transfer_s

    def failed(self, error: SynergaiError, seconds: float = 0.0) -> None:
        """A request ended otherwise, so long after its arrival."""
        match error:
            case Cancelled():
                self.cancelled.add(seconds)
            case DeadlineExceeded():
                self.expired.add(seconds)
            case Overloaded():
                self.rejected.add(seconds)
            case _:
                self.fail.add(seconds)
