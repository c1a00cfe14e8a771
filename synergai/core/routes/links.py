"""Links between hosts: what a tensor takes from one to another."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

from synergai.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Mapping

GATEWAY: Final = "gateway"
"""Name of the gateway among the hosts. No worker may have it."""


class Hop(NamedTuple):
    """The way of one tensor from a host to another.

    Attributes:
        seconds: until it has arrived.
        interval_s: until the next one can follow.
    """

    seconds: float
    interval_s: float


class Link(NamedTuple):
    """What a host can send to another."""

    bytes_per_s: float
    latency_s: float = 0.0

    def hop(self, size_bytes: float) -> Hop:
        """Return the way of a tensor over this link."""
        busy_s = size_bytes / self.bytes_per_s
        return Hop(self.latency_s + busy_s, busy_s)


class Links:
    """Links by ordered pair of hosts.

    A pair without a link of its own goes through the gateway, which receives a tensor before it
    sends it. A pair with the gateway that is not named has the link `default`.

    Raises:
        InvalidInput: a bandwidth or a latency is impossible.
    """

    def __init__(self, links: Mapping[tuple[str, str], Link], default: Link) -> None:
        for (source, target), link in [*links.items(), (("default", "default"), default)]:
            if not link.bytes_per_s > 0:
                raise InvalidInput(
                    f"the link from {source} to {target} has a bandwidth of {link.bytes_per_s:g} "
                    "bytes/s; it must be above 0"
                )
            if not 0 <= link.latency_s < math.inf:
                raise InvalidInput(
                    f"the link from {source} to {target} has a latency of {link.latency_s:g} s; "
                    "it must be at least 0"
                )
        self._links = dict(links)
        self._default = default

    def way(self, source: str, target: str) -> dict[tuple[str, str], Link]:
        """Return the links that a tensor passes, by pair of hosts; none within a host."""
        pair = (source, target)
        if source == target:
            return {}
        if pair in self._links or GATEWAY in pair:
            return {pair: self._links.get(pair, self._default)}
        return self.way(source, GATEWAY) | self.way(GATEWAY, target)

    def slowed(self, factors: Mapping[tuple[str, str], float]) -> Links:
        """Return the links while all on the way between some hosts take so many times as long."""
        slower = dict(self._links)
        for pair, factor in factors.items():
            for each, link in self.way(*pair).items():
                slower[each] = link._replace(bytes_per_s=link.bytes_per_s / factor)
        return Links(slower, self._default)

    def hop(self, source: str, target: str, size_bytes: float) -> Hop:
        """Return the way of a tensor; it takes no time within a host."""
        hops = [link.hop(size_bytes) for link in self.way(source, target).values()]
        return Hop(
            sum(each.seconds for each in hops), max((each.interval_s for each in hops), default=0.0)
        )
