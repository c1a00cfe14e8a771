"""The audit log.

Changes are written one by one, refusals at most once a second for each peer and kind, so that a
flood of them cannot fill the disk.
"""

from __future__ import annotations

import asyncio
import json
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, TypeAlias

from msgspec import Struct
from msgspec.structs import force_setattr, replace

if TYPE_CHECKING:
    from collections.abc import Callable

    _Kind: TypeAlias = tuple[str, ...]

INTERVAL_S: Final = 1.0
"""Interval at which repeated refusals are written."""
MAX_KINDS: Final = 64
"""Kinds of refusals, by peer, that have lines of their own in an interval."""
OTHERS: Final = "others"
"""Peer and caller of the refusals beyond them."""
MAX_TEXT: Final = 256
"""Longest value in characters; clients choose some of them."""
_TEXTS: Final = ("caller", "tenant", "credential", "peer", "call", "object", "result", "reason")
"""Fields of a line, in its order."""


class Entry(Struct, frozen=True, kw_only=True):
    """One line of the log. Values never contain tensors, tokens or secrets, and are cut.

    Attributes:
        credential: how the caller authenticated: ``token``, ``jwt``, ``certificate``, ``secret``
            or ``none``.
        result: name of the gRPC status code.
        refused: whether it was refused for want of permission or quota.
    """

    caller: str
    tenant: str = ""
    credential: str = "none"
    peer: str
    call: str
    object: str = ""
    result: str = "OK"
    reason: str = ""
    quota: str = ""
    refused: bool = False

    def __post_init__(self) -> None:
        # Here rather than in the line: refusals are kept for a while, and a name may be as long
        # as a message.
        for name in _TEXTS:
            if len(text := getattr(self, name)) > MAX_TEXT:
                force_setattr(self, name, text[:MAX_TEXT])


def to_line(entry: Entry, unix_time: float, count: int = 1) -> str:
    """Return an entry as a line of JSON in ASCII, with its line break."""
    at = datetime.fromtimestamp(unix_time, UTC).isoformat(timespec="milliseconds")
    texts = {name: getattr(entry, name) for name in _TEXTS}
    content = {"time": at.replace("+00:00", "Z"), **texts, "count": count}
    return json.dumps(content, separators=(",", ":")) + "\n"


class _Burst:
    """Refusals of one kind since the last line about them."""

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
