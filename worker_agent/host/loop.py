"""Main loop of an engine host: receive runs, compute them in order, send the results.

The loop is blocking, and computes in one thread. Between two queries it polls the socket for stop
requests. Consecutive waiting queries that come with batch times are computed as a batch. Further
variants of the engine are loaded in a thread of their own, so that queries continue.
"""

from __future__ import annotations

import logging
import operator
import os
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from synergai.domain import BatchTimes, Fault, Outcome
from synergai.errors import (
    EngineUnusable,
    InvalidInput,
    MessageTooLarge,
    OutOfMemory,
    SynergaiError,
)
from synergai.models.definition import ADVICE
from synergai.runtime.resources import return_freed_memory
from worker_agent.backends import Interrupted
from worker_agent.host.batches import BatchBuilder, BatchCandidate, batch_key, split_rows
from worker_agent.host.inbox import AgentDisconnected, Inbox
from worker_agent.ipc import (
    INTERRUPT,
    Arena,
    LoadStarted,
    LoadVariant,
    RunEnded,
    RunProgress,
    RunQuery,
    RunSamples,
    Tally,
    UnloadVariant,
    VariantUnloaded,
)

if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence

    from worker_agent.backends import Array, Interruptible
    from worker_agent.host.inbox import Run
    from worker_agent.host.loading import LoadedModel, ModelLoader
    from worker_agent.host.query_codec import DecodedQuery


# While a query computes, the host's main thread is inside the runtime and does not read its socket.
# The agent writes the id of the run to interrupt to a separate pipe, which a second thread reads.


class InterruptListener:
    """Reads interrupts from a pipe and applies those that concern the computing runs."""

    def __init__(self, descriptor: int) -> None:
        self._backend: Interruptible | None = None
        # Held so that no other run begins between the check of the active runs and the interrupt.
        self._lock = threading.Lock()
        self._active: set[int] = set()
        self._interrupted = False
        threading.Thread(target=self._listen, args=(descriptor,), daemon=True).start()

    def begin_runs(self, backend: Interruptible, *run_ids: int) -> None:
        """Mark `run_ids` as computing, as one batch, on `backend`."""
        with self._lock:
            self._backend = backend
            self._active.update(run_ids)

    def end(self) -> None:
        """Mark the computing runs as ended; late interrupts of them are ignored."""
        with self._lock:
            self._active.clear()
            if self._interrupted and self._backend is not None:
                self._interrupted = False
                self._backend.resume()

    def interrupt(self, run_id: int) -> None:
        """Interrupt the backend once all runs of the computing batch have been interrupted."""
        with self._lock:
            if run_id not in self._active:
                return
            self._active.remove(run_id)
            if not self._active and self._backend is not None:
                self._interrupted = True
                self._backend.interrupt()

    def _listen(self, descriptor: int) -> None:
        with os.fdopen(descriptor, "rb") as pipe:
            while len(message := pipe.read(INTERRUPT.size)) == INTERRUPT.size:
                self.interrupt(*INTERRUPT.unpack(message))


PROGRESS_INTERVAL: Final = 0.05
SHORT_S: Final = 0.0005
"""Compute time below which the result of a query waits for that of the next one."""
HOLD_S: Final = 0.0002
"""Longest time for which it waits."""
FIRST_HOLD_S: Final = 0.00003
"""The same after a pause: the agent reports the first results while others are computed."""

_log = logging.getLogger(__name__)


