"""The gateway in LoadGen's hands for Server and Offline: asked without waiting for answers.

LoadGen's thread only hands its queries over. An event loop on a thread of its own asks by the SDK
that users have, and completes samples in batches: each call into LoadGen, and each wake-up from
one thread to the other, would else cost as much as the request.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from concurrent.futures import Future
from typing import TYPE_CHECKING, Self, TypeAlias

import uvloop

from synergai.errors import SynergaiError, Unavailable
from synergai.loadgen.completion import EMPTY_RESPONSE

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    import mlperf_loadgen

    from synergai.client.client import Client
    from synergai.loadgen.completion import Completion
    from synergai.loadgen.library import SampleLibrary
    from synergai.loadgen.query_counter import QueryCounter

    Issued: TypeAlias = tuple[int, int, float]


class AsyncSystem:
    """Asks the gateway for every sample that LoadGen issues; a context manager.

    Args:
        client: to the gateway; entered on the loop's own thread. It may neither try a request
            again, which would hide what the first one met, nor hold any back: LoadGen decides when
            each is sent.
        engine: name of the engine.
        library: the samples.
        deadline_s: what the gateway is told as each sample's deadline; None if nothing.
        window: at most so many samples are on their way at once, and a sample's time begins when it
            is sent; None if all are sent as they are issued, and their time begins with that.
        completion: how samples are completed.
        board: where they are counted.
    """

    def __init__(
        self,
        client: Client,
        engine: str,
        library: SampleLibrary,
        *,
        deadline_s: float | None,
        window: int | None,
        completion: Completion,
        board: QueryCounter,
    ) -> None:
        self._client = client
        self._engine = engine
        self._library = library
        self._deadline_s = deadline_s
        self._window = window
        self._completion = completion
        self._board = board
        self._issued: deque[Issued] = deque()
        self._unsent: deque[Issued] = deque()
        self._woken = False
        self._asking: set[asyncio.Task[None]] = set()
        self._answered: list[tuple[int, bytes]] = []
        self._running: Future[asyncio.AbstractEventLoop] = Future()
        self._thread = threading.Thread(target=self._run, name="gateway")

    def __enter__(self) -> Self:
        self._thread.start()
        self._loop = self._running.result()
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

    def load(self, indices: Sequence[int]) -> None:
        """Called by LoadGen before it issues these samples."""
        self._library.load(indices)

    def unload(self, indices: Sequence[int]) -> None:
        """Called by LoadGen when it issues them no more."""
        self._library.unload(indices)

    def issue(self, samples: list[mlperf_loadgen.QuerySample]) -> None:
        """Called by LoadGen with its next query; returns at once."""
        now = time.monotonic()
        self._issued.extend((sample.id, sample.index, now) for sample in samples)
        # One wake-up takes all that was issued until then. The loop's thread clears the mark before
        # it looks, so that what comes after its look finds the mark cleared and wakes it again.
        if not self._woken:
            self._woken = True
            self._loop.call_soon_threadsafe(self._take)

    # --- the loop's thread ------------------------------------------------------------------

    def _run(self) -> None:
        try:
            uvloop.run(self._serve())
        except BaseException as error:
            if self._running.done():
                raise
            self._running.set_exception(error)

    async def _serve(self) -> None:
        self._stopping = asyncio.Event()
        async with self._client:
            self._running.set_result(asyncio.get_running_loop())
            await self._stopping.wait()

    def _take(self) -> None:
        self._woken = False
        while self._issued:
            self._unsent.append(self._issued.popleft())
            self._board.issued(1)
        self._send()

    def _send(self) -> None:
        """Send what may be on its way."""
        while self._unsent and (self._window is None or len(self._asking) < self._window):
            task = asyncio.create_task(self._ask(*self._unsent.popleft()))
            self._asking.add(task)
            task.add_done_callback(self._asking.discard)

    async def _ask(self, sample_id: int, index: int, issued_at: float) -> None:
        since = issued_at if self._window is None else time.monotonic()
        left_s = None
        if self._deadline_s is not None:
            left_s = max(0.0, since + self._deadline_s - time.monotonic())
        kept, failure = EMPTY_RESPONSE, None
        try:
            result = await self._client.infer(
                self._engine,
                self._library.inputs(index),
                outputs=self._library.outputs,
                deadline=left_s,
            )
            kept = self._completion.kept(index, result.outputs)
        except SynergaiError as error:
            failure = error
            # A worker that was lost costs its queries; without the gateway there is no run.
            if isinstance(error, Unavailable) and not await self._client.ready():
                self._board.fault = error
        self._board.ended(since, failure)
        if not self._answered:
            self._loop.call_soon(self._complete)
        self._answered.append((sample_id, kept))

    def _complete(self) -> None:
        """Complete all samples that were answered in this turn of the loop, and send others."""
        answered, self._answered = self._answered, []
        self._completion.complete(answered)
        self._send()
