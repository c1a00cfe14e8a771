"""What an engine host does all its life: take runs in order, compute, answer.

One thread, blocking: while a query computes there is nothing else to do, and between two
queries a look at the socket shows whether the agent has called the run off. Queries that came
with the times of batches are computed together as far as they wait already.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from synergai.domain import Fault, Outcome
from synergai.errors import EngineUnusable, InvalidInput, SynergaiError
from worker_agent.backends import Interrupted, JobAware
from worker_agent.host.batches import BatchBuilder, Candidate, batch_key, concatenate, split_rows
from worker_agent.host.inbox import AgentDisconnected, Inbox
from worker_agent.host.query_codec import QueryCodec
from worker_agent.ipc.frames import RunEnded, RunProgress, RunQuery, RunSamples, Tally

if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from synergai.domain import BatchTimes, Engine
    from synergai.models.samples import Samples
    from worker_agent.backends import Backend
    from worker_agent.host.interrupts import InterruptListener
    from worker_agent.host.processing import Processing
    from worker_agent.host.query_codec import DecodedQuery
    from worker_agent.ipc.arena import Arena

    Array: TypeAlias = NDArray[Any]
    Run: TypeAlias = RunQuery | RunSamples

PROGRESS_INTERVAL: Final = 0.05
HOLD_S: Final = 0.0005
"""How long an answer may wait for those of the runs behind it, to be sent with them."""

_log = logging.getLogger(__name__)


class HostLoop:
    """Runs queries of one loaded engine.

    Args:
        connection: to the agent.
        arena: shared with the agent.
        engine: what requests are checked against.
        backend: the loaded model.
        samples: the engine's sample set.
        processing: what is done to the queries before and after the model.
        interrupts: told which run computes; None if its backend cannot be interrupted.
    """

    def __init__(
        self,
        connection: socket.socket,
        arena: Arena,
        engine: Engine,
        backend: Backend,
        samples: Samples,
        processing: Processing,
        interrupts: InterruptListener | None = None,
    ) -> None:
        self._connection = connection
        self._inbox = Inbox(connection)
        self._answers = QueryCodec(arena, engine, processing)
        self._max_batch = engine.max_batch
        # Of queries that were looked at for a batch and are still to be computed, by run.
        self._opened: dict[int, DecodedQuery] = {}
        self._backend = backend
        self._samples = samples
        self._processing = processing
        self._interrupts = interrupts
        self._outputs = [spec.name for spec in engine.outputs]
        self._job_aware = backend if isinstance(backend, JobAware) else None

    def serve(self) -> None:
        """Take runs until the agent closes the socket."""
        answers: list[bytes] = []
        held_since = 0.0
        try:
            while True:
                run = self._inbox.take()
                begin = time.perf_counter()
                if isinstance(run, RunQuery) and run.batch_times is not None:
                    ended = self._run_batch(run, run.batch_times)
                else:
                    ended = [self._run(run)]
                answers += [each.encode() for each in ended]
                self._inbox.forget(ended[-1].run)
                end = time.perf_counter()
                if not held_since:
                    held_since = end
                # Waking the agent costs it more than a short query costs us.
                next_is_short = self._inbox.has_query() and end - begin < HOLD_S
                if not next_is_short or end - held_since > HOLD_S:
                    self._connection.sendall(b"".join(answers))
                    answers.clear()
                    held_since = 0.0
        except (AgentDisconnected, ConnectionError):
            return

    def _run(self, run: Run) -> RunEnded:
        if self._inbox.is_stopped(run.run):
            self._opened.pop(run.run, None)
            return RunEnded(run.run, Outcome.STOPPED)
        if self._interrupts is None:
            return self._compute(run)
        self._interrupts.begin(run.run)
        try:
            return self._compute(run)
        finally:
            self._interrupts.end()

    def _compute(self, run: Run) -> RunEnded:
        return self._run_query(run) if isinstance(run, RunQuery) else self._run_range(run)

    def _run_query(self, query: RunQuery) -> RunEnded:
        try:
            opened = self._opened.pop(query.run, None) or self._answers.open(query)
            begin = self._begin_queries()
            arrays = self._backend.run(opened.inputs, opened.names)
            return self._answers.write(opened, arrays, time.perf_counter() - begin)
        except Interrupted:
            return RunEnded(query.run, Outcome.STOPPED)
        except Exception as error:  # noqa: BLE001 - a model may fail in any way; the host goes on
            return _failed(query.run, Tally(), error)

    def _begin_queries(self) -> float:
        """Say that single queries are computed from this instant on."""
        if self._job_aware is not None:
            self._job_aware.begin("")
        return time.perf_counter()

    # --- batches ----------------------------------------------------------------------------

    def _run_batch(self, first: RunQuery, batch_times: BatchTimes) -> list[RunEnded]:
        """Compute `first` together with what of the queries behind it goes with it.

        What goes wrong in a batch may be the fault of one of its queries: which, shows when
        each is computed by itself. If it is the engine's, there are no batches any more.
        """
        queries = self._gathered(first, batch_times)
        if len(queries) == 1:
            return [self._run(first)]
        opened = [self._opened[query.run] for query in queries]
        try:
            shares, compute_s = self._compute_batch(opened)
        except Interrupted:  # all of them were called off
            return [self._run(query) for query in queries]
        except InvalidInput:
            return [self._run(query) for query in queries]
        except Exception:  # noqa: BLE001 - a model may fail in any way; each is tried again
            _log.exception("a batch of %d failed; from now on each is run alone", len(queries))
            self._max_batch = 1
            return [self._run(query) for query in queries]
        return [
            self._written(self._opened.pop(one.query.run), share, compute_s, len(opened))
            for one, share in zip(opened, shares, strict=True)
        ]

    def _gathered(self, first: RunQuery, batch_times: BatchTimes) -> list[RunQuery]:
        """`first`, and those behind it that had best be computed with it."""
        if self._inbox.is_stopped(first.run):
            return [first]
        gathering = BatchBuilder(batch_times, self._max_batch, time.monotonic())
        for query in (first, *self._inbox.following(self._max_batch - 1)):
            candidate = self._candidate(query)
            if candidate is None or not gathering.add(candidate) or gathering.is_full:
                break
        behind = [self._inbox.take() for _ in range(gathering.size - 1)]
        return [first, *cast("list[RunQuery]", behind)]

    def _candidate(self, query: RunQuery) -> Candidate | None:
        """What `query` is for a batch; None if it has to be run alone."""
        if query.batch_times is None:
            return None
        try:
            opened = self._opened.get(query.run) or self._answers.open(query)
        except SynergaiError:  # it is answered so when its turn comes
            return None
        self._opened[query.run] = opened
        kind = batch_key(opened.inputs, opened.names)
        return None if kind is None else Candidate(*kind, query.due)

    def _compute_batch(self, opened: Sequence[DecodedQuery]) -> tuple[list[list[Array]], float]:
        """The outputs of each, and the seconds that all took together."""
        if self._interrupts is not None:
            self._interrupts.begin(*(one.query.run for one in opened))
        try:
            begin = self._begin_queries()
            arrays = self._backend.run(concatenate([one.inputs for one in opened]), opened[0].names)
            compute_s = time.perf_counter() - begin
        finally:
            if self._interrupts is not None:
                self._interrupts.end()
        return split_rows(arrays, [one.rows for one in opened]), compute_s

    def _written(
        self, opened: DecodedQuery, outputs: Sequence[Array], compute_s: float, batch: int
    ) -> RunEnded:
        try:
            return self._answers.write(opened, outputs, compute_s, batch)
        except Exception as error:  # noqa: BLE001 - as above
            return _failed(opened.query.run, Tally(), error)

    def _run_range(self, run: RunSamples) -> RunEnded:
        samples, labels = self._samples.inputs, self._samples.labels
        if run.batch > 1:
            labels = None  # it is for measuring, and nobody asks what was right
        labelled = correct = 0
        compute_s = 0.0
        done = 0
        report_at = time.perf_counter() + PROGRESS_INTERVAL
        try:
            if self._job_aware is not None:
                self._job_aware.begin(run.job)
            for query in range(run.first, run.first + run.count, run.batch):
                if self._inbox.is_stopped(run.run):
                    break
                index = query % len(samples)
                size = min(run.batch, run.count - done)
                begin = time.perf_counter()
                inputs = samples[index]
                if size > 1:
                    inputs = concatenate([samples[(query + i) % len(samples)] for i in range(size)])
                arrays = self._backend.run(inputs, self._outputs)
                now = time.perf_counter()
                compute_s += now - begin
                done += size
                if labels is not None:
                    labelled += 1
                    correct += self._processing.answer(arrays) == labels[index]
                if now >= report_at:
                    tally = Tally(done, labelled, int(correct), compute_s)
                    self._connection.sendall(RunProgress(run.run, tally).encode())
                    report_at = now + PROGRESS_INTERVAL
        except (AgentDisconnected, ConnectionError):
            raise
        except Interrupted:
            pass  # what is done is done
        except Exception as error:  # noqa: BLE001 - a model may fail in any way; the host goes on
            return _failed(run.run, Tally(done, labelled, int(correct), compute_s), error)
        outcome = Outcome.COMPLETED if done == run.count else Outcome.STOPPED
        return RunEnded(run.run, outcome, Tally(done, labelled, int(correct), compute_s))


def _failed(run: int, tally: Tally, error: Exception) -> RunEnded:
    match error:
        case InvalidInput():
            fault, detail = Fault.BAD_INPUT, str(error)
        case EngineUnusable() | SynergaiError():
            fault, detail = Fault.ENGINE_BROKEN, str(error)
        case _:
            _log.error("run %d failed", run, exc_info=error)
            fault, detail = (
                Fault.ENGINE_BROKEN,
                "the engine failed; its worker's log has the detail",
            )
    return RunEnded(run, Outcome.FAILED, tally, fault=fault, detail=detail)