class HostLoop:
    """Computes the runs of one engine, on the variant that each of them names."""

    def __init__(
        self,
        agent_socket: socket.socket,
        model: LoadedModel,
        variant: str,
        loader: ModelLoader,
        interrupts: InterruptListener,
        arena: Arena,
    ) -> None:
        self._socket = agent_socket
        # Held while something is sent, so that messages of two threads do not mix.
        self._sending = threading.Lock()
        self._inbox = Inbox(agent_socket)
        self._models = {variant: model}
        self._loader = loader
        # Queries decoded as candidates for a batch and not yet computed, by run id.
        self._decoded: dict[int, DecodedQuery] = {}
        self._interrupts = interrupts
        self._arena = arena

    def serve(self) -> None:
        """Compute runs until the agent closes the socket."""
        results: list[bytes] = []
        held_since, hold_s = 0.0, FIRST_HOLD_S
        try:
            while True:
                run = self._inbox.take_run()
                if run is None:
                    self._send(b"".join(results))
                    results.clear()
                    held_since = 0.0
                    self._follow_orders()
                    continue
                if run.variant:
                    self._arena.computing = run.run_id
                begin = time.perf_counter()
                if isinstance(run, RunQuery) and run.batch_times is not None:
                    ended = self._run_batch(run, run.batch_times)
                else:
                    ended = [self._run(run)]
                results += [each.encode() for each in ended]
                self._inbox.discard_stops(ended[-1].run_id)
                end = time.perf_counter()
                if not held_since:
                    held_since = end
                # Waking up the agent costs it more than computing a short query costs the host.
                next_is_short = self._inbox.next_is_query() and end - begin < SHORT_S
                if not next_is_short or end - held_since > hold_s:
                    self._send(b"".join(results))
                    results.clear()
                    held_since, hold_s = 0.0, HOLD_S if next_is_short else FIRST_HOLD_S
        except (AgentDisconnected, ConnectionError):
            return

    def _run(self, run: Run) -> RunEnded:
        if self._inbox.is_stopped(run.run_id):
            self._decoded.pop(run.run_id, None)
            return RunEnded(run.run_id, Outcome.STOPPED)
        model = self._models[run.variant]
        if model.interruptible is None:
            return self._compute(run, model)
        self._interrupts.begin_runs(model.interruptible, run.run_id)
        try:
            return self._compute(run, model)
        finally:
            self._interrupts.end()

    def _follow_orders(self) -> None:
        """Unload variants, and begin to load others, as ordered."""
        while (order := self._inbox.next_order()) is not None:
            if isinstance(order, UnloadVariant):
                del self._models[order.variant]
                return_freed_memory()
                self._send(VariantUnloaded(order.variant).encode())
                continue
            # The agent orders one load at a time. A load that hangs does not hold up the exit.
            threading.Thread(target=self._load, args=(order,), daemon=True).start()

    def _load(self, order: LoadVariant) -> None:
        """Load a variant and report it; queries name it only after that."""
        with suppress(ConnectionError):  # the main loop finds out as well
            self._send(LoadStarted(order.variant).encode())
            model, report = self._loader.load(order.variant, time.monotonic())
            if model is not None:
                self._models[order.variant] = model
            self._send(report.encode())

    def _send(self, data: bytes) -> None:
        with self._sending:
            self._socket.sendall(data)

    def _compute(self, run: Run, model: LoadedModel) -> RunEnded:
        if isinstance(run, RunQuery):
            return self._run_query(run, model)
        return self._run_range(run, model)

    def _run_query(self, query: RunQuery, model: LoadedModel) -> RunEnded:
        try:
            decoded = self._decoded.pop(query.run_id, None) or model.codec.decode(query)
            begin = _begin_queries(model)
            arrays = _run_model(model, decoded.inputs, decoded.outputs)
            return model.codec.encode(decoded, arrays, time.perf_counter() - begin)
        except Interrupted:
            return RunEnded(query.run_id, Outcome.STOPPED)
        except Exception as error:  # noqa: BLE001 - a model may fail in any way; keep serving
            return _failed(query.run_id, Tally(), error)

    # --- batches ----------------------------------------------------------------------------

    def _run_batch(self, first: RunQuery, batch_times: BatchTimes) -> list[RunEnded]:
        """Compute `first` in a batch with following queries.

        If memory is short, the halves of the batch are computed. If it fails otherwise, each query
        is computed alone. If that succeeds, the next batches are smaller.
        """
        model = self._models[first.variant]
        return self._run_together(self._take_batch(first, model, batch_times), model)

    def _run_together(self, queries: Sequence[RunQuery], model: LoadedModel) -> list[RunEnded]:
        if len(queries) == 1:
            only = self._run(queries[0])
            if only.outcome is Outcome.COMPLETED:
                model.batch_limit.succeeded()
            return [only]
        batch = [self._decoded[query.run_id] for query in queries]
        try:
            outputs, compute_s = self._compute_batch(batch, model)
        except Interrupted:  # all of its queries were stopped
            return [self._run(query) for query in queries]
        except InvalidInput:
            return [self._run(query) for query in queries]
        except OutOfMemory as error:
            _note_failed_batch(model, sum(each.rows for each in batch), error)
            middle = len(queries) // 2
            halves = queries[:middle], queries[middle:]
            return [ended for half in halves for ended in self._run_together(half, model)]
        except Exception as error:  # noqa: BLE001 - a model may fail in any way
            ended = [self._run(query) for query in queries]
            if all(each.outcome is Outcome.COMPLETED for each in ended):
                _note_failed_batch(model, sum(each.rows for each in batch), error)
            return ended
        model.batch_limit.succeeded()
        return [
            _encode(model, self._decoded.pop(each.query.run_id), arrays, compute_s, len(batch))
            for each, arrays in zip(batch, outputs, strict=True)
        ]

    def _take_batch(
        self, first: RunQuery, model: LoadedModel, batch_times: BatchTimes
    ) -> list[RunQuery]:
        """Take the queries that are best computed together with `first`; return all of them."""
        limit = model.batch_limit.rows
        if limit == 1 or self._inbox.is_stopped(first.run_id):
            return [first]
        builder = BatchBuilder(batch_times, limit, time.monotonic())
        for query in (first, *self._inbox.peek_queries(limit - 1)):
            if query.variant != first.variant:
                break
            candidate = self._candidate(query, model)
            if candidate is None or not builder.add(candidate) or builder.is_full:
                break
        return [first, *self._inbox.take_queries(builder.size - 1)]

    def _candidate(self, query: RunQuery, model: LoadedModel) -> BatchCandidate | None:
        """Decode `query` as a candidate for a batch; return None if it must be run alone."""
        if query.batch_times is None:
            return None
        try:
            decoded = self._decoded.get(query.run_id) or model.codec.decode(query)
        except Exception:  # noqa: BLE001 - of any kind, and reported when the query is run
            return None
        self._decoded[query.run_id] = decoded
        key = batch_key(decoded.inputs, decoded.outputs)
        return None if key is None else BatchCandidate(*key, query.due)

    def _compute_batch(
        self, batch: Sequence[DecodedQuery], model: LoadedModel
    ) -> tuple[list[list[Array]], float]:
        """Return the outputs of each query, and the seconds that the batch took."""
        interruptible = model.interruptible
        if interruptible is not None:
            self._interrupts.begin_runs(interruptible, *(each.query.run_id for each in batch))
        try:
            begin = _begin_queries(model)
            inputs = model.batch_memory.join([each.inputs for each in batch])
            arrays = model.backend.run(inputs, batch[0].outputs)
            compute_s = time.perf_counter() - begin
        finally:
            if interruptible is not None:
                self._interrupts.end()
        return split_rows(arrays, [each.rows for each in batch]), compute_s

    # --- ranges of samples ------------------------------------------------------------------

    def _run_range(self, run: RunSamples, model: LoadedModel) -> RunEnded:
        samples, labels = model.samples.inputs, model.samples.labels
        if not samples:
            detail = f"the engine is unverified and has no samples; {ADVICE}"
            return RunEnded(run.run_id, Outcome.FAILED, fault=Fault.BAD_INPUT, detail=detail)
        tally = Tally(batch=run.batch)
        report_at = time.perf_counter() + PROGRESS_INTERVAL
        try:
            if model.job_aware is not None:
                model.job_aware.begin_job(run.job)
            while tally.done < run.count and not self._inbox.is_stopped(run.run_id):
                self._follow_orders()
                size = min(run.batch, model.batch_limit.rows, run.count - tally.done)
                first = run.first + tally.done
                chosen = [position % len(samples) for position in range(first, first + size)]
                begin = time.perf_counter()
                answers = _run_samples(model, [samples[position] for position in chosen])
                now = time.perf_counter()
                labelled, correct = tally.labelled, tally.correct
                if labels is not None:
                    predicted = map(model.processing.predicted_class, answers)
                    right = [labels[position] for position in chosen]
                    labelled += size
                    correct += int(sum(map(operator.eq, predicted, right)))
                compute_s = tally.compute_s + now - begin
                tally = Tally(tally.done + size, labelled, correct, compute_s, run.batch)
                if now >= report_at:
                    self._send(RunProgress(run.run_id, tally).encode())
                    report_at = now + PROGRESS_INTERVAL
        except (AgentDisconnected, ConnectionError):
            raise
        except Interrupted:
            pass  # completed queries count
        except Exception as error:  # noqa: BLE001 - a model may fail in any way; keep serving
            return _failed(run.run_id, tally, error)
        outcome = Outcome.COMPLETED if tally.done == run.count else Outcome.STOPPED
        return RunEnded(run.run_id, outcome, tally)


