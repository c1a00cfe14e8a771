"""System under test of the Single and Multi Stream scenarios."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Final

from profiler.loadgen.completion import EMPTY_RESPONSE
from synergai.errors import DeadlineExceeded, Overloaded, SynergaiError
from synergai.protocol import arrays

if TYPE_CHECKING:
    from collections.abc import Sequence

    import mlperf_loadgen

    from profiler.loadgen.completion import SampleCompleter
    from profiler.loadgen.library import SampleLibrary
    from profiler.loadgen.query_counter import QueryCounter
    from profiler.loadgen.sync_client import Response, SyncStreamClient

WARM_UP_QUERIES: Final = 5


class SyncSystem:
    """Sends queries on LoadGen's thread and completes their samples as responses arrive.

    Args:
        engine: name of the engine, or ``NAME/N`` for a version of it.
        library: the samples; requests are serialised when loaded, so as not to be timed.
    """

    def __init__(
        self,
        client: SyncStreamClient,
        engine: str,
        library: SampleLibrary,
        *,
        deadline_s: float | None,
        completer: SampleCompleter,
        counter: QueryCounter,
    ) -> None:
        self._client = client
        self._engine = engine
        self._library = library
        self._parameters = {}
        if deadline_s is not None:
            self._parameters["timeout"] = max(1, round(deadline_s * 1e6))
        self._completer = completer
        self._counter = counter
        self._requests: dict[int, bytes] = {}

    def warm_up(self) -> float:
        """Send a few queries before the run and return the lowest latency in seconds."""
        self.load([0])
        fastest = math.inf
        for _ in range(WARM_UP_QUERIES):
            self._counter.record_issued(1)
            sent_at = time.monotonic()
            [(_, response)] = self._client.infer([self._requests[0]])
            self._counter.record_end(sent_at, None)
            # Loading the engine may take longer than an enforced QoS allows.
            if isinstance(response, SynergaiError) and not isinstance(
                response, DeadlineExceeded | Overloaded
            ):
                raise response
            fastest = min(fastest, time.monotonic() - sent_at)
        self.unload([0])
        return fastest

    def load(self, indices: Sequence[int]) -> None:
        """Load samples and serialise their requests, before LoadGen issues them."""
        self._library.load(indices)
        for index in indices:
            if index not in self._requests:
                engine, _, version = self._engine.partition("/")
                request = arrays.build_request(
                    engine,
                    self._library.inputs(index),
                    outputs=self._library.outputs,
                    version=version,
                    request_id=str(index),
                    parameters=self._parameters,
                )
                self._requests[index] = request.SerializeToString()

    def unload(self, indices: Sequence[int]) -> None:
        """Drop samples that LoadGen no longer issues."""
        for index in indices:
            self._requests.pop(index, None)
        self._library.unload(indices)

    def issue(self, samples: list[mlperf_loadgen.QuerySample]) -> None:
        """Send a query of LoadGen's and wait for its responses."""
        counter = self._counter
        counter.record_issued(len(samples))
        # A query may contain a sample twice; the responses are interchangeable.
        ids: defaultdict[str, list[int]] = defaultdict(list)
        for sample in samples:
            ids[str(sample.index)].append(sample.id)
        issued_at = time.monotonic()
        try:
            requests = [self._requests[sample.index] for sample in samples]
            for request_id, response in self._client.infer(requests):
                error = response if isinstance(response, SynergaiError) else None
                counter.record_end(issued_at, error)
                encoded = self._encode(int(request_id), response)
                self._completer.complete([(ids[request_id].pop(), encoded)])
        except SynergaiError as error:
            counter.fail(error)

    def _encode(self, index: int, response: Response) -> bytes:
        if isinstance(response, SynergaiError) or not self._completer.logs_responses:
            return EMPTY_RESPONSE
        return self._completer.encode(index, arrays.read_outputs(response))
