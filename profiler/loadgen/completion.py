"""Completion of LoadGen's samples, and their counts."""

from __future__ import annotations

import math
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import mlperf_loadgen
import numpy as np

from profiler.loadgen.messages import RunCounts
from profiler.loadgen.outcome import RequestOutcome, outcome_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from profiler.loadgen.library import SampleLibrary
    from synergai.errors import SynergaiError


EMPTY_RESPONSE = b""
"""Response of a failed sample, which must be completed too: LoadGen waits for every sample."""


class SampleCompleter:
    """Reports completed samples to LoadGen.

    Args:
        library: encodes responses for the accuracy log; None in performance mode, which logs none.
    """

    def __init__(self, library: SampleLibrary | None) -> None:
        self._library = library

    def encode(self, index: int, outputs: Mapping[str, NDArray[Any]]) -> bytes:
        """Return the bytes to log for a sample's outputs."""
        if self._library is None:
            return EMPTY_RESPONSE
        return self._library.encode_response(index, outputs)

    def complete(self, responses: Sequence[tuple[int, bytes]]) -> None:
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
        """Count issued queries."""
        if self._issued == self.done:
            self._progressed_at = time.monotonic()
        self._issued += queries

    def record_end(self, since: float, error: SynergaiError | None) -> None:
        """Count a query that ended now."""
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
        """Return the seconds since the run began."""
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
