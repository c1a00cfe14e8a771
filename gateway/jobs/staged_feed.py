"""Inputs of a job in stages, which are read as there is room for their tensors.

Few queries are on their way at a time. How large their tensors are is known once one of them has
reached the last stage.
"""

from __future__ import annotations

import asyncio
import logging
import math
import sys
from typing import TYPE_CHECKING, Final

from gateway.jobs.input_feed import read_inputs
from gateway.records.log import DamagedLog
from synergai.protocol.job_inputs import sample_input
from synergai.runtime.tasks import TaskBag

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gateway.jobs.tensor_room import TensorRoom
    from gateway.records.log import RecordLog
    from synergai.domain import Job
    from synergai.scheduling.state.jobs import Ranges

MOST_QUERIES: Final = 128
"""Queries of a job that are on their way."""
MOST_BYTES: Final = 32 * 1024 * 1024
"""Their largest tensors, unless a single query has more."""
FIRST_QUERIES: Final = 4
"""Queries of a run that are on their way before one has reached the last stage."""
WORTH_S: Final = 0.5
"""Time that the queries on their way take. A job that moves to other stages ends in the former ones
within this time."""
LEAST_QUERIES: Final = 4
"""Least number of queries on their way for each worker, however long they take."""
_REFILL: Final = 0.25
"""Share of the queries on their way that is read together."""

_log = logging.getLogger(__name__)


class StagedFeed:
    """Reads the queries of a run.

    Args:
        pending: queries that are not recorded.
        log: their inputs; None for samples.
        largest_bytes: of their tensors, as far as it is known.
        begin: called with the index of a query, the inputs of those from there on, and the room of
            each.
        fail: called with the reason once the inputs cannot be read.
    """

    def __init__(
        self,
        job: Job,
        pending: Ranges,
        log: RecordLog | None,
        room: TensorRoom,
        largest_bytes: int,
        begin: Callable[[int, Sequence[bytes], int], None],
        fail: Callable[[str], None],
    ) -> None:
        self._job = job
        self._pending = pending
        self._log = log
        self._room = room
        self._largest_bytes = largest_bytes
        self._interval_s = 0.0
        self._workers = 1
        self._begin = begin
        self._fail = fail
        self._under_way = 0
        self._room_bytes = 0
        self._sized = False
        self._moved = asyncio.Event()
        self._tasks = TaskBag()

    def start(self) -> None:
        """Read the queries."""
        self._tasks.start(self._feed())

    def observe(self, size: int) -> None:
        """Note the size of a query's tensors in a stage."""
        self._largest_bytes = max(self._largest_bytes, size)

    def set_sized(self) -> None:
        """Note that a query has reached the last stage."""
        if not self._sized:
            self._sized = True
            self._moved.set()

    def set_pace(self, interval_s: float, workers: int) -> None:
        """Note the time between results, and how many workers there are."""
        self._interval_s, self._workers = interval_s, workers

    def recorded(self, queries: int, room_bytes: int) -> None:
        """Make room for other queries, as so many are recorded."""
        self._give(room_bytes)
        self._under_way -= queries
        self._moved.set()

    def close(self) -> None:
        """Read nothing more, and free all room."""
        self._tasks.cancel()
        self._give(self._room_bytes)

    async def _feed(self) -> None:
        try:
            while self._pending.total:
                await self._feed_some()
        except (DamagedLog, OSError) as error:
            _log.error("job %s: its inputs cannot be read: %s", self._job.id, error)
            self._fail("its inputs can no longer be read")

    async def _feed_some(self) -> None:
        """Read the next inputs once there is room for them."""
        while True:
            most = self._most_queries()
            free = most - self._under_way
            if not self._under_way or free >= min(most * _REFILL, self._pending.total):
                break
            self._moved.clear()
            await self._moved.wait()
        wanted, size = max(1, free), self._largest_bytes
        await self._room.take(self._job, size)
        self._room_bytes += size
        granted = 1
        while granted < wanted and self._room.try_take(size):
            self._room_bytes += size
            granted += 1
        first, stop = self._pending.take(granted, sys.maxsize) or (0, 0)
        found = await self._read(first, stop - first)
        if first + len(found) < stop:
            self._pending.add(first + len(found), stop)
        self._give((granted - len(found)) * size)
        self._under_way += len(found)
        self.observe(max(map(len, found)))
        self._begin(first, found, size)

    async def _read(self, first: int, queries: int) -> list[bytes]:
        if self._log is None:
            return [sample_input(index) for index in range(first, first + queries)]
        return await asyncio.to_thread(read_inputs, self._log, first, queries)

    def _most_queries(self) -> int:
        """Return how many queries may be on their way."""
        if not self._sized:
            return FIRST_QUERIES
        most = max(1, min(MOST_QUERIES, MOST_BYTES // self._largest_bytes))
        if not self._interval_s:
            return most
        worth = math.ceil(WORTH_S / self._interval_s)
        return min(most, max(worth, LEAST_QUERIES * self._workers))

    def _give(self, size: int) -> None:
        self._room_bytes -= size
        self._room.give(size)
