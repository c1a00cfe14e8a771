"""Statistics per engine since the gateway started, for the protocol's ModelStatistics.

Plain numbers that the event loop adds to; counting a request takes less than a microsecond.
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
    """Number of events and their total duration."""

    count: int = 0
    seconds: float = 0.0

    def add(self, seconds: float) -> None:
        """Count an event."""
        self.count += 1
        self.seconds += seconds


@dataclass(slots=True)
class EngineStatistics:
    """Statistics of one engine.

    Attributes:
        success: successful requests, from arrival to result.
        queue: their time in the queue.
        transfer: their time between dispatch and result, less compute time.
        fail: requests that failed because of the engine, the worker or their input.
        rejected: requests rejected for overload.
        expired: requests whose deadline passed.
        cancelled: requests whose client cancelled.
        compute: queries of requests and jobs in the engine; each query of a batch counts with the
            time of the whole batch.
        batches: the queries among them that ran in batches, by batch size.
        last_query_at: completion time of the last query in monotonic seconds; None before it.
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

    def record_compute(self, queries: int, seconds: float, now: float, batch: int = 1) -> None:
        """Record queries that a worker computed, in batches of `batch`."""
        self.compute.count += queries
        self.compute.seconds += seconds
        self.last_query_at = now
        if batch > 1:
            self.batches.setdefault(batch, Duration()).add(seconds)

    def executions(self) -> dict[int, Duration]:
        """Return the engine's executions by batch size."""
        single = Duration(self.compute.count, self.compute.seconds)
        by_size = {1: single}
        for size, queries in sorted(self.batches.items()):
            single.count -= queries.count
            single.seconds = max(0.0, single.seconds - queries.seconds)
            # Single queries of a batch may have been cancelled and never reported.
            by_size[size] = Duration(math.ceil(queries.count / size), queries.seconds / size)
        return {size: duration for size, duration in by_size.items() if duration.count}

    def record_success(self, queue_s: float, transfer_s: float, compute_s: float) -> None:
        """Record a successful request and the consecutive parts of its time."""
        # On the path of every request: calls of `add` would cost more than the sums.
        success, queue, transfer = self.success, self.queue, self.transfer
        success.count += 1
        success.seconds += queue_s + transfer_s + compute_s
        queue.count += 1
        queue.seconds += queue_s
        transfer.count += 1
        transfer.seconds += transfer_s

    def record_failure(self, error: SynergaiError, seconds: float = 0.0) -> None:
        """Record a request that failed `seconds` after its arrival."""
        match error:
            case Cancelled():
                self.cancelled.add(seconds)
            case DeadlineExceeded():
                self.expired.add(seconds)
            case Overloaded():
                self.rejected.add(seconds)
            case _:
                self.fail.add(seconds)
