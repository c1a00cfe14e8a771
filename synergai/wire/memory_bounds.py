"""Bounds on the memory of messages: responses that are unread, requests that are incomplete.

A server keeps a response until its client has read it, so clients that send requests and read
nothing fill the memory. Every stream, call or connection that sends responses counts them here.
Near the limit, streams that hold more than an equal share of it start no further requests; beyond
it, the client that has read nothing for longest is disconnected.

The size of a response is unknown before it arrives. A stream therefore also counts what its
requests in flight are expected to return, from the sizes of the engine's recent responses. This
only ever holds back the stream itself.
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
_FORGET: Final = 16
"""The expected size approaches that of smaller responses by this fraction with each of them."""

_log = logging.getLogger(__name__)


class UnreadResponses:
    """The unread responses of all clients."""

    def __init__(self, max_bytes: int = DEFAULT_MAX_UNREAD_BYTES) -> None:
        self.max_bytes = max_bytes
        self.bytes = 0
        self._expected = 0
        self._holding: set[UnreadOfClient] = set()
        self._sizes: dict[str, int] = {}
        self._waiting: set[asyncio.Future[None]] = set()

    def open(self, disconnect: Callable[[Overloaded], object]) -> UnreadOfClient:
        """Return the count of one stream, call or connection.

        `disconnect` is called once if the client reads too slowly, after which nothing is counted.
        """
        return UnreadOfClient(self, disconnect)

    def expected_bytes(self, engine: str) -> int:
        """Return the expected size of an engine's response; 0 if unknown or small."""
        return self._sizes.get(engine, 0)

    def learn(self, engine: str, size: int) -> None:
        known = self._sizes.get(engine, 0)
        if size >= known:
            if size >= COUNTED_BYTES:
                self._sizes[engine] = size
        else:
            self._sizes[engine] = known - (known - size) // _FORGET

    def has_room_for(self, client: UnreadOfClient) -> bool:
        """Return whether a client with unread responses may have further requests started."""
        if 2 * (self.bytes + self._expected) <= self.max_bytes:
            return True
        share = self.max_bytes // (2 * max(1, len(self._holding)))
        return client.bytes + client.expected <= share

    async def wait_changed(self) -> None:
        """Wait until a client has read a response, or is gone."""
        changed = asyncio.get_running_loop().create_future()
        self._waiting.add(changed)
        try:
            await changed
        finally:
            self._waiting.discard(changed)

    def count(self, client: UnreadOfClient, size: int, expected: int) -> None:
        """Add to a client's bytes, read and expected, or subtract if they are negative."""
        client.bytes += size
        client.expected += expected
        self.bytes += size
        self._expected += expected
        if client.bytes:
            self._holding.add(client)
        else:
            self._holding.discard(client)
        if size < 0:
            for changed in self._waiting:
                if not changed.done():
                    changed.set_result(None)
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
    """The unread responses of one stream, call or connection, and those expected."""

    __slots__ = ("_all", "_disconnect", "bytes", "expected", "read_at")

    def __init__(self, every: UnreadResponses, disconnect: Callable[[Overloaded], object]) -> None:
        self._all = every
        self._disconnect: Callable[[Overloaded], object] | None = disconnect
        self.bytes = self.expected = 0
        self.read_at = asyncio.get_running_loop().time()

    @property
    def has_room(self) -> bool:
        """Whether further requests may be started; if not, `wait_for_room`."""
        return not self.bytes or self._all.has_room_for(self)

    async def wait_for_room(self) -> None:
        """Wait until further requests may be started."""
        while not self.has_room:
            await self._all.wait_changed()

    def expect(self, engine: str) -> int:
        """Count the expected response of a request that starts; return its size for `received`."""
        expected = self._all.expected_bytes(engine)
        if expected and self._disconnect is not None:
            self._all.count(self, 0, expected)
        return expected

    def received(self, engine: str, expected: int, size: int) -> None:
        """Count the response to a request, in place of the expected one; `size` 0 if it failed."""
        if not expected and size < COUNTED_BYTES:
            return
        if size:
            self._all.learn(engine, size)
        if self._disconnect is not None:
            self._all.count(self, size if size >= COUNTED_BYTES else 0, -expected)

    def add(self, size: int) -> None:
        """Count a response of `size` bytes."""
        if size >= COUNTED_BYTES and self._disconnect is not None:
            self._all.count(self, size, 0)

    def remove(self, size: int) -> None:
        """Note that the client has read a response of `size` bytes."""
        if size >= COUNTED_BYTES and self._disconnect is not None:
            self.read_at = asyncio.get_running_loop().time()
            self._all.count(self, -size, 0)

    def close(self) -> None:
        """Stop counting: the client has read everything, or is gone. Idempotent."""
        if self._disconnect is not None:
            self._disconnect = None
            self._all.count(self, -self.bytes, -self.expected)

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
