"""The gateway in LoadGen's hands for Single and Multi Stream: asked, and waited for."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Final

from synergai.errors import DeadlineExceeded, Overloaded, SynergaiError
from synergai.loadgen.completion import EMPTY_RESPONSE
from synergai.protocol import arrays

if TYPE_CHECKING:
    from collections.abc import Sequence

    import mlperf_loadgen

    from synergai.loadgen.completion import Completion
    from synergai.loadgen.library import SampleLibrary
    from synergai.loadgen.query_counter import QueryCounter
    from synergai.loadgen.sync_client import Answer, SyncClient

WARM_UP_QUERIES: Final = 5


class SyncSystem:
    """Issues each query on LoadGen's own thread, and completes its samples as they are answered.

    Args:
        line: to the gateway.
        engine: name of the engine.
        library: the samples; requests are serialised when they are loaded, and not while time runs.
        deadline_s: what the gateway is told as each sample's deadline; None if nothing.
        completion: how samples are completed.
        board: where they are counted.
    """

    def __init__(
        self,
        line: SyncClient,
        engine: str,
        library: SampleLibrary,
        *,
        deadline_s: float | None,
        completion: Completion,
        board: QueryCounter,
    ) -> None:
        self._line = line
        self._engine = engine
        self._library = library
        self._parameters = {}
        if deadline_s is not None:
            self._parameters["timeout"] = max(1, round(deadline_s * 1e6))
        self._completion = completion
        self._board = board
        self._requests: dict[int, bytes] = {}

    def warm_up(self) -> float:
        """Ask a few queries before the run; returns what the fastest took, in seconds.

        Raises:
            SynergaiError: the gateway cannot answer them, so that a run would say nothing.
        """
        self.load([0])
        fastest = math.inf
        for _ in range(WARM_UP_QUERIES):
            self._board.issued(1)
            asked_at = time.monotonic()
            [(_, answer)] = self._line.ask([self._requests[0]])
            self._board.ended(asked_at, None)
            # Loading the engine may take longer than an enforced QoS allows.
            if isinstance(answer, SynergaiError) and not isinstance(
                answer, DeadlineExceeded | Overloaded
            ):
                raise answer
            fastest = min(fastest, time.monotonic() - asked_at)
        self.unload([0])
        return fastest

    def load(self, indices: Sequence[int]) -> None:
        """Called by LoadGen before it issues these samples."""
        self._library.load(indices)
        for index in indices:
            if index not in self._requests:
                request = arrays.build_request(
                    self._engine,
                    self._library.inputs(index),
                    outputs=self._library.outputs,
                    request_id=str(index),
                    parameters=self._parameters,
                )
                self._requests[index] = request.SerializeToString()

    def unload(self, indices: Sequence[int]) -> None:
        """Called by LoadGen when it issues them no more."""
        for index in indices:
            self._requests.pop(index, None)
        self._library.unload(indices)

    def issue(self, samples: list[mlperf_loadgen.QuerySample]) -> None:
        """Called by LoadGen with its next query, on the thread of the test."""
        board = self._board
        board.issued(len(samples))
        # A sample may be in a query twice; which of its answers is whose makes no difference.
        ids: defaultdict[str, list[int]] = defaultdict(list)
        for sample in samples:
            ids[str(sample.index)].append(sample.id)
        issued_at = time.monotonic()
        try:
            for asked, answer in self._line.ask([self._requests[s.index] for s in samples]):
                board.ended(issued_at, answer if isinstance(answer, SynergaiError) else None)
                self._completion.complete([(ids[asked].pop(), self._kept(int(asked), answer))])
        except SynergaiError as fault:
            board.fault = fault

    def _kept(self, index: int, answer: Answer) -> bytes:
        if isinstance(answer, SynergaiError) or not self._completion.keeps_answers:
            return EMPTY_RESPONSE
        return self._completion.kept(index, arrays.read_outputs(answer))
