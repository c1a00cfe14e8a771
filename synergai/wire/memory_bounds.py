"""Bounds on the memory of messages: responses that are unread, requests that are incomplete.

A server keeps a response until its client has read it, so clients that send requests and read
nothing fill the memory. Every stream, call or connection that sends responses counts them here.
Beyond the limit, the client that has read nothing for longest is disconnected.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from synergai.errors import Overloaded, SynergaiError
from synergai.wire.limits import DEFAULT_MAX_UNREAD_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

COUNTED_BYTES: Final = 4096
"""Smaller responses are not counted: the limits of streams and calls bound them well enough."""

_log = logging.getLogger(__name__)


class UnreadResponses:
    """The unread responses of all clients."""

    def __init__(self, max_bytes: int = DEFAULT_MAX_UNREAD_BYTES) -> None:
        self.max_bytes = max_bytes
        self.bytes = 0
        self._holding: set[UnreadOfClient] = set()

    def open(self, disconnect: Callable[[Overloaded], object]) -> UnreadOfClient:
        """Return the count of one stream, call or connection.

        `disconnect` is called once if the client reads too slowly, after which nothing is counted.
        """
        return UnreadOfClient(self, disconnect)

    def count(self, client: UnreadOfClient, size: int) -> None:
        """Add to a client's bytes, or subtract if the size is negative."""
        client.bytes += size
        self.bytes += size
        if client.bytes:
            self._holding.add(client)
        else:
            self._holding.discard(client)
        while self.bytes > self.max_bytes and self._holding:
            self._disconnect_slowest()

    def _disconnect_slowest(self) -> None:
        """Disconnect the client that has read nothing for longest, of those above the mean."""
        mean = self.bytes / len(self._holding)
        above = [client for client in self._holding if client.bytes >= mean]
        slowest = min(above, key=lambda client: client.read_at)
        error = Overloaded(
            f"{slowest.bytes:,} bytes of responses were not read, of {self.bytes:,} in all: read "
            "responses as they arrive, or have fewer requests in flight"
        )
        _log.warning("a client reads too slowly and is disconnected: %s", error)
        slowest.disconnect(error)


class UnreadOfClient:
    """The unread responses of one stream, call or connection."""

    __slots__ = ("_all", "_disconnect", "bytes", "read_at")

    def __init__(self, every: UnreadResponses, disconnect: Callable[[Overloaded], object]) -> None:
        self._all = every
        self._disconnect: Callable[[Overloaded], object] | None = disconnect
        self.bytes = 0
        self.read_at = asyncio.get_running_loop().time()

    def add(self, size: int) -> None:
        """Count a response of `size` bytes."""
        if size >= COUNTED_BYTES and self._disconnect is not None:
            self._all.count(self, size)

    def remove(self, size: int) -> None:
        """Note that the client has read a response of `size` bytes."""
        if size >= COUNTED_BYTES and self._disconnect is not None:
            self.read_at = asyncio.get_running_loop().time()
            self._all.count(self, -size)

    def close(self) -> None:
        """Stop counting: the client has read everything, or is gone. Idempotent."""
        if self._disconnect is not None:
            self._disconnect = None
            self._all.count(self, -self.bytes)

    def disconnect(self, error: Overloaded) -> None:
        disconnect = self._disconnect
        self.close()
        if disconnect is not None:
            disconnect(error)


class _Incomplete:
    """The requests of a host that have not arrived in full."""

    def __init__(self) -> None:
        self.requests: dict[Callable[[SynergaiError], None], int] = {}
        self.bytes = 0


class IncompleteRequests:
    """Bounds the memory of requests that have not arrived in full.

    Beyond the limit, the host that has sent most of it loses the request that has been incomplete
    for longest, unless that is alone. So a client cannot end the requests of others.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._by_host: dict[str, _Incomplete] = {}

    def add(self, host: str, refuse: Callable[[SynergaiError], None], size: int) -> None:
        """Count bytes that have arrived of a request; `refuse` ends its call and removes it."""
        if (of_host := self._by_host.get(host)) is None:
            of_host = self._by_host[host] = _Incomplete()
        of_host.requests[refuse] = of_host.requests.get(refuse, 0) + size
        of_host.bytes += size
        self._bytes += size
        while self._bytes > self._max_bytes:
            most = max(self._by_host.values(), key=lambda each: each.bytes)
            oldest, held = next(iter(most.requests.items()))
            if held == self._bytes:
                break
            oldest(
                Overloaded(
                    f"incomplete requests take {self._max_bytes:,} bytes, the limit of all "
                    "clients, most of them from this address: send fewer at a time"
                )
            )

    def remove(self, host: str, refuse: Callable[[SynergaiError], None]) -> None:
        """Forget a request that has arrived, or whose call has ended."""
        of_host = self._by_host[host]
        size = of_host.requests.pop(refuse)
        of_host.bytes -= size
        self._bytes -= size
        if not of_host.requests:
            del self._by_host[host]
