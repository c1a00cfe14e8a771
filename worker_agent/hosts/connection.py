"""Connection to an engine host: decodes its messages, and bundles those that are sent to it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, cast

from synergai.errors import InvalidInput
from worker_agent.ipc.frames import Decoder, RunQuery

if TYPE_CHECKING:
    from collections.abc import Callable, Sized

    from worker_agent.ipc.frames import Message, Order, RunSamples, StopRun

QUICK_S: Final = 0.0005
"""Below this compute time, waking the processes dominates the cost of a query."""


class Connection(asyncio.Protocol):
    """The agent's end of the socket; `lost` is set once either side has disconnected."""

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
        self.lost.set()
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
        self.lost.set()

    # --- internals --------------------------------------------------------------------------

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
        if not self.lost.is_set():
            self._transport.write(b"".join(frames))
