"""The connection of a client, whose calls reach their handlers in this process."""

from __future__ import annotations

import asyncio
import math
import random
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from synergai.wire.native.flow import OWN_PING, FrameLimits, Sender
from synergai.wire.native.handled_calls import accept_call
from synergai.wire.native.http2 import ConnectionFault
from synergai.wire.native.session import NativeSession
from synergai.wire.server_call import SocketPeer

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    from synergai.wire.native.handled_calls import Handlers

    BeginCalls: TypeAlias = Callable[[int], tuple[int, bool]]
    """Begins calls of a client, this many at most; returns how many, and whether it has more."""

SILENT_S: Final = 10.0
"""Time within which a client shakes hands, and within which it sends the preface after that."""
UNREAD_S: Final = 60.0
"""Time within which a client reads something of what was sent, or is gone."""
_REFUSED_S: Final = 1.0
"""Interval at which connections that are refused are looked at: they stay open for one."""
_REFUSED_CHECKS: Final = 10
"""Intervals within which the calls of such a client are answered."""
_HALF_CLOSED_S: Final = 0.2
"""Interval of pings to a client that has closed its side, which fail if it has gone."""
_LEAVE_S: Final = 1.0
"""Time that a client gets to close after its last response. HAProxy drops the end of responses that
arrive together with the end of the connection."""
_AGE_SPREAD: Final = 0.1
"""Share by which the ages of connections differ, so that clients do not come back all at once."""


# A client with thousands of cheap calls would delay all others if all calls that have arrived began
# together. A few begin in a turn, which lasts until the event loop has come round, and so until
# they have been handled.

_CALLS: Final = 8
"""Calls that begin in a turn."""
_CALLS_OF_CLIENT: Final = 2
"""Calls of a client that waits for its turn, before it is the next one's."""
_OF_OTHERS: Final = 2
"""Calls in a turn of clients that waited before."""
_TURN_S: Final = 1e-3


