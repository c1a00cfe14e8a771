"""When engines whose load failed are loaded again."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from synergai.domain import EngineName

FIRST_S: Final = 10.0
"""Delay of an engine's first retry; each further one is twice as long."""


class _Retry(NamedTuple):
    """The latest retry of an engine, which may be due already."""

    at: float
    delay_s: float


class Retries:
    """Retries of engines, each with a backoff of its own.

    An engine that fails long after its latest retry starts with the shortest delay again.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._retries: dict[EngineName, _Retry] = {}

    def add(self, name: EngineName, longest_s: float) -> None:
        """Schedule a retry of an engine that failed, unless one is scheduled already."""
        now = self._clock()
        last = self._retries.get(name)
        if last is not None and now < last.at:
            return
        delay_s = FIRST_S
        if last is not None and now < last.at + longest_s:
            delay_s = min(2 * last.delay_s, longest_s)
        self._retries[name] = _Retry(now + delay_s, delay_s)

    def due(self) -> set[EngineName]:
        """Return the engines whose latest retry is due, also those that have been retried."""
        now = self._clock()
        return {name for name, retry in self._retries.items() if retry.at <= now}

    def forget(self, names: Iterable[EngineName]) -> None:
        """Forget engines that have changed or are gone."""
        for name in names:
            self._retries.pop(name, None)
