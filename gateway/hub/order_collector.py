"""Collection of a worker's orders, to send several of them in one message.

A socket accepts messages at once, so orders do not accumulate by themselves, and a message costs
gateway, agent and engine host more than a short query does.
"""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Final

from gateway.fleet.worker import RunAssignment

if TYPE_CHECKING:
    from gateway.fleet.worker import ConnectedWorker, Order
    from synergai.runtime.clock import Clock
    from synergai.runtime.send_queue import SendQueue

COLLECT_S: Final = 0.004
"""Longest time that orders are held back to be sent together, in seconds."""
CONCURRENT_S: Final = 0.02
"""Time for which further orders are expected after several assignments were in flight."""
LARGE_BYTES: Final = 64 << 10
"""Size of a request whose message costs little in comparison."""
_IDLE_TURNS: Final = 32
"""Turns of the event loop without a new order after which the gateway counts as idle; a turn takes
about a microsecond."""


class OrderCollector:
    """Holds the orders of one worker back while waiting costs nothing."""

    def __init__(self, worker: ConnectedWorker, clock: Clock) -> None:
        self._worker = worker
        self._clock = clock
        self._expects_more_until = -math.inf

    def holds_back(self) -> bool:
        """Return whether the next order waits for others.

        A worker that has had a single assignment at a time gets its next one at once.
        """
        now = self._clock.now()
        if len(self._worker.in_flight) > 1:
            # It may have answered all of them when the next request arrives, ahead of the others.
            self._expects_more_until = now + CONCURRENT_S
            return True
        return now < self._expects_more_until

    async def collect(self, orders: SendQueue[Order], batch: list[Order]) -> list[Order]:
        """Return `batch` and the orders of the queue to send in the same message.

        They wait until half of the worker's other assignments in flight have ended, and then as
        long as the gateway has further requests to dispatch. A slow worker gets them earlier, while
        it still computes. What takes longer than its message does not wait.
        """
        if not self.holds_back() or any(map(outweighs_message, batch)):
            return batch
        in_flight = self._worker.in_flight
        held = len(batch)
        busy_with = len(in_flight) - held
        end = asyncio.get_running_loop().time() + COLLECT_S
        batch += await orders.collect_until(
            lambda count: 2 * (len(in_flight) - held - count) <= busy_with, COLLECT_S
        )
        timeout_s = end - asyncio.get_running_loop().time()
        return batch + await orders.collect_until_idle(_IDLE_TURNS, timeout_s)


def outweighs_message(order: Order) -> bool:
    """Return whether an order takes longer than its message.

    A range of queries does, and a job that continues behind a short request is due when the request
    ends. So does a large request, unless it can share a batch: the worker computes it while it
    receives the next one.
    """
    if not isinstance(order, RunAssignment):
        return False
    assignment = order.assignment
    return assignment.count > 1 or (
        assignment.batch_times is None and sum(map(len, order.requests)) >= LARGE_BYTES
    )