def _run_samples(model: LoadedModel, samples: Sequence[dict[str, Array]]) -> list[list[Array]]:
    """Compute samples in a batch, or each alone if the batch fails; return the outputs of each."""
    if len(samples) > 1:
        try:
            inputs = model.batch_memory.join(samples)
            rows = [len(next(iter(each.values()))) for each in samples]
            answers = split_rows(model.backend.run(inputs, model.outputs), rows)
            model.batch_limit.succeeded()
        except Interrupted:
            raise
        except OutOfMemory as error:
            _note_failed_batch(model, len(samples), error)
            middle = len(samples) // 2
            return _run_samples(model, samples[:middle]) + _run_samples(model, samples[middle:])
        except Exception as error:  # noqa: BLE001 - as of a batch of queries
            _note_failed_batch(model, len(samples), error)
        else:
            return answers
    else:
        model.batch_limit.succeeded()
    return [_run_model(model, each, model.outputs) for each in samples]


def _note_failed_batch(model: LoadedModel, rows: int, error: Exception) -> None:
    model.batch_limit.failed(rows)
    _log.warning(
        "a batch of %d rows failed; the next have at most %d: %s",
        *(rows, model.batch_limit.rows, error),
    )


def _run_model(model: LoadedModel, inputs: dict[str, Array], outputs: Sequence[str]) -> list[Array]:
    """Compute one query; if it fails, find out whether it is to blame, or the engine.

    Runtimes report many unsuitable inputs like a broken model. An engine that still computes
    its first sample is not broken, nor is one that no input is known for.
    """
    try:
        return model.backend.run(inputs, outputs)
    except EngineUnusable as error:
        if model.engine.unverified or _computes_first_sample(model):
            raise InvalidInput(str(error)) from None
        raise


