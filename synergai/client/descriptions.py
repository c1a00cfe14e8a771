"""Engine descriptions that a client keeps, fetched once for all calls that need them."""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

from synergai.errors import DeadlineExceeded
from synergai.runtime.tasks import TaskBag

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

    from synergai.domain import Engine


class EngineDescriptions:
    """Descriptions by engine name. Concurrent calls share one fetch."""

    def __init__(self, fetch: Callable[[str], Coroutine[Any, Any, Engine]]) -> None:
        self._fetch = fetch
        self._tasks = TaskBag()
        self._known: dict[str, Engine] = {}
        self._fetches: dict[str, asyncio.Task[Engine]] = {}
        self._waiting: Counter[asyncio.Task[Engine]] = Counter()

    async def get(self, name: str, within_s: float | None) -> Engine:
        """Return the description of an engine, from memory or from the gateway."""
        if (known := self._known.get(name)) is not None:
            return known
        task = self._fetches.get(name)
        if task is None:
            task = self._fetches[name] = self._tasks.start_awaited(self._fetch(name))
            task.add_done_callback(partial(self._fetched, name))
        self._waiting[task] += 1
        try:
            # A call that is cancelled must not take the fetch away from the others.
            async with asyncio.timeout(within_s):
                return await asyncio.shield(task)
        except TimeoutError:
            limit_s = within_s or 0.0  # without a limit there is no timeout
            raise DeadlineExceeded(
                f"the gateway did not describe engine {name!r} within {limit_s:.3g} s"
            ) from None
        finally:
            self._waiting[task] -= 1
            if not self._waiting[task]:
                del self._waiting[task]
                self._forget_fetch(name, task)
                task.cancel()

    def known(self, name: str) -> Engine | None:
        """Return the description in memory; None if there is none."""
        return self._known.get(name)

    def forget(self, name: str) -> None:
        """Fetch the description again next time."""
        self._known.pop(name, None)

    async def close(self) -> None:
        """Cancel the fetches in flight."""
        await self._tasks.close()

    def _fetched(self, name: str, task: asyncio.Task[Engine]) -> None:
        self._forget_fetch(name, task)
        if not task.cancelled() and task.exception() is None:
            self._known[name] = task.result()

    def _forget_fetch(self, name: str, task: asyncio.Task[Engine]) -> None:
        if self._fetches.get(name) is task:
            del self._fetches[name]
