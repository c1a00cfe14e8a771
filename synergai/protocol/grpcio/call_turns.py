"""Turns in which the clients of a server begin calls.

Works around: gRPC for Python accepts all calls that arrive, and the event loop handles them
together, so a client with thousands of cheap calls delays all others. Here only a few
calls begin in a turn, which takes a pause or, if the event loop is busy with earlier ones, as
long as it needs to come round.

Remove it once a server shares its time between connections itself.
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
"""Calls that begin in a turn; gRPC handles fewer in a millisecond."""
_CALLS_OF_CLIENT: Final = 2
"""Calls of a client that waits for its turn, before it is the next one's."""
_TURN_S: Final = 1e-3


class CallTurns:
    """Lets clients begin calls one after the other.

    Args:
        pause_s: time before the next turn of clients that wait. None is needed if the calls of a
            turn have been handled once the event loop comes round.
    """

    def __init__(self, pause_s: float = _TURN_S) -> None:
        self._pause_s = pause_s
        self._left = _CALLS
        self._began_at = -math.inf
        self._waiting: dict[Begin, None] = {}
        self._timer: asyncio.TimerHandle | None = None

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
        self._serve(begin, self._left)

    def leave(self, begin: Begin) -> None:
        """Forget a client."""
        self._waiting.pop(begin, None)

    def _serve(self, begin: Begin, calls: int) -> None:
        begun, has_more = begin(calls)
        self._left -= begun
        if has_more:
            self._waiting[begin] = None
        if self._waiting and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._pause_s, self._begin_turn)

    def _begin_turn(self) -> None:
        self._timer = None
        self._left, self._began_at = _CALLS, asyncio.get_running_loop().time()
        while self._waiting and self._left:
            begin = next(iter(self._waiting))
            del self._waiting[begin]
            self._serve(begin, min(_CALLS_OF_CLIENT, self._left))