def _computes_first_sample(model: LoadedModel) -> bool:
    try:
        model.backend.run(model.samples.inputs[0], model.outputs)
    except SynergaiError:
        return False
    return True


def _begin_queries(model: LoadedModel) -> float:
    """Tell the backend that single queries follow; return the current time."""
    if model.job_aware is not None:
        model.job_aware.begin_job("")
    return time.perf_counter()


def _encode(
    model: LoadedModel,
    decoded: DecodedQuery,
    arrays: Sequence[Array],
    compute_s: float,
    batch: int,
) -> RunEnded:
    try:
        return model.codec.encode(decoded, arrays, compute_s, batch)
    except Exception as error:  # noqa: BLE001 - a model may fail in any way; keep serving
        return _failed(decoded.query.run_id, Tally(), error)


def _failed(run_id: int, tally: Tally, error: Exception) -> RunEnded:
    match error:
        case InvalidInput():
            fault, detail = Fault.BAD_INPUT, str(error)
        case OutOfMemory():
            fault, detail = Fault.OUT_OF_MEMORY, str(error)
        case MessageTooLarge():
            fault, detail = Fault.RESPONSE_TOO_LARGE, str(error)
        case EngineUnusable() | SynergaiError():
            fault, detail = Fault.ENGINE_BROKEN, str(error)
        case _:
            _log.error("run %d failed", run_id, exc_info=error)
            fault, detail = Fault.ENGINE_BROKEN, "the engine failed; see the worker's log"
    return RunEnded(run_id, Outcome.FAILED, tally, fault=fault, detail=detail)
