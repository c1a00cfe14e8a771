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

    Begin: TypeAlias = Callable[[int], tuple[int, bool]]
    """Begins calls of a client, this many at most; returns how many, and whether it has more."""

_CALLS: Final = 8
"""Calls that begin in a turn."""
_CALLS_OF_CLIENT: Final = 2
"""Calls of a client that waits for its turn, before it is the next one's."""
_TURN_S: Final = 1e-3


class CallTurns:
    """Lets clients begin calls one after the other."""

    def __init__(self) -> None:
        self._left = _CALLS
        self._began_at = -math.inf
        self._waiting: dict[Begin, None] = {}
        self._next_turn: asyncio.Handle | None = None

    def serve(self, begin: Begin) -> None:
        """Let a client that has sent something begin calls, or wait for its turn."""
        if self._waiting:
            self._serve(begin, 0)
            return
        # Without a timer, which would wake an event loop that has a call at a time. The time of
        # uvloop stands still until the loop comes round.
        now = asyncio.get_running_loop().time()
        if now - self._began_at >= _TURN_S:
            self._left, self._began_at = _CALLS, now
        self._serve(begin, max(0, self._left))

    def leave(self, begin: Begin) -> None:
        """Forget a client."""
        self._waiting.pop(begin, None)

    def _serve(self, begin: Begin, calls: int) -> None:
        begun, has_more = begin(calls)
        self._left -= begun
        if has_more:
            self._waiting[begin] = None
        if self._waiting and self._next_turn is None:
            self._next_turn = asyncio.get_running_loop().call_soon(self._begin_turn)

    def _begin_turn(self) -> None:
        self._next_turn = None
        self._left, self._began_at = _CALLS, asyncio.get_running_loop().time()
        while self._waiting and self._left > 0:
            begin = next(iter(self._waiting))
            del self._waiting[begin]
            self._serve(begin, min(_CALLS_OF_CLIENT, self._left))
