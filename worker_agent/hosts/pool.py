"""Pool of engine hosts: one per resident session, within a memory budget."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from synergai.domain import UnusableSession
from synergai.errors import ConfigurationUnusable, EngineUnusable, SynergaiError
from synergai.models.directories import ModelDirectories
from synergai.runtime.memory import rss_bytes
from synergai.runtime.text import printable
from worker_agent.hosts.memory import HostMemory
from worker_agent.hosts.process import HostProcess, LoadCrashed

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from pathlib import Path

    from synergai.domain import EngineName, Session
    from worker_agent.ipc.frames import Ready
    from worker_agent.providers.choice import ProviderChoice

MEMORY_CHECK_S: Final = 0.25
"""Interval between two checks of the hosts' resident memory."""
LEAK_FACTOR: Final = 2.0
"""A single host above the budget is killed once it exceeds this multiple of its initial size."""
_DEFAULT_HOST_BYTES: Final = 256 << 20
"""Assumed size of a host whose session has not been loaded before."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SessionChange:
    """A session that was loaded, was evicted, or failed to load.

    Attributes:
        session: the session.
        resident: whether it is resident now.
        ready: load times, if it was loaded.
        error: why it failed to load, if so: `EngineUnusable`, or `Unavailable` if the host died.
    """

    session: Session
    resident: bool
    ready: Ready | None = None
    error: SynergaiError | None = None


class HostPool:
    """Starts hosts on demand and evicts the least recently used ones.

    Args:
        models: the model directory.
        fetched: directory of engines fetched from the gateway's store; None for none.
        memory_bytes: budget of the hosts' total resident memory; a single host may exceed it.
        memory: counts the memory of all hosts, and has the limit that none may exceed.
        cores: CPU cores that hosts are restricted to; all if empty.
        hang_timeout_s: a host that is silent for this long while it has runs is killed.
        providers: execution providers of configurations, by name; the CPU is not among them.
        pinned: sessions that are never evicted.
        on_change: called for every session that is loaded, evicted, or fails to load.
        on_unusable: called with an engine when the list of its unusable sessions has changed.

    Attributes:
        memory_bytes: as given.
    """

    def __init__(
        self,
        models: Path,
        *,
        fetched: Path | None = None,
        memory_bytes: int,
        memory: HostMemory | None = None,
        cores: Sequence[int] = (),
        providers: Mapping[str, ProviderChoice] | None = None,
        hang_timeout_s: float = 30.0,
        pinned: Collection[Session] = (),
        on_change: Callable[[SessionChange], None] = lambda _: None,
        on_unusable: Callable[[EngineName], None] = lambda _: None,
    ) -> None:
        self._models = ModelDirectories(models, fetched)
        self.memory_bytes = memory_bytes
        self._memory = HostMemory() if memory is None else memory
        self._cores = cores
        self._hang_timeout_s = hang_timeout_s
        self._pinned = frozenset(pinned)
        self._on_change = on_change
        self._on_unusable = on_unusable
        self._providers = {} if providers is None else providers
        # Remembered until the engine's files change: every attempt costs a start of the runtime.
        self._unusable: dict[Session, str] = {}
        # Ordered by last use, least recently used first.
        self._hosts: dict[Session, HostProcess] = {}
        self._loads: dict[Session, asyncio.Task[HostProcess]] = {}
        self._initial_bytes: dict[Session, int] = {}
        self._retiring: dict[HostProcess, asyncio.Task[None]] = {}

    def get_resident(self, session: Session) -> HostProcess | None:
        """Return the host of `session` if it is resident, and mark it as used."""
        host = self._hosts.pop(session, None)
        if host is None:
            return None
        self._hosts[session] = host
        return None if host.is_closed else host

    def resident_sessions(self) -> list[Session]:
        """Return all resident sessions, the most recently used first."""
        return [session for session, host in reversed(self._hosts.items()) if not host.is_closed]

    def unusable_sessions(self) -> list[UnusableSession]:
        """Return the sessions whose execution provider cannot run their engine, sorted."""
        return sorted(UnusableSession(*item) for item in self._unusable.items())

    def load(self, session: Session) -> asyncio.Task[HostProcess]:
        """Load `session`, evicting others if needed; concurrent loads of a session share a task.

        The task raises EngineUnusable if the engine cannot be loaded, ConfigurationUnusable if
        that is a matter of the execution provider, and Unavailable if the host died while loading.
        """
        if session not in self._loads:
            task = asyncio.create_task(self._load(session))
            self._loads[session] = task
            task.add_done_callback(lambda _: self._loads.pop(session))
        return self._loads[session]

    async def unload(self, session: Session) -> bool:
        """Unload `session` if it is resident and idle; return whether it was."""
        host = self._hosts.get(session)
        if host is None or not host.is_idle:
            return False
        await self._close_host(host)
        return True

    def retire(self, engine: EngineName) -> None:
        """Reload `engine` on its next use, because its files have changed.

        Its hosts complete their runs before they are closed; pending loads are cancelled. What
        was unusable is tried again.
        """
        if forgotten := [session for session in self._unusable if session.engine == engine]:
            for session in forgotten:
                del self._unusable[session]
            self._on_unusable(engine)
        for session, task in self._loads.items():
            if session.engine == engine:
                task.cancel()
        for session, host in list(self._hosts.items()):
            if session.engine == engine:
                self._remove(host)
                closing = self._close_when_idle(host, host.retire())
                self._retiring[host] = asyncio.create_task(closing)

    async def enforce_memory_budget(self) -> None:
        """Check the hosts' memory periodically, until cancelled; hosts may grow while they run."""
        while True:
            await asyncio.sleep(MEMORY_CHECK_S)
            await self.check_memory()

    async def check_memory(self) -> None:
        """Evict idle hosts above the memory budget, and kill a leaking host even if it is busy."""
        for session, host in list(self._hosts.items()):
            size, initial = rss_bytes(host.pid), self._initial_bytes[session]
            if size > max(self.memory_bytes, LEAK_FACTOR * initial):
                _log.warning("killing the engine host of %s, which leaks memory", session)
                host.kill(
                    f"grew from {initial >> 20:,} to {size >> 20:,} MB, above the budget of "
                    f"{self.memory_bytes >> 20:,} MB, and was killed"
                )
        await self._evict(0, keep=next(iter(self.resident_sessions()), None))
        if self._memory.exceeded:
            await self._enforce_limit()

    async def _enforce_limit(self) -> None:
        """Evict idle sessions, the least recently used first, or else kill the largest host."""
        for session, host in list(self._hosts.items()):
            if session not in self._pinned and host.is_idle:
                _log.warning("evicting %s: engines use more than --memory-mb allows", session)
                await self._close_host(host)
                if not self._memory.exceeded:
                    return
        self._memory.kill_largest()

    def rss_bytes(self) -> int:
        """Return the total resident memory of all hosts."""
        return sum(rss_bytes(host.pid) for host in (*self._hosts.values(), *self._retiring))

    async def close(self) -> None:
        """Close all hosts."""
        for task in self._loads.values():
            task.cancel()
        await asyncio.gather(*self._loads.values(), return_exceptions=True)
        retiring = list(self._retiring.values())
        hosts = [*self._hosts.values(), *self._retiring]
        await asyncio.gather(*(host.close() for host in hosts))
        await asyncio.gather(*retiring)
        self._hosts.clear()

    async def _load(self, session: Session) -> HostProcess:
        if (reason := self._unusable.get(session)) is not None:
            known = ConfigurationUnusable(reason)
            self._on_change(SessionChange(session, resident=False, error=known))
            raise known
        host = self._hosts.get(session)
        if host is not None and not host.is_closed:
            return host
        await self._evict(self._initial_bytes.get(session, _DEFAULT_HOST_BYTES))
        models = await asyncio.to_thread(self._models.of, session.engine)
        try:
            host = await HostProcess.start(
                models,
                session,
                memory=self._memory,
                cores=self._cores,
                provider=self._providers.get(session.configuration.execution_provider),
                hang_timeout_s=self._hang_timeout_s,
                on_exit=self._remove,
                on_unusable=partial(self._condemn, session),
            )
        except SynergaiError as failure:
            error: SynergaiError = failure
            # The engine itself has been loaded on the CPU before: the provider is to blame.
            blamed = isinstance(error, (EngineUnusable, LoadCrashed))
            if session.configuration.execution_provider and blamed:
                error = ConfigurationUnusable(str(error))
                self._condemn(session, str(error))
            _log.warning("cannot load %s with %s: %s", session.engine, session.configuration, error)
            self._on_change(SessionChange(session, resident=False, error=error))
            raise error from failure
        self._hosts[session] = host
        self._initial_bytes[session] = rss_bytes(host.pid)
        _log.info(
            "loaded %s with %s in %.2f s",
            session.engine,
            session.configuration,
            host.ready.setup_s,
        )
        if host.ready.elsewhere:
            _log.info(
                "%s with %s: %.0f %% of the nodes run elsewhere",
                session.engine,
                session.configuration,
                100.0 * host.ready.elsewhere,
            )
        self._on_change(SessionChange(session, resident=True, ready=host.ready))
        await self._evict(0, keep=session)
        return host

    def _condemn(self, session: Session, reason: str) -> None:
        """Remember that the execution provider of `session` cannot run its engine."""
        if session in self._unusable:
            return
        self._unusable[session] = printable(reason)
        _log.warning("%s is not used with %s: %s", session.engine, session.configuration, reason)
        self._on_unusable(session.engine)
        if (host := self._hosts.get(session)) is not None:
            self._remove(host)
            self._retiring[host] = asyncio.create_task(self._close_when_idle(host, host.retire()))

    async def _evict(self, size: int, keep: Session | None = None) -> None:
        """Close idle hosts, least recently used first, until `size` more bytes fit the budget.

        Pinned sessions and `keep` are not evicted.
        """
        for session, host in list(self._hosts.items()):
            if self.rss_bytes() + size <= self.memory_bytes:
                return
            if session != keep and session not in self._pinned and host.is_idle:
                _log.info("evicting %s to free memory", session)
                await self._close_host(host)

    async def _close_when_idle(self, host: HostProcess, idle: asyncio.Future[None]) -> None:
        await idle
        await host.close()
        del self._retiring[host]

    async def _close_host(self, host: HostProcess) -> None:
        self._remove(host)
        await host.close()

    def _remove(self, host: HostProcess) -> None:
        """Remove a host that has exited or is closing from the resident sessions."""
        if self._hosts.get(host.session) is host:
            del self._hosts[host.session]
            self._on_change(SessionChange(host.session, resident=False))
