"""Measures links that nothing was sent over, before a plan sends tensors over them.

The gateway sends zeros to a worker under a token that nothing waits for, or lets one worker
hold zeros that it or another worker pulls. An agent that does not know these orders ignores them.
"""

from __future__ import annotations

import asyncio
import secrets
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from gateway.fleet.links import known_links, with_peers
from gateway.fleet.worker import DropTensors, ProbeLink, SendTensors
from synergai.core.pipeline import HeldTensors
from synergai.core.routes.links import GATEWAY
from synergai.domain import WorkerId
from synergai.wire.limits import PROBE_BYTES
from synergai.wire.work_messages import RelayedTensors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from gateway.fleet.worker import ConnectedWorker, Order
    from synergai.core.routes.deployment import WantedEngine
    from synergai.core.routes.links import Link

LOOK_S: Final = 0.1
LOOKS: Final = 15
"""Looks whether a link is known by now, after which a plan no longer waits for it. It is made again
once the link is known."""
MOST_KNOWN: Final = 100_000
"""Links that are remembered, of workers that have left as well."""
AGAIN_S: Final = 60.0
"""Time until a link is probed again."""

_Pair = tuple[str, str]


class LinkProbes:
    """Measures links between idle workers and the gateway, each with 1 MiB a minute at most.

    Busy workers are left alone: their tensors measure their links.
    """

    def __init__(
        self, workers: Mapping[WorkerId, ConnectedWorker], clock: Callable[[], float]
    ) -> None:
        self._workers = workers
        self._clock = clock
        self._probed_at: dict[_Pair, float] = {}
        self._known: dict[_Pair, Link] = {}

    def known(self) -> Mapping[_Pair, Link]:
        """Return the links that were measured; a worker that returns is taken to have the same."""
        self._known |= known_links(list(self._workers.values()))
        while len(self._known) > MOST_KNOWN:
            del self._known[next(iter(self._known))]
        return self._known

    def unknown(self, wanted: Iterable[WantedEngine]) -> list[_Pair]:
        """Return the links of routes that were not measured, and can be."""
        known = self.known()
        links = with_peers(known, {each.id for each in self._workers.values() if each.peer_address})
        used = {
            pair
            for engine in wanted
            for route in engine.routes
            for ends in pairwise([GATEWAY, *(leg.worker for leg in route.legs), GATEWAY])
            for pair in links.way(*ends)
        }
        return sorted(pair for pair in used if self._is_unknown(pair, known))

    async def measure(self, wanted: Iterable[WantedEngine]) -> bool:
        """Measure the links of routes that are not known; return whether any was."""
        now, engines = self._clock(), list(wanted)
        self._probed_at = {pair: at for pair, at in self._probed_at.items() if now < at + AGAIN_S}
        probed = [
            pair
            for pair in self.unknown(engines)
            if pair not in self._probed_at and not any(each.in_flight for each in self._ends(pair))
        ]
        if not probed:
            return False
        self._probed_at |= dict.fromkeys(probed, now)
        tokens = {source: secrets.token_hex(16) for source, _ in probed}
        try:
            for host, token in tokens.items():
                self._order(host, ProbeLink(HeldTensors(WorkerId(host), token, PROBE_BYTES)))
            await asyncio.sleep(LOOK_S)  # until they hold them
            for pair in probed:  # one after the other, as they may share a line
                self._probe(pair, tokens[pair[0]])
                for _ in range(LOOKS):
                    if pair not in self.unknown(engines):
                        break
                    await asyncio.sleep(LOOK_S)
        finally:
            for host, token in tokens.items():
                self._order(host, DropTensors(token))
        return not set(probed).issubset(self.unknown(engines))

    def _is_unknown(self, pair: _Pair, known: Mapping[_Pair, object]) -> bool:
        ends = self._ends(pair)
        if GATEWAY not in pair:
            return len(ends) == 2 and pair not in known
        # What is sent to a worker does not tell how fast the way back is.
        is_known = pair in known and (
            pair[0] == GATEWAY or all(each.received_bytes_per_s for each in ends)
        )
        return not is_known and any(not each.local for each in ends)

    def _ends(self, pair: _Pair) -> list[ConnectedWorker]:
        found = (self._workers.get(WorkerId(host)) for host in pair)
        return [each for each in found if each is not None]

    def _probe(self, pair: _Pair, token: str) -> None:
        source, target = pair
        if source == GATEWAY:
            zeros = RelayedTensors(token, (bytes(PROBE_BYTES),))
            self._order(target, zeros, zeros)
        elif target == GATEWAY:
            self._order(source, SendTensors(token), SendTensors(token))
        elif (holder := self._workers.get(WorkerId(source))) is not None:
            address, certificate = holder.peer_address, holder.peer_certificate
            held = HeldTensors(holder.id, token, PROBE_BYTES, address, certificate)
            self._order(target, ProbeLink(held))

    def _order(self, host: str, *orders: Order) -> None:
        worker = self._workers.get(WorkerId(host))
        if worker is not None and not worker.orders.closed:
            for order in orders:
                worker.orders.put(order)
