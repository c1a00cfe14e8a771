"""Preloads, which do not affect the worker's sessions and other work.

While anything else runs or is loaded, the engine host of such a load is suspended. Where memory is
short, the load is aborted; it evicts nothing. One that takes much longer than estimated hangs, and
starts again once a query needs it.
"""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from synergai.errors import Unavailable
from synergai.runtime.resources import rss_bytes
from synergai.runtime.tasks import TaskBag

if TYPE_CHECKING:
    from collections.abc import Callable

    from synergai.domain import Session
    from worker_agent.hosts.process import HostProcess

PATIENCE_S: Final = 30.0
"""A load that was suspended for this long is aborted."""
VARIANT_PATIENCE_S: Final = 1.0
"""The same of a variant, as gateways let requests for its engine wait until its load has ended."""
CHECK_S: Final = 0.01
"""Interval at which it is checked whether other work has begun or ended."""
FREE_SHARE: Final = 0.1
"""Share of the machine's memory that preloads leave free."""


class PreloadAborted(Unavailable):
    """A preload was aborted, which says nothing about its engine; `no_room` if memory was short."""

    def __init__(self, reason: str, *, no_room: bool = False) -> None:
        super().__init__(reason)
        self.no_room = no_room


class Preload:
    """A load that nothing needs yet, until `needed`.

    Its host is killed if it is not loaded after `limit_s` without suspensions, in any case.
    """

    def __init__(
        self, is_busy: Callable[[], bool], *, of_variant: bool = False, limit_s: float = math.inf
    ) -> None:
        self.needed = False
        self.host: HostProcess | None = None
        self._is_busy = is_busy
        self._patience_s = VARIANT_PATIENCE_S if of_variant else PATIENCE_S
        self._limit_s = limit_s
        self._aborted: PreloadAborted | None = None
        self._watching = TaskBag()

    def watch(self, host: HostProcess) -> None:
        """Suspend the host whenever there is something else to do, and limit its time to load.

        Both until `end`.
        """
        self.host = host
        if self._aborted is not None and not self.needed:
            host.kill(str(self._aborted), self._aborted)
        self._watching.start(self._supervise(host))

    def abort(self, reason: str, *, no_room: bool) -> None:
        """Kill the host, or let none be started.

        A variant that is being loaded into the host of others is loaded all the same.
        """
        self._aborted = PreloadAborted(reason, no_room=no_room)
        if self.host is not None:
            self.host.kill(reason, self._aborted)

    def check(self) -> None:
        """Check that the load was not aborted before it began."""
        if self._aborted is not None and not self.needed:
            raise self._aborted

    async def end(self) -> None:
        """Resume the host, because it is loaded or the load is over."""
        self.host = None
        await self._watching.close()

    async def _supervise(self, host: HostProcess) -> None:
        now = asyncio.get_running_loop().time
        waited_s = loaded_s = 0.0
        suspended = False
        try:
            while not self.needed and loaded_s < self._limit_s:
                busy = self._is_busy()
                if busy and not suspended:
                    suspended = host.suspend()
                elif suspended and not busy:
                    host.resume()
                    suspended = False
                if waited_s > self._patience_s:
                    reason = f"gave way to other work for {self._patience_s:g} s, and was aborted"
                    host.kill(reason, PreloadAborted(reason))
                    return
                began = now()
                await asyncio.sleep(CHECK_S)
                if busy:
                    waited_s += now() - began
                else:
                    loaded_s += now() - began
        finally:
            if suspended:
                host.resume()
        if math.isfinite(self._limit_s):
            await asyncio.sleep(self._limit_s - loaded_s)
            reason = f"did not end within {self._limit_s:.0f} s, and was aborted"
            host.kill(reason, PreloadAborted(reason))


class Preloads:
    """Preloads in progress, by session."""

    def __init__(self, is_busy: Callable[[], bool]) -> None:
        self._loads: dict[Session, Preload] = {}
        self._is_busy = is_busy

    def __contains__(self, session: Session) -> bool:
        return session in self._loads

    def __len__(self) -> int:
        return len(self._loads)

    def begin_preload(self, session: Session, limit_s: float) -> Preload:
        of_variant = bool(session.configuration.variant)
        load = Preload(self._is_busy, of_variant=of_variant, limit_s=limit_s)
        self._loads[session] = load
        return load

    def end_preload(self, session: Session, load: Preload) -> None:
        """Remove a load of a session, unless a newer one has replaced it."""
        if self._loads.get(session) is load:
            del self._loads[session]

    def need(self, session: Session) -> None:
        """Let the load of a session, if there is one, be a load like any other.

        Loads of other variants of its engine are aborted: they would be suspended in turn for it.
        """
        load = self._loads.pop(session, None)
        if load is not None:
            load.needed = True
        family = without_variant(session)
        for other, each in self._loads.items():
            if without_variant(other) == family:
                each.abort("was aborted for another variant", no_room=False)

    def abort(self, reason: str) -> None:
        for load in self._loads.values():
            load.abort(reason, no_room=False)

    def abort_for_memory(self) -> dict[Session, int]:
        """Abort the loads that use memory; return the bytes that each has used so far."""
        used = {session: rss_bytes(host.pid) for session, host in self.hosts().items()}
        for session in used:
            reason = "needs memory that is not free, and was aborted"
            self._loads[session].abort(reason, no_room=True)
        return used

    def hosts(self) -> dict[Session, HostProcess]:
        return {session: load.host for session, load in self._loads.items() if load.host}

    def rss_bytes(self) -> int:
        return sum(rss_bytes(host.pid) for host in self.hosts().values())


def without_variant(session: Session) -> Session:
    """Return the session that all variants of an engine share, apart from the variant."""
    return replace(session, configuration=session.configuration.base)
