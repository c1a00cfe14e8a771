"""System under test: a gateway that answers LoadGen's samples.

LoadGen's thread only hands queries over. An event loop on another thread sends them with the
client SDK and completes samples in batches, because a call into LoadGen or a wake-up across
threads costs as much as a request.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections import Counter, deque
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias

import mlperf_loadgen
import numpy as np
import uvloop

from profiler.loadgen.outcome import RequestOutcome, RunCounts, outcome_of
from synergai.errors import DeadlineExceeded, Overloaded, SynergaiError, Unavailable
from synergai.runtime.tasks import TaskBag

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence
    from types import TracebackType

    from profiler.loadgen.library import SampleLibrary
    from synergai.client.client import Client
    from synergai.client.streaming import InferResult

    Issued: TypeAlias = tuple[int, int, float]


EMPTY_RESPONSE = b""
"""Response of a failed sample, which must be completed too: LoadGen waits for every sample."""


def complete(responses: Sequence[tuple[int, bytes]]) -> None:
    """Complete samples given by LoadGen's ids, each with the bytes to log."""
    # LoadGen copies the bytes during the call; these arrays keep them in place until then.
    buffers = [np.frombuffer(data, np.uint8) for _, data in responses]
    mlperf_loadgen.QuerySamplesComplete(
        [
            mlperf_loadgen.QuerySampleResponse(sample_id, buffer.ctypes.data, buffer.nbytes)
            for (sample_id, _), buffer in zip(responses, buffers, strict=True)
        ]
    )


class QueryCounter:
    """Counts issued queries and their outcomes; written by one thread, read by another.

    Args:
        qos_s: latency in seconds beyond which a query is a violation; None for no limit.

    Attributes:
        error: the first error that ends the run, once there is one; see `fail`.
        done: number of ended queries.
    """

    def __init__(self, qos_s: float | None) -> None:
        self.error: SynergaiError | None = None
        self._qos_s = math.inf if qos_s is None else qos_s
        self.reset()

    def fail(self, error: SynergaiError) -> None:
        """End the run; of several errors, the first one counts."""
        if self.error is None:
            self.error = error

    def reset(self) -> None:
        """Restart all counts, at the end of the warm-up."""
        self.done = 0
        self._issued = 0
        self._outcomes: Counter[RequestOutcome] = Counter()
        self._first_failure = ""
        self._began_at = self._progressed_at = self._ended_at = time.monotonic()

    def record_issued(self, queries: int) -> None:
        if self._issued == self.done:
            self._progressed_at = time.monotonic()
        self._issued += queries

    def record_end(self, since: float, error: SynergaiError | None) -> None:
        self._progressed_at = self._ended_at = now = time.monotonic()
        self.done += 1
        outcome = outcome_of(error, now - since, self._qos_s)
        self._outcomes[outcome] += 1
        if outcome is RequestOutcome.FAILED and not self._first_failure:
            self._first_failure = str(error)

    def stalled_s(self) -> float:
        """Return the seconds since the last progress; 0 if no query is in flight."""
        return time.monotonic() - self._progressed_at if self._issued > self.done else 0.0

    def elapsed_s(self) -> float:
        return time.monotonic() - self._began_at

    def counts(self, inputs: str) -> RunCounts:
        """Return the counts; `inputs` describes the samples that were sent."""
        outcomes = self._outcomes
        return RunCounts(
            inputs=inputs,
            queries=self.done,
            failed=outcomes[RequestOutcome.FAILED],
            expired=outcomes[RequestOutcome.EXPIRED],
            rejected=outcomes[RequestOutcome.REJECTED],
            late=outcomes[RequestOutcome.LATE],
            seconds=self._ended_at - self._began_at,
            first_failure=self._first_failure,
        )


WARM_UP_QUERIES: Final = 5