class CallTurns:
    """Lets clients begin calls one after the other.

    Those that had none waiting come first, but a turn has room for the others, too.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._left = _CALLS
        self._began_at = -math.inf
        self._newcomers: dict[BeginCalls, None] = {}
        self._others: dict[BeginCalls, None] = {}
        self._next_turn: asyncio.Handle | None = None

    def serve(self, begin_calls: BeginCalls) -> None:
        """Let a client that has sent something begin calls, or wait for its turn."""
        if self._next_turn is not None:
            self._let_begin(begin_calls, 0, self._newcomers)
            return
        # Without a timer, which would wake an event loop that has a call at a time. The time of
        # uvloop stands still until the loop comes round.
        now = self._loop.time()
        if now - self._began_at >= _TURN_S:
            self._left, self._began_at = _CALLS, now
        self._let_begin(begin_calls, max(0, self._left), self._others)

    def leave(self, begin_calls: BeginCalls) -> None:
        """Forget a client."""
        self._newcomers.pop(begin_calls, None)
        self._others.pop(begin_calls, None)

    def _let_begin(
        self, begin_calls: BeginCalls, calls: int, waiting: dict[BeginCalls, None]
    ) -> None:
        begun, has_more = begin_calls(calls)
        self._left -= begun
        if has_more:
            if begin_calls not in self._others:
                waiting[begin_calls] = None
            self._plan_turn()

    def _plan_turn(self) -> None:
        if self._next_turn is None:
            self._next_turn = self._loop.call_soon(self._begin_turn)

    def _begin_turn(self) -> None:
        self._next_turn = None
        self._left, self._began_at = _CALLS, self._loop.time()
        while self._left > 0 and (self._newcomers or self._others):
            is_newcomer = self._newcomers and (self._left > _OF_OTHERS or not self._others)
            waiting = self._newcomers if is_newcomer else self._others
            begin_calls = next(iter(waiting))
            del waiting[begin_calls]
            self._let_begin(begin_calls, min(_CALLS_OF_CLIENT, self._left), self._others)
        if self._newcomers or self._others:
            self._plan_turn()


class ClientConnection(asyncio.BufferedProtocol):
    """The connection of a client.

    Attributes:
        opening: task that makes the connection.
        is_open: whether it was made.
    """

    opening: asyncio.Task[None]
    _transport: asyncio.Transport
    _peer: SocketPeer
    _session: NativeSession

    def __init__(
        self,
        handlers: Handlers,
        turns: CallTurns,
        on_refused: Callable[[str, ConnectionFault], None],
        on_lost: Callable[[ClientConnection], None],
    ) -> None:
        self._handlers = handlers
        self._turns = turns
        self._on_refused = on_refused
        self._on_lost = on_lost
        self._limits = FrameLimits()
        self._sender = Sender(self._respond)
        self.is_open = self._at_eof = self._refused = self._ended = False
        self._retiring = self._retired = self._full = False
        self._reading = True
        self._received = handlers.received
        self._unread = b""
        self._timer: asyncio.TimerHandle | None = None
        self._age_timer: asyncio.TimerHandle | None = None

    @property
    def is_behind(self) -> bool:
        """Whether the client has not read all that was sent."""
        return self.is_open and (
            not self._sender.writable or self._transport.get_write_buffer_size() > 0
        )

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # of a stream
        """Wait for the first bytes."""
        self._transport = transport
        self.is_open = True
        self._peer = SocketPeer(transport)
        # Without a reference to the connection, which would be garbage of the collector.
        accept = partial(accept_call, self._peer, self._handlers)
        self._session = NativeSession(self._sender, accept, self._limits)
        self._timer = self._handlers.loop.call_later(SILENT_S, self._abort_silent)
        max_s, _ = self._handlers.connection_age
        if max_s:
            spread = 1 + random.uniform(-_AGE_SPREAD, _AGE_SPREAD)
            self._age_timer = self._handlers.loop.call_later(spread * max_s, self._reach_age)

    def get_buffer(self, _size: int) -> memoryview:
        """Return memory for the next bytes of the client."""
        buffer = self._message_buffer() if self._session.to_come else None
        return self._received if buffer is None else buffer

    def buffer_updated(self, size: int) -> None:
        """Handle bytes of the client, calls taking turns."""
        if self._ended or self._refused:
            return
        # The same as in `get_buffer`. It is not kept, as its call may end before anything arrives.
        buffer = self._message_buffer() if self._session.to_come else None
        if buffer is None:
            self._unread += self._received[:size]
            self._turns.serve(self.begin_calls)
        else:
            self._session.receive_part(buffer[:size])

    def begin_calls(self, calls: int) -> tuple[int, bool]:
        """Handle, or end if the client has left, this many calls; return how many, and if more."""
        session = self._session
        if self._ended:
            # Thousands of calls that are cancelled together would delay those of other clients.
            return session.lose_calls(calls)
        if self._refused or self._full:
            return 0, False
        try:
            size = session.receive(self._unread, calls)
            self._unread = self._unread[size:]
        except ConnectionFault as fault:
            self._refuse(fault)
            return 0, False
        if session.held or not self._reading:
            self._read_if_wanted()
        if self._retiring:
            self._retire_further()
        return session.begun, session.held and not self._full

    def connection_lost(self, _error: Exception | None) -> None:
        """End the calls."""
        self._ended = True
        self._stop_timers()
        # That of TLS keeps its protocol: a cycle with a buffer of 256 KiB.
        self._transport.set_protocol(asyncio.BufferedProtocol())
        self._on_lost(self)
        self._turns.serve(self.begin_calls)

    def eof_received(self) -> bool:
        """Answer the calls that have arrived in full: the client may still read."""
        if self._ended or self._peer.is_encrypted:  # which has no end of one side in asyncio
            return False
        self._at_eof = True
        self._stop_timers()
        self._close_answered(_HALF_CLOSED_S, math.inf)
        return True

    def _close_answered(self, interval_s: float, checks: float) -> None:
        """Close the connection once its calls were answered, or after so many intervals."""
        if not (self._session.held or self._full):
            self._session.lose_incomplete()
        if checks and (self._session.is_busy or self._full):
            self._transport.write(OWN_PING)
            loop, again = self._handlers.loop, (interval_s, checks - 1)
            self._timer = loop.call_later(interval_s, self._close_answered, *again)
        elif self._refused:
            self.abort()
        else:
            self.end()

    def pause_writing(self) -> None:
        """Handle no more of what the client sends until it has read."""
        self._sender.writable = False
        self._full = True
        self._read_if_wanted()

    def resume_writing(self) -> None:
        """Send what waited, and handle what the client sends."""
        self._full = False
        self._read_if_wanted()
        self._turns.serve(self.begin_calls)
        # Not before the event loop has polled: a client on a slow link, for which data waits all
        # the time, would otherwise get no answers to its pings.
        loop = self._handlers.loop
        loop.call_soon(loop.call_soon, self._send_blocked)

    def close_idle(self, idle_since: float) -> None:
        """Ask the client to leave if it has had no calls since then; the next time, close."""
        since = self._session.idle_since if self.is_open else None
        if since is not None and since <= idle_since:
            if self._retiring:
                self.end()
            else:
                self.retire()

    def retire(self) -> None:
        """Ask the client to begin no further calls, and close the connection after its last one."""
        self._retiring = True
        if self.is_open and self._session.between_frames:
            self._retire_further()
        else:
            self.end()

    def end(self) -> None:
        """End the calls, and close the connection once the client has read what was sent."""
        if not self.is_open:
            self.opening.cancel()
            return
        if self._ended or self._transport.is_closing():
            return
        self._ended = True
        self._stop_timers()
        self._transport.write(self._session.last_frame())
        is_greeted = self._session.between_frames and not self._at_eof
        since = self._session.idle_since if is_greeted else None
        self._turns.serve(self.begin_calls)
        if since is not None and (left_s := since + _LEAVE_S - time.monotonic()) > 0:
            self._transport.resume_reading()  # to see that the client closes
            self._timer = self._handlers.loop.call_later(left_s, self._close)
        else:
            self._close()

    def _close(self) -> None:
        """Close the connection once the client has read what was sent."""
        if self._transport.can_write_eof() and not self._at_eof:
            # Closed while the client sends something, it would lose what it has not read yet.
            self._transport.resume_reading()
            with suppress(OSError):  # the client may have left
                self._transport.write_eof()
            self._timer = self._handlers.loop.call_later(UNREAD_S, self.abort)
        else:
            self._transport.close()

    def abort(self) -> None:
        """Close the connection at once."""
        if self.is_open:
            self._transport.abort()
        else:
            self.opening.cancel()

    def _abort_silent(self) -> None:
        if not self._session.between_frames:
            self.abort()

    def _message_buffer(self) -> memoryview | None:
        """Return memory of a message if the next bytes belong there."""
        return None if self._unread else self._session.message_buffer()

    def _send_blocked(self) -> None:
        if not self._full:
            self._sender.writable = True
            self._sender.send_blocked()

    def _respond(self, data: bytes) -> None:
        if not self._ended:
            self._limits.respond(len(data))
            self._transport.write(data)
            if self._retiring:
                self._retire_further()

    def _retire_further(self) -> None:
        if self._ended:
            return
        if not self._retired:
            self._retired = True
            self._transport.write(self._session.end_soon())
        elif self._session.ended:
            self.end()

    def _read_if_wanted(self) -> None:
        wanted = not (self._session.held or self._full or self._refused)
        if wanted != self._reading and not self._transport.is_closing():
            self._reading = wanted
            if wanted:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def _refuse(self, fault: ConnectionFault) -> None:
        """Read nothing more, and close the connection once its calls were answered."""
        self._refused = True
        self._on_refused(self._peer.address, fault)
        self._read_if_wanted()
        self._transport.write(self._session.last_frame(fault.code, str(fault)))
        self._stop_timers()
        call_later, checks = self._handlers.loop.call_later, _REFUSED_CHECKS
        self._timer = call_later(_REFUSED_S, self._close_answered, _REFUSED_S, checks)

    def _reach_age(self) -> None:
        self.retire()
        _, grace_s = self._handlers.connection_age
        if grace_s:
            self._age_timer = self._handlers.loop.call_later(grace_s, self.end)

    def _stop_timers(self) -> None:
        for timer in (self._timer, self._age_timer):
            if timer is not None:
                timer.cancel()
