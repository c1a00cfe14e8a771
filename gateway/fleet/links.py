"""The links of a fleet, as far as they are known, and what is assumed of the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from synergai.domain import WorkerId

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from gateway.fleet.worker import ConnectedWorker
    from synergai.core.routes.links import Link, Links

_BYTES_PER_S: Final = 125e6
_LATENCY_S: Final = 0.0005
"""Assumed of links that nothing was sent over."""
_MUCH_FASTER: Final = 4.0
"""Factor by which one link is much faster than another."""


def known_links(workers: Sequence[ConnectedWorker]) -> dict[tuple[str, str], Link]:
    """Return the links that were measured, by pair of hosts."""
    from synergai.core.routes.links import GATEWAY, Link

    links: dict[tuple[str, str], Link] = {}
    names = {worker.id for worker in workers}
    for worker in workers:
        sent = worker.measure_link()
        latency_s = _LATENCY_S if sent is None else sent.round_trip_s / 2
        sent_per_s = 0.0 if sent is None else sent.bytes_per_s
        if sent_per_s:
            links[GATEWAY, worker.id] = Link(sent_per_s, latency_s)
        if received_per_s := worker.received_bytes_per_s or sent_per_s:
            links[worker.id, GATEWAY] = Link(received_per_s, latency_s)
        for holder, seen in worker.peer_links.items():
            if holder in names and seen.bytes_per_s:
                links[WorkerId(holder), worker.id] = Link(seen.bytes_per_s, seen.round_trip_s / 2)
    return links


def with_peers(known: Mapping[tuple[str, str], Link], peers: Collection[str]) -> Links:
    """Return the links of a fleet in which some workers can be dialled by the others.

    A link from one of these that nothing was sent over is assumed to be as slow as the slower one
    of the gateway's links to its ends, if the other one is much faster. If both are slow, the two
    workers may be at the same site.
    """
    # Imported on demand: most gateways have no stages.
    from synergai.core.routes.links import Link, Links

    default = Link(_BYTES_PER_S, _LATENCY_S)

    class WithPeers(Links):
        def way(self, source: str, target: str) -> dict[tuple[str, str], Link]:
            way = super().way(source, target)
            if source not in peers or len(way) < 2:
                return way
            slow, fast = sorted(way.values())
            apart = fast.bytes_per_s > _MUCH_FASTER * slow.bytes_per_s
            return {(source, target): slow if apart else default}

    return WithPeers(known, default)