class AsyncSystem:
    """Sends every sample that LoadGen issues; a context manager.

    Args:
        client: client of the gateway, entered on the event loop's thread. It must neither retry,
            which would hide failures, nor limit requests in flight: LoadGen schedules them.
        window: limit of samples in flight, in which case latency counts from sending; None to
            send samples when issued, in which case latency counts from then.
        logs_responses: whether the accuracy log gets the responses.
    """

    def __init__(
        self,
        client: Client,
        engine: str,
        library: SampleLibrary,
        *,
        deadline_s: float | None,
        window: int | None,
        logs_responses: bool,
        counter: QueryCounter,
    ) -> None:
        self._client = client
        self._engine = engine
        self._library = library
        self._deadline_s = deadline_s
        self._window = window
        self._logs_responses = logs_responses
        self._counter = counter
        self._issued: deque[Issued] = deque()
        self._unsent: deque[Issued] = deque()
        self._wakeup_pending = False
        self._in_flight = TaskBag()
        self._completed: list[tuple[int, bytes]] = []
        self._started: Future[asyncio.AbstractEventLoop] = Future()
        self._thread = threading.Thread(target=self._run, name="gateway")

    def __enter__(self) -> Self:
        self._thread.start()
        self._loop = self._started.result()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join()

    # --- LoadGen's thread -------------------------------------------------------------------

    def warm_up(self) -> float:
        """Send a few samples before the run and return the lowest latency in seconds."""
        self._library.load([0])
        fastest = asyncio.run_coroutine_threadsafe(self._warm_up(), self._loop).result()
        self._library.unload([0])
        return fastest

    def issue(self, samples: list[mlperf_loadgen.QuerySample]) -> None:
        """Hand over a query of LoadGen's without blocking."""
        now = time.monotonic()
        self._issued.extend((sample.id, sample.index, now) for sample in samples)
        # One wake-up covers all samples issued before it runs. The loop's thread clears the flag
        # before it reads the queue, so samples issued after the read wake it again.
        if not self._wakeup_pending:
            self._wakeup_pending = True
            self._loop.call_soon_threadsafe(self._on_issued)

    # --- the loop's thread ------------------------------------------------------------------

    def _run(self) -> None:
        try:
            uvloop.run(self._serve())
        except BaseException as error:
            if self._started.done():
                raise
            self._started.set_exception(error)

    async def _serve(self) -> None:
        self._stopping = asyncio.Event()
        async with self._client:
            self._started.set_result(asyncio.get_running_loop())
            await self._stopping.wait()

    async def _warm_up(self) -> float:
        fastest = math.inf
        for _ in range(WARM_UP_QUERIES):
            self._counter.record_issued(1)
            sent_at = time.monotonic()
            # Loading the engine may take longer than an enforced QoS allows.
            with suppress(DeadlineExceeded, Overloaded):
                await self._send_sample(0, self._deadline_s)
            self._counter.record_end(sent_at, None)
            fastest = min(fastest, time.monotonic() - sent_at)
        return fastest

    def _on_issued(self) -> None:
        self._wakeup_pending = False
        while self._issued:
            self._unsent.append(self._issued.popleft())
            self._counter.record_issued(1)
        self._send()

    def _send(self) -> None:
        """Send samples up to the window."""
        while self._unsent and (self._window is None or len(self._in_flight) < self._window):
            self._in_flight.start(self._infer(*self._unsent.popleft()))

    async def _infer(self, sample_id: int, index: int, issued_at: float) -> None:
        since = issued_at if self._window is None else time.monotonic()
        left_s = None
        if self._deadline_s is not None:
            left_s = max(0.0, since + self._deadline_s - time.monotonic())
        encoded, failure = EMPTY_RESPONSE, None
        try:
            result = await self._send_sample(index, left_s)
            if self._logs_responses:
                encoded = self._library.encode_response(index, result.outputs)
        except SynergaiError as error:
            failure = error
            # A lost worker fails its queries; a lost gateway ends the run.
            if isinstance(error, Unavailable) and not await self._client.ready():
                self._counter.fail(error)
        self._counter.record_end(since, failure)
        if not self._completed:
            self._loop.call_soon(self._complete)
        self._completed.append((sample_id, encoded))

    def _send_sample(self, index: int, deadline: float | None) -> Coroutine[Any, Any, InferResult]:
        return self._client.infer(
            self._engine,
            self._library.inputs(index),
            outputs=self._library.outputs,
            deadline=deadline,
        )

    def _complete(self) -> None:
        """Complete the samples of this iteration of the event loop, and send more."""
        completed, self._completed = self._completed, []
        complete(completed)
        self._send()
