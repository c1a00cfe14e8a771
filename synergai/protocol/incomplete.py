"""One limit on the bytes of requests that have not arrived in full."""

from __future__ import annotations

from typing import TYPE_CHECKING

from synergai.errors import Overloaded, SynergaiError

if TYPE_CHECKING:
    from collections.abc import Callable


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
