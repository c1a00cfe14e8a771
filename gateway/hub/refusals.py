"""Log of refused agents: a refused agent tries again every few seconds, for as long as it runs."""

from __future__ import annotations

import logging
import secrets
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

INTERVAL_S: Final = 600.0
"""Time after which a refusal that repeats is logged again, with their number."""
MAX_KINDS: Final = 64
"""Agents and reasons that are told apart."""
_OTHERS: Final = ("other agents", "")

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Repeated:
    """Refusals of one agent for one reason since the last message about them."""

    logged_at: float
    count: int = 0


class RefusalLog:
    """Logs the first refusal of an agent for a reason, and then their number once in a while."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._repeated: OrderedDict[tuple[str, str], _Repeated] = OrderedDict()

    def record(self, agent: str, reason: str) -> None:
        """Record a refusal."""
        now = self._clock()
        self._forget_old(now)
        kind = (agent, reason)
        if kind not in self._repeated and len(self._repeated) >= MAX_KINDS:
            kind = _OTHERS
        repeated = self._repeated.get(kind)
        if repeated is None:
            self._repeated[kind] = _Repeated(now)
            _log.warning("fault %s: refused %s: %s", secrets.token_hex(4), agent, reason)
            return
        repeated.count += 1
        elapsed_s = now - repeated.logged_at
        if elapsed_s >= INTERVAL_S:
            what = f"{kind[0]}: {kind[1]}".removesuffix(": ")
            _log.warning(
                "refused %d times more in the last %.0f s: %s", repeated.count, elapsed_s, what
            )
            self._repeated[kind] = _Repeated(now)
            self._repeated.move_to_end(kind)

    def _forget_old(self, now: float) -> None:
        """Forget agents that have not been refused for two intervals, the oldest first."""
        while self._repeated:
            kind, repeated = next(iter(self._repeated.items()))
            if now - repeated.logged_at < 2 * INTERVAL_S:
                return
            del self._repeated[kind]
