"""Connection to an engine host, and the runs in flight there: who waits, and for which memory."""

from __future__ import annotations

import asyncio
from itertools import count
from typing import TYPE_CHECKING, Final, TypeAlias, cast

from msgspec import Struct
from msgspec.structs import replace

from synergai.domain import BatchTimes, Fault, Outcome
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
        """Return whether a run of `variant` is in flight."""
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
        """Keep the transport."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Decode and dispatch messages from the host."""
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
