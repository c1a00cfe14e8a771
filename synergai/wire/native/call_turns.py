"""Turns in which the clients of a server begin calls.

A client with thousands of cheap calls would delay all others if all calls that have arrived began
together. A few begin in a turn, which lasts until the event loop has come round, and so until they
have been handled.
"""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

    BeginCalls: TypeAlias = Callable[[int], tuple[int, bool]]
    """Begins calls of a client, this many at most; returns how many, and whether it has more."""

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
