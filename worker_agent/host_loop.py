"""What an engine host does all its life: take runs in order, compute, answer.

One thread, blocking: while a query computes there is nothing else to do, and between two
queries a look at the socket shows whether the agent has called the run off.
"""

from __future__ import annotations

import logging
import select
import time
from collections import deque
from typing import TYPE_CHECKING, Final, TypeAlias

from synergai.domain import Fault, Outcome
from synergai.envelope import open_envelope
from synergai.errors import EngineUnusable, InvalidInput, SynergaiError
from synergai.tensors import check_request
from worker_agent.arena import INLINE_BYTES, SLOT_BYTES
from worker_agent.backends import Interrupted, JobAware
from worker_agent.frames import Decoder, Ended, InSlot, Progress, Query, Range, Stop, Tally
from worker_agent.queries import TIMINGS, read_inputs, write_response, write_timings

if TYPE_CHECKING:
    import socket

    from engines.samples import Samples
    from synergai.domain import Engine
    from worker_agent.arena import Arena
    from worker_agent.backends import Backend
    from worker_agent.interrupts import Interrupts
    from worker_agent.processing import Processing

    Run: TypeAlias = Query | Range

PROGRESS_INTERVAL: Final = 0.05
HOLD_S: Final = 0.0005
"""How long an answer may wait for those of the runs behind it, to be sent with them."""
_RECEIVE_BYTES: Final = 256 << 10

_log = logging.getLogger(__name__)


class AgentGone(Exception):
    """The agent closed the socket or died; there is nobody to work for."""


class Inbox:
    """The runs that the agent has asked for, and which of them it has called off."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._decoder = Decoder()
        self._runs: deque[Run] = deque()
        self._stopped: set[int] = set()
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)

    def take(self) -> Run:
        """The next run; waits for one.

        Raises:
            AgentGone: there will be none.
        """
        while not self._runs:
            self._receive()
        return self._runs.popleft()

    def has_query(self) -> bool:
        """The next run is a single query, as far as we have looked."""
        return bool(self._runs) and isinstance(self._runs[0], Query)

    def is_stopped(self, run: int) -> bool:
        """Whether the agent, as of now, has called `run` off.

        Raises:
            AgentGone: it has called off everything.
        """
        self._look()
        return run in self._stopped

    def forget(self, run: int) -> None:
        """The run is over, so nobody asks about it any more."""
        if self._stopped:
            # Runs rise and end in order: what is left of earlier ones came too late.
            self._stopped = {stopped for stopped in self._stopped if stopped > run}

    def _look(self) -> None:
        while self._poll.poll(0):
            self._receive()

    def _receive(self) -> None:
        try:
            data = self._connection.recv(_RECEIVE_BYTES)
        except ConnectionError as error:
            raise AgentGone from error
        if not data:
            raise AgentGone
        for message in self._decoder.feed(data):
            match message:
                case Query() | Range():
                    self._runs.append(message)
                case Stop(run):
                    self._stopped.add(run)
                case _:
                    raise InvalidInput(f"an engine host cannot receive {message}")


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
        interrupts: Interrupts | None = None,
    ) -> None:
        self._connection = connection
        self._inbox = Inbox(connection)
        self._arena = arena
        self._engine = engine
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
                answers.append(self._run(run).encode())
                self._inbox.forget(run.run)
                end = time.perf_counter()
                if len(answers) == 1:
                    held_since = end
                # Waking the agent costs it more than a short query costs us.
                next_is_short = self._inbox.has_query() and end - begin < HOLD_S
                if not next_is_short or end - held_since > HOLD_S:
                    self._connection.sendall(b"".join(answers))
                    answers.clear()
        except (AgentGone, ConnectionError):
            return

    def _run(self, run: Run) -> Ended:
        if self._inbox.is_stopped(run.run):
            return Ended(run.run, Outcome.STOPPED)
        if self._interrupts is None:
            return self._compute(run)
        self._interrupts.begin(run.run)
        try:
            return self._compute(run)
        finally:
            self._interrupts.end()

    def _compute(self, run: Run) -> Ended:
        return self._run_query(run) if isinstance(run, Query) else self._run_range(run)

    def _run_query(self, query: Query) -> Ended:
        try:
            return self._answer(query)
        except Interrupted:
            return Ended(query.run, Outcome.STOPPED)
        except Exception as error:  # noqa: BLE001 - a model may fail in any way; the host goes on
            return _failed(query.run, Tally(), error)

    def _answer(self, query: Query) -> Ended:
        if isinstance(query.request, InSlot):
            envelope = open_envelope(self._arena.view(query.request))
        else:
            envelope = open_envelope(query.request)
        header, processing = envelope.header, self._processing
        check_request(header, self._engine, envelope.raw)
        names = processing.to_compute(header)
        inputs = read_inputs(envelope)
        if self._job_aware is not None:
            self._job_aware.begin("")
        begin = time.perf_counter()
        inputs = processing.prepared(inputs)
        prepared = time.perf_counter()
        arrays = self._backend.run(inputs, names)
        computed = time.perf_counter()
        compute_s = computed - prepared
        outputs = processing.asked_for(header, dict(zip(names, arrays, strict=True)))
        parts = write_response(header, self._engine.version, outputs)
        if header.parameters and header.parameters[TIMINGS].bool_param:
            finished = time.perf_counter()
            parts.append(write_timings(prepared - begin, compute_s, finished - computed))
        size = sum(map(len, parts))
        response: bytes | InSlot
        if isinstance(query.request, InSlot) and INLINE_BYTES < size <= SLOT_BYTES:
            # The inputs have served, and the response may take their place.
            response = self._arena.write(query.request.slot, parts)
        else:
            response = b"".join(parts)
        return Ended(query.run, Outcome.COMPLETED, Tally(1, compute_s=compute_s), response)

    def _run_range(self, run: Range) -> Ended:
        samples, labels = self._samples.inputs, self._samples.labels
        labelled = correct = 0
        compute_s = 0.0
        done = 0
        report_at = time.perf_counter() + PROGRESS_INTERVAL
        try:
            if self._job_aware is not None:
                self._job_aware.begin(run.job)
            for query in range(run.first, run.first + run.count):
                if self._inbox.is_stopped(run.run):
                    break
                index = query % len(samples)
                begin = time.perf_counter()
                arrays = self._backend.run(samples[index], self._outputs)
                now = time.perf_counter()
                compute_s += now - begin
                done += 1
                if labels is not None:
                    labelled += 1
                    correct += self._processing.answer(arrays) == labels[index]
                if now >= report_at:
                    tally = Tally(done, labelled, int(correct), compute_s)
                    self._connection.sendall(Progress(run.run, tally).encode())
                    report_at = now + PROGRESS_INTERVAL
        except (AgentGone, ConnectionError):
            raise
        except Interrupted:
            pass  # what is done is done
        except Exception as error:  # noqa: BLE001 - a model may fail in any way; the host goes on
            return _failed(run.run, Tally(done, labelled, int(correct), compute_s), error)
        outcome = Outcome.COMPLETED if done == run.count else Outcome.STOPPED
        return Ended(run.run, outcome, Tally(done, labelled, int(correct), compute_s))


def _failed(run: int, tally: Tally, error: Exception) -> Ended:
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
    return Ended(run, Outcome.FAILED, tally, fault=fault, detail=detail)
