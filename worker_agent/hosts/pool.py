"""The engine hosts of this machine: one per session, resident within a memory budget."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import psutil

from synergai.errors import SynergaiError
from worker_agent.hosts.process import HostProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from pathlib import Path

    from synergai.domain import EngineName, Session
    from worker_agent.ipc.frames import Ready

MEMORY_CHECK_S: Final = 1.0
"""Between two looks at what the hosts have grown to."""
LEAK_FACTOR: Final = 2.0
"""A host alone above the budget is let be until it has grown to so many times its first size."""
_FRESH_HOST_BYTES: Final = 256 << 20
"""What a host is taken to need until one for the same session has been seen."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SessionChange:
    """A session became resident, left, or could not be loaded.

    Attributes:
        ready: how loading went, if it became resident.
        error: why it could not be loaded, if so: `EngineUnusable`, or `Unavailable` if the
            host died.
    """

    session: Session
    resident: bool
    ready: Ready | None = None
    error: SynergaiError | None = None


class HostPool:
    """Starts hosts when they are needed and ends the least recently used ones.

    Args:
        models: the model directory.
        memory_bytes: what all hosts together may keep resident; one is always allowed.
        cores: those that hosts are kept to; all if empty.
        hang_timeout_s: how long a host may be silent while it owes an answer.
        pinned: sessions that make no room for others.
        on_change: told of every session that comes or goes.
    """

    def __init__(
        self,
        models: Path,
        *,
        memory_bytes: int,
        cores: Sequence[int] = (),
        hang_timeout_s: float = 30.0,
        pinned: Collection[Session] = (),
        on_change: Callable[[SessionChange], None] = lambda _: None,
    ) -> None:
        self._models = models
        self._memory_bytes = memory_bytes
        self._cores = cores
        self._hang_timeout_s = hang_timeout_s
        self._pinned = frozenset(pinned)
        self._on_change = on_change
        # In order of use, the least recently used first.
        self._hosts: dict[Session, HostProcess] = {}
        self._loads: dict[Session, asyncio.Task[HostProcess]] = {}
        self._known_bytes: dict[Session, int] = {}
        self._retiring: dict[HostProcess, asyncio.Task[None]] = {}

    def resident(self, session: Session) -> HostProcess | None:
        """The host of `session`, if it is up; this counts as a use."""
        host = self._hosts.pop(session, None)
        if host is None:
            return None
        self._hosts[session] = host
        return None if host.is_closed else host

    def sessions(self) -> list[Session]:
        """All that is resident, the most recently used first."""
        return [session for session, host in reversed(self._hosts.items()) if not host.is_closed]

    def load(self, session: Session) -> asyncio.Task[HostProcess]:
        """Bring `session` into memory, making room for it; one load at a time per session.

        The task raises EngineUnusable if the engine cannot be loaded, and Unavailable if the
        host died on the way.
        """
        if session not in self._loads:
            task = asyncio.create_task(self._load(session))
            self._loads[session] = task
            task.add_done_callback(lambda _: self._loads.pop(session))
        return self._loads[session]

    async def unload(self, session: Session) -> bool:
        """Let `session` go, if it is resident and idle."""
        host = self._hosts.get(session)
        if host is None or not host.is_idle:
            return False
        await self._end(host)
        return True

    def retire(self, engine: EngineName) -> None:
        """Have the engine loaded anew: its files are not what they were.

        What its hosts are doing they finish; what is being loaded is worth another try.
        """
        for session, task in self._loads.items():
            if session.engine == engine:
                task.cancel()
        for session, host in list(self._hosts.items()):
            if session.engine == engine:
                self._forget(host)
                retired = self._end_after(host, host.retire())
                self._retiring[host] = asyncio.create_task(retired)

    async def keep_within_budget(self) -> None:
        """Look after the hosts' memory, until cancelled: they may grow while they run."""
        while True:
            await asyncio.sleep(MEMORY_CHECK_S)
            await self.check_memory()

    async def check_memory(self) -> None:
        """End idle hosts if all together are above the budget, and a leaking one in any case."""
        for session, host in list(self._hosts.items()):
            size, at_first = _rss_bytes(host.pid), self._known_bytes[session]
            if size > max(self._memory_bytes, LEAK_FACTOR * at_first):
                _log.warning("the engine host of %s leaks and is killed", session)
                host.kill(
                    f"grew from {at_first >> 20:,} to {size >> 20:,} MB, above the budget of "
                    f"{self._memory_bytes >> 20:,} MB, and was killed"
                )
        await self._make_room(0, keep=next(iter(self.sessions()), None))

    def rss_bytes(self) -> int:
        """Resident memory of all hosts together."""
        return sum(_rss_bytes(host.pid) for host in (*self._hosts.values(), *self._retiring))

    async def close(self) -> None:
        """End all hosts."""
        for task in self._loads.values():
            task.cancel()
        await asyncio.gather(*self._loads.values(), return_exceptions=True)
        retiring = list(self._retiring.values())
        hosts = [*self._hosts.values(), *self._retiring]
        await asyncio.gather(*(host.close() for host in hosts))
        await asyncio.gather(*retiring)
        self._hosts.clear()

    async def _load(self, session: Session) -> HostProcess:
        host = self._hosts.get(session)
        if host is not None and not host.is_closed:
            return host
        await self._make_room(self._known_bytes.get(session, _FRESH_HOST_BYTES))
        try:
            host = await HostProcess.start(
                self._models,
                session,
                cores=self._cores,
                hang_timeout_s=self._hang_timeout_s,
                on_exit=self._forget,
            )
        except SynergaiError as error:
            _log.warning("cannot load %s with %s: %s", session.engine, session.configuration, error)
            self._on_change(SessionChange(session, resident=False, error=error))
            raise
        self._hosts[session] = host
        self._known_bytes[session] = _rss_bytes(host.pid)
        _log.info(
            "loaded %s with %s in %.2f s",
            session.engine,
            session.configuration,
            host.ready.setup_s,
        )
        self._on_change(SessionChange(session, resident=True, ready=host.ready))
        await self._make_room(0, keep=session)
        return host

    async def _make_room(self, size: int, keep: Session | None = None) -> None:
        """End idle hosts, the least recently used first, until `size` more bytes fit.

        Pinned ones stay, and `keep`.
        """
        for session, host in list(self._hosts.items()):
            if self.rss_bytes() + size <= self._memory_bytes:
                return
            if session != keep and session not in self._pinned and host.is_idle:
                _log.info("ending %s to make room", session.engine)
                await self._end(host)

    async def _end_after(self, host: HostProcess, answered: asyncio.Future[None]) -> None:
        await answered
        await host.close()
        del self._retiring[host]

    async def _end(self, host: HostProcess) -> None:
        self._forget(host)
        await host.close()

    def _forget(self, host: HostProcess) -> None:
        """The host is gone or about to go, and its session is no longer resident."""
        if self._hosts.get(host.session) is host:
            del self._hosts[host.session]
            self._on_change(SessionChange(host.session, resident=False))


def _rss_bytes(pid: int) -> int:
    try:
        size: int = psutil.Process(pid).memory_info().rss
    except psutil.Error:  # it has just died
        return 0
    return size
