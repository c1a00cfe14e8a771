"""Way of a run through an engine host: its memory, the connection, and how it ends."""

from __future__ import annotations

import asyncio
import math
from abc import ABC, abstractmethod
from itertools import count
from typing import TYPE_CHECKING, Final, TypeAlias, cast

from msgspec import Struct
from msgspec.structs import replace

from synergai.domain import BatchTimes, Fault, Outcome, Session
from synergai.errors import InvalidInput
from worker_agent.ipc import (
    INLINE_BYTES,
    SLOT_BYTES,
    Arena,
    ArenaRef,
    Decoder,
    Message,
    Order,
    RunEnded,
    RunProgress,
    RunQuery,
    RunSamples,
    StopRun,
    Tally,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sized

    from synergai.wire.request_codec import Buffer

    OnEnded: TypeAlias = Callable[[RunEnded], None]
    """Called exactly once per run; `RunEnded.response` is bytes, never an `ArenaRef`."""
    OnProgress: TypeAlias = Callable[[Tally], None]

WINDOW: Final = 32
"""Runs in flight in a host, so that it never waits for the agent; more for a batch ahead."""

new_id: Final = count(1).__next__
"""Returns the id of the next run, unique among all hosts."""


class HostRun(Struct, frozen=True):
    """A run in flight; its request is in a slot of the arena, or was sent through the socket."""

    on_ended: OnEnded
    on_progress: OnProgress | None = None
    slot: int | None = None
    variant: str = ""


class Runs:
    """The runs in flight."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self.by_id: dict[int, HostRun] = {}
        self._largest_response = 0

    def needs(self, variant: str) -> bool:
        return any(run.variant == variant for run in self.by_id.values())

    def has_room(self, size: int) -> bool:
        """Return whether a query of `size` bytes can be added now."""
        runs = len(self.by_id)
        is_within_window = runs < WINDOW or runs < self._arena.slots
        return is_within_window and (not self._is_large(size) or self._arena.has_room)

    def add_query(
        self,
        request: Buffer,
        on_ended: OnEnded,
        batch_times: BatchTimes | None,
        due: float,
        variant: str,
    ) -> RunQuery:
        """Add a query, and return the message for the host; `has_room` must be true."""
        run_id = new_id()
        if self._is_large(len(request)):
            ref = self._arena.put(request)
            self.by_id[run_id] = HostRun(on_ended, None, ref.slot, variant)
            return RunQuery(run_id, ref, batch_times, due, variant)
        self.by_id[run_id] = HostRun(on_ended, None, None, variant)
        return RunQuery(run_id, request, batch_times, due, variant)

    def add_samples(
        self,
        first: int,
        count: int,
        on_progress: OnProgress,
        on_ended: OnEnded,
        job: str,
        batch: int,
        variant: str,
    ) -> RunSamples:
        """Add a range of the sample set, and return the message for the host."""
        run_id = new_id()
        self.by_id[run_id] = HostRun(on_ended, on_progress, None, variant)
        return RunSamples(run_id, first, count, job, batch, variant)

    def settle(self, run: HostRun, ended: RunEnded) -> RunEnded:
        """Free the memory of a run, and return its result with the response as bytes."""
        if isinstance(ended.response, ArenaRef):
            try:
                ended = replace(ended, response=self._arena.read(ended.response))
            except ValueError as error:
                raise InvalidInput(str(error)) from error
        if run.slot is not None:
            self._arena.release(run.slot)
        if len(ended.response) > self._largest_response:
            self._largest_response = len(ended.response)
        return ended

    def end_all(self, reason: str, crashed: int | None) -> None:
        """End all runs, because the host has exited; the run `crashed`, if any, has crashed it."""
        runs = self.by_id.copy()
        self.by_id.clear()
        for run_id, run in runs.items():
            fault = Fault.CRASHED if run_id == crashed else Fault.HOST_DIED
            run.on_ended(host_died(run_id, reason, fault))

    def _is_large(self, size: int) -> bool:
        """Return whether the request, or judging by earlier ones its response, needs the arena."""
        is_large = size > INLINE_BYTES or self._largest_response > INLINE_BYTES
        return is_large and size <= SLOT_BYTES


def host_died(run_id: int, reason: str, fault: Fault = Fault.HOST_DIED) -> RunEnded:
    """Return the result of a run whose host has exited."""
    return RunEnded(run_id, Outcome.FAILED, fault=fault, detail=reason)


QUICK_S: Final = 0.0005
"""Below this compute time, waking the processes dominates the cost of a query."""


class HostConnection(asyncio.Protocol):
    """The agent's end of the socket; `lost` is set once either side has disconnected.

    `is_lost` says the same, for the path of every query.
    """

    def __init__(
        self, runs: Sized, receive: Callable[[Message], None], on_invalid: Callable[[], None]
    ) -> None:
        self._runs = runs
        self._receive = receive
        self._on_invalid = on_invalid
        self._loop = asyncio.get_running_loop()
        self._decoder = Decoder()
        self._outgoing: list[bytes] = []
        self._runs_at_host = 0
        self._is_quick = False
        self._is_urgent = False
        self.heard_at = self._loop.time()
        self.lost = asyncio.Event()
        self.is_lost = False
        self._transport: asyncio.Transport

    def send(self, message: RunQuery | RunSamples | StopRun | Order) -> None:
        """Buffer a message until the end of this turn of the loop, to save system calls.

        Only queries are held back further: a run may last until it is stopped.
        """
        waits = isinstance(message, RunQuery)
        self._is_urgent |= not waits
        if not (self._outgoing and waits):
            self._loop.call_soon(self._flush)
        self._outgoing.append(message.encode())

    def answered(self, *, quick: bool) -> None:
        """Note that the host has ended a run, and whether that was a quick query."""
        self._runs_at_host -= 1
        self._is_quick = quick

    def abort(self) -> None:
        """Disconnect at once; `lost` is set when this returns."""
        self._set_lost()
        self._transport.abort()

    # --- asyncio.Protocol -------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self.heard_at = self._loop.time()
        try:
            for message in self._decoder.feed(data):
                self._receive(message)
        except InvalidInput:
            self._on_invalid()
        if self._outgoing:
            self._flush()

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002 - part of asyncio.Protocol
        """Handle the disconnection of the host, whichever side caused it."""
        self._set_lost()

    # --- internals --------------------------------------------------------------------------

    def _set_lost(self) -> None:
        self.is_lost = True
        self.lost.set()

    def _flush(self) -> None:
        """Send the buffered messages, unless the host is about to answer quick queries.

        While quick queries are at the host, others are held back until it answers, so that one
        wake-up serves all of them; a wake-up costs more than a quick query loses by waiting.
        """
        holds_back = self._is_quick and self._runs_at_host and not self._is_urgent
        if not self._outgoing or holds_back:
            return
        frames, self._outgoing = self._outgoing, []
        self._is_urgent = False
        self._runs_at_host = len(self._runs)
        if not self.is_lost:
            self._transport.write(b"".join(frames))


_BROKEN: Final = Fault.ENGINE_BROKEN  # for the path of every query


class RunningHost(ABC):
    """An engine host as runs pass it, which feeds it and ends them; `HostProcess` has the rest.

    Runs are fed without waiting and end by callback, in the order in which they were fed.

    Attributes:
        has_room: returns whether a query of some bytes can be fed now.
    """

    def __init__(
        self,
        session: Session,
        arena: Arena,
        hang_timeout_s: float,
        on_unusable: Callable[[str, str], None],
    ) -> None:
        self.session = session
        self._hang_timeout_s = hang_timeout_s
        self._on_unusable = on_unusable
        self._loop = asyncio.get_running_loop()
        self._runs = Runs(arena)
        self.has_room = self._runs.has_room
        self._connection = HostConnection(self._runs.by_id, self._receive, self._reject)
        self._watchdog: asyncio.TimerHandle | None = None
        self._retired: asyncio.Future[None] | None = None

    @property
    def is_closed(self) -> bool:
        """Whether the host has exited, is closing or is retired; it accepts no runs."""
        return self._connection.is_lost or self._retired is not None

    def run_query(
        self,
        request: Buffer,
        on_ended: OnEnded,
        batch_times: BatchTimes | None = None,
        due: float = math.inf,
        variant: str = "",
    ) -> int:
        """Feed one query, for which there must be room; return its id for `stop_run`.

        It may share a batch if it has `batch_times`; `due` is then the instant on the monotonic
        clock by which the batch must be computed.
        """
        if self.is_closed:
            return self._refuse(on_ended)
        message = self._runs.add_query(request, on_ended, batch_times, due, variant)
        self._feed(message)
        return message.run_id

    def run_samples(
        self,
        first: int,
        count: int,
        on_progress: OnProgress,
        on_ended: OnEnded,
        job: str = "",
        batch: int = 1,
        variant: str = "",
    ) -> int:
        """Feed the queries [first, first + count) of the sample set; see `run_query`."""
        if self.is_closed:
            return self._refuse(on_ended)
        message = self._runs.add_samples(first, count, on_progress, on_ended, job, batch, variant)
        self._feed(message)
        return message.run_id

    def retire(self) -> asyncio.Future[None]:
        """Accept no more runs; return a future that completes once no run is in flight."""
        self._retired = self._loop.create_future()
        if not self._runs.by_id:
            self._complete_retirement()
        return self._retired

    def _receive(self, message: Message) -> None:
        match message:
            case RunEnded(run_id) if run_id in self._runs.by_id:
                self._end_run(message)
            case RunProgress(run_id, tally) if run := self._runs.by_id.get(run_id):
                if run.on_progress is not None:
                    run.on_progress(tally)
            case _:
                self._receive_other(message)

    def _end_run(self, ended: RunEnded) -> None:
        run = self._runs.by_id[ended.run_id]
        ended = self._runs.settle(run, ended)  # if it is invalid, the run ends with the host
        del self._runs.by_id[ended.run_id]
        if ended.fault is _BROKEN and (
            run.variant or self.session.configuration.execution_provider
        ):
            ended = replace(ended, fault=Fault.CONFIGURATION_UNUSABLE)
            self._on_unusable(run.variant, ended.detail)
        is_quick = run.on_progress is None and ended.tally.compute_s < QUICK_S
        self._connection.answered(quick=is_quick)
        run.on_ended(ended)
        if self._retired is not None and not self._runs.by_id:
            self._complete_retirement()

    def _complete_retirement(self) -> None:
        if self._retired is not None and not self._retired.done():
            self._retired.set_result(None)

    def _feed(self, message: RunQuery | RunSamples) -> None:
        """Send a run that was just added."""
        if len(self._runs.by_id) == 1:
            self._connection.heard_at = self._loop.time()
            self._begin_watch()
        self._connection.send(message)

    def _refuse(self, on_ended: OnEnded) -> int:
        """End a run that comes after the host was closed."""
        run_id = new_id()
        ended = host_died(run_id, f"the engine host of {self.session.engine!r} has exited")
        self._loop.call_soon(on_ended, ended)
        return run_id

    def _begin_watch(self) -> None:
        if self._watchdog is None:
            self._watchdog = self._loop.call_later(self._hang_timeout_s, self._watch)

    @abstractmethod
    def _receive_other(self, message: Message) -> None:
        """Handle a message that is about no run in flight."""

    @abstractmethod
    def _reject(self) -> None:
        """End the host, which has sent a message that is not valid."""

    @abstractmethod
    def _watch(self) -> None:
        """Look whether the host owes answers and is silent for too long."""
