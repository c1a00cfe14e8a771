"""The audit log.

Changes are written one by one, refusals at most once a second for each peer and kind, so that a
flood of them cannot fill the disk.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final, TypeAlias

from msgspec.structs import replace

from gateway.audit.entry import to_line

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.audit.entry import Entry

    _Kind: TypeAlias = tuple[str, ...]

INTERVAL_S: Final = 1.0
"""Interval at which repeated refusals are written."""
MAX_KINDS: Final = 64
"""Kinds of refusals, by peer, that have lines of their own in an interval."""
OTHERS: Final = "others"
"""Peer and caller of the refusals beyond them."""


class _Burst:
    """Refusals of one kind since the last line about them."""

    __slots__ = ("at", "count", "entry")

    def __init__(self, entry: Entry) -> None:
        self.entry = entry
        self.at = 0.0
        self.count = 0


class AuditLog:
    """Record of changes and refusals; `append` writes a line, without blocking."""

    def __init__(
        self,
        append: Callable[[str], None],
        clock: Callable[[], float] = time.time,
        call_later: Callable[[float, Callable[[], None]], asyncio.TimerHandle] | None = None,
    ) -> None:
        self._append = append
        self._clock = clock
        self._call_later = call_later or asyncio.get_running_loop().call_later
        self._bursts: dict[_Kind, _Burst] = {}
        self._timer: asyncio.TimerHandle | None = None

    def record(self, entry: Entry) -> None:
        """Record a change, or a refusal."""
        now = self._clock()
        if not entry.refused:
            self._append(to_line(entry, now))
            return
        kind = _kind(entry)
        burst = self._bursts.get(kind)
        if burst is None and len(self._bursts) >= MAX_KINDS:
            entry = replace(entry, caller=OTHERS, peer=OTHERS, tenant="", object="")
            kind = (OTHERS, entry.result)
            burst = self._bursts.get(kind)
        if burst is None:
            self._bursts[kind] = _Burst(entry)
            self._append(to_line(entry, now))
            if self._timer is None:
                self._timer = self._call_later(INTERVAL_S, self.flush)
            return
        burst.entry = entry
        burst.at = now
        burst.count += 1

    def close(self) -> None:
        """Write the refusals that have only been counted."""
        self.flush()
        if self._timer is not None:
            self._timer.cancel()

    def flush(self) -> None:
        """Write the repeated refusals; forget the kinds that were not repeated."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        for kind, burst in list(self._bursts.items()):
            if not burst.count:
                del self._bursts[kind]
                continue
            self._append(to_line(burst.entry, burst.at, burst.count))
            burst.count = 0
        if self._bursts:
            self._timer = self._call_later(INTERVAL_S, self.flush)


def _kind(entry: Entry) -> _Kind:
    """Return what repeated refusals have in common; a peer may use many ports."""
    host = entry.peer.rpartition(":")[0]
    return host, entry.caller, entry.call, entry.result, entry.quota
