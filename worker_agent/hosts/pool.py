"""Pool of engine hosts within a memory budget."""

from __future__ import annotations

import asyncio
import logging
import math
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from msgspec.structs import replace

from synergai.errors import ConfigurationUnusable, EngineUnusable, SynergaiError
from synergai.runtime.resources import available_memory_bytes, rss_bytes, usable_memory_bytes
from synergai.runtime.tasks import TaskBag
from worker_agent.hosts.loads import LoadSuspected
from worker_agent.hosts.memory import CrowdedOut, HostMemory
from worker_agent.hosts.preloads import (
    FREE_SHARE,
    Preload,
    PreloadAborted,
    Preloads,
    without_variant,
)
from worker_agent.hosts.process import HostProcess
from worker_agent.hosts.sessions import (
    ResidentSessions,
    SessionChange,
    UnusableSessions,
    is_due_to_configuration,
    is_idle,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence

    from synergai.domain import EngineName, Session, UnusableSession
    from synergai.models.directories import ModelDirectories
    from worker_agent.providers import ProviderChoice

MEMORY_CHECK_S: Final = 0.25
"""Interval between two checks of the hosts' resident memory."""
LEAK_FACTOR: Final = 2.0
"""A single host above the budget is killed once it exceeds this multiple of its initial size."""
_DEFAULT_HOST_BYTES: Final = 256 << 20
"""Assumed size of a host whose session has not been loaded before."""
_DEFAULT_VARIANT_BYTES: Final = 64 << 20
"""The same of a variant that is added to a host."""

_log = logging.getLogger(__name__)


class HostPool:
    """Starts hosts on demand and evicts the least recently used ones.

    Their resident memory stays within a budget, which a single host may exceed.
    """

    def __init__(
        self,
        models: ModelDirectories,
        *,
        memory_bytes: int,
        memory: HostMemory | None = None,
        cores: Sequence[int] = (),
        providers: Mapping[str, ProviderChoice] | None = None,
        hang_timeout_s: float = 30.0,
        pinned: Collection[Session] = (),
        on_change: Callable[[SessionChange], None] = lambda _: None,
        on_unusable: Callable[[EngineName], None] = lambda _: None,
    ) -> None:
        self._models = models
        self.memory_bytes = memory_bytes
        self.is_closing = False
        self._memory = HostMemory() if memory is None else memory
        self._memory.evict_idle = self._evict_idle
        self._cores = cores
        self._hang_timeout_s = hang_timeout_s
        self._pinned = frozenset(pinned)
        # Engines whose files on disk are not those of their sessions, which cannot be loaded again.
        self._kept: set[EngineName] = set()
        self._on_change = on_change
        self._providers = {} if providers is None else providers
        self._unusable = UnusableSessions(on_unusable)
        self._residents = ResidentSessions(on_change)
        self._loads: dict[Session, asyncio.Task[HostProcess]] = {}
        self._loading = TaskBag()
        # Sessions that nothing needs yet.
        self._preloads = Preloads(self._is_busy)
        # Variants of an engine are loaded one after another, by session without the variant.
        self._turns: dict[Session, asyncio.Lock] = {}
        # By session, what loading it took; by host, what it had after its last load.
        self._initial_bytes: dict[Session, int] = {}
        self._loaded_bytes: WeakKeyDictionary[HostProcess, int] = WeakKeyDictionary()

    def get_resident(self, session: Session) -> HostProcess | None:
        """Return the host of `session` if it is resident, and mark it as used."""
        return self._residents.use(session)

    def resident_sessions(self) -> list[Session]:
        return self._residents.sessions()

    def session_bytes(self) -> dict[Session, int]:
        """Return the memory that loading took, of all sessions that were ever loaded."""
        return dict(self._initial_bytes)

    def unusable_sessions(self) -> list[UnusableSession]:
        return self._unusable.listed()

    def load(self, session: Session) -> asyncio.Task[HostProcess]:
        """Load `session`, evicting others if needed; concurrent loads of a session share a task.

        The task raises EngineUnusable if the engine cannot be loaded, ConfigurationUnusable if
        that is a matter of the execution provider or the variant, and Unavailable if the host died
        while loading.
        """
        self._preloads.need(session)
        task = self._loads.get(session)
        if task is not None and not task.done():  # a finished load may have been aborted
            return task
        return self._begin_load(session, self._load(session))

    def preload(self, session: Session, limit_s: float = math.inf) -> asyncio.Task[HostProcess]:
        """Load `session`, which nothing needs yet; see `worker_agent.hosts.preloads`.

        The task raises the exceptions of `load`, and PreloadAborted if it was aborted.
        """
        if (task := self._loads.get(session)) is not None:
            return task
        preload = self._preloads.begin_preload(session, limit_s)
        return self._begin_load(session, self._preload(session, preload))

    def _begin_load(
        self, session: Session, load: Coroutine[Any, Any, HostProcess]
    ) -> asyncio.Task[HostProcess]:
        task = self._loads[session] = self._loading.start_awaited(load)
        task.add_done_callback(partial(self._end_load, session))
        return task

    def _end_load(self, session: Session, task: asyncio.Task[HostProcess]) -> None:
        if self._loads.get(session) is task:  # and not a newer load
            del self._loads[session]

    def end_preloads(self, reason: str) -> None:
        self._preloads.abort(reason)

    async def unload(self, session: Session) -> bool:
        """Unload `session` if it is resident and idle; return whether it was."""
        host = self._residents.get(session)
        if host is None or not is_idle(session, host):
            return False
        await self._residents.evict_session(session, host)
        return True

    def keep(self, engine: EngineName) -> bool:
        """Keep the sessions of `engine`, whose files on disk cannot be used; return whether any.

        They are not evicted until `replace` or `retire`.
        """
        if not self._residents.has_engine(engine):
            return False
        self._kept.add(engine)
        return True

    def keeps(self, engine: EngineName) -> bool:
        """Return whether the sessions of `engine` run other files than those on disk."""
        return engine in self._kept

    async def replace(self, engine: EngineName) -> None:
        """Load the changed files of `engine` in addition to its sessions, and then retire these.

        Of the sessions of a host, the one used last is loaded; others on their next use, as are
        those that do not fit into memory together with the former ones.
        """
        started: dict[Session, HostProcess] = {}
        try:
            for host, session in self._residents.last_used().items():
                if session.engine == engine and self._fits(rss_bytes(host.pid)):
                    with suppress(SynergaiError):  # it is reported on its next use
                        started[session] = await self._start(session, None)
        except asyncio.CancelledError:
            await asyncio.gather(*(host.close() for host in started.values()))
            raise
        self.retire(engine)
        for session, host in started.items():
            if host.is_closed:
                continue
            self._residents.add(session, host)
            self._loaded_bytes[host] = self._initial_bytes[session] = size = rss_bytes(host.pid)
            _log.info("loaded the changed files of %s", session)
            self._on_change(SessionChange(session, resident=True, ready=host.ready, size=size))

    def retire(self, engine: EngineName) -> None:
        """Reload `engine` on its next use, because its files have changed.

        Its hosts complete their runs before they are closed; pending loads are cancelled, and
        their callers start them again. Sessions that were unusable are tried again.
        """
        self._kept.discard(engine)
        self._unusable.forget(engine)
        for session in [each for each in self._loads if each.engine == engine]:
            self._loads.pop(session).cancel()
        for host, session in self._residents.last_used().items():
            if session.engine == engine:
                self._residents.retire_host(host)

    async def enforce_memory_budget(self) -> None:
        """Check the hosts' memory periodically, until cancelled; hosts may grow while they run."""
        while True:
            await asyncio.sleep(MEMORY_CHECK_S)
            await self.check_memory()

    async def check_memory(self) -> None:
        """Evict idle hosts above the memory budget, and kill a leaking host even if it is busy."""
        for host, session in self._residents.last_used().items():
            size, initial = rss_bytes(host.pid), self._loaded_bytes[host]
            if size > max(self.memory_bytes, LEAK_FACTOR * initial):
                _log.warning("killing the engine host of %s, which leaks memory", session)
                host.kill(
                    f"grew from {initial / 1e6:,.0f} to {size / 1e6:,.0f} MB, above the budget of "
                    f"{self.memory_bytes / 1e6:,.0f} MB, and was killed"
                )
        if len(self._preloads) and not self._fits(0):
            self._abort_preloads()
        await self._evict(0, keep=next(iter(self.resident_sessions()), None))
        async with self._memory.enforcing:
            # Preloads go first.
            has_to = self._memory.exceeded() and not self._abort_preloads()
            if has_to and not await self._evict_idle():
                self._memory.kill_largest()

    async def _evict_idle(self, size: int = 0) -> bool:
        """Evict idle sessions, the least recently used first, until `size` more bytes fit.

        Return whether they do.
        """
        for session, host in self._residents.by_use():
            if not self._memory.exceeded(size):
                break
            if not self._is_pinned(session) and is_idle(session, host):
                _log.warning("evicting %s: engines use more than --memory-mb allows", session)
                await self._residents.evict_session(session, host)
        return not self._memory.exceeded(size)

    async def close(self) -> None:
        """Close all hosts, and cancel pending loads for good."""
        self.is_closing = True
        await self._loading.close()
        await self._residents.close()

    async def _preload(self, session: Session, preload: Preload) -> HostProcess:
        try:
            return await self._load(session, preload)
        except PreloadAborted as aborted:
            if preload.needed:  # by now
                _log.info("%s is loaded again: the preload %s", session.engine, aborted)
                return await self._load(session)
            _log.info("%s is not preloaded: %s", session.engine, aborted)
            size = self._initial_bytes.get(session, 0)
            self._on_change(
                SessionChange(session, resident=False, no_room=aborted.no_room, size=size)
            )
            raise
        finally:
            self._preloads.end_preload(session, preload)

    def _is_busy(self) -> bool:
        """Return whether anything runs, or is loaded because it is needed."""
        return any(each not in self._preloads for each in self._loads) or any(
            not host.is_idle for host in self._residents.hosts()
        )

    async def _load(self, session: Session, preload: Preload | None = None) -> HostProcess:
        variant = session.configuration.variant
        if not variant:
            return await self._load_session(session, None, preload)
        family = without_variant(session)
        async with self._turns.setdefault(family, asyncio.Lock()):
            hosts = (
                host for each, host in self._residents.by_use() if without_variant(each) == family
            )
            shared = next((host for host in hosts if not host.is_closed), None)
            if self._unusable.is_suspected(session):
                shared = None  # only without queries is the cause of a crash certain
            return await self._load_session(session, shared, preload)

    async def _load_session(
        self, session: Session, shared: HostProcess | None, preload: Preload | None
    ) -> HostProcess:
        """Load a session, into the host of other variants of its engine if there is one."""
        if (known := self._unusable.error(session)) is not None:
            self._on_change(SessionChange(session, resident=False, error=known))
            raise known
        if (host := self._residents.get(session)) is not None:
            return host
        unknown = _DEFAULT_HOST_BYTES if shared is None else _DEFAULT_VARIANT_BYTES
        await self._make_room(self._initial_bytes.get(session, unknown), shared, preload)
        before = 0 if shared is None else rss_bytes(shared.pid)
        try:
            if shared is None:
                host = await self._start(session, preload)
                ready = host.ready
            else:
                host = shared
                ready = await shared.load_variant(session.configuration.variant)
            host.require_open()
        except PreloadAborted:
            raise
        except SynergaiError as failure:
            error = self._blame(session, failure)
            _log.warning("cannot load %s: %s", session, error)
            self._on_change(SessionChange(session, resident=False, error=error))
            raise error from failure
        self._unusable.acquit(session)
        self._residents.add(session, host, used=preload is None or preload.needed)
        self._loaded_bytes[host] = size = rss_bytes(host.pid)
        self._initial_bytes[session] = grown = max(size - before, 0)
        if preload is not None and not preload.needed and not self._fits(0):
            await self._residents.evict_session(session, host)
            raise PreloadAborted(f"its {grown / 1e6:,.0f} MB are not free", no_room=True)
        _log.info("loaded %s in %.2f s", session, ready.setup_s)
        times = None if host.was_suspended and shared is None else ready
        self._on_change(SessionChange(session, resident=True, ready=times, size=grown))
        await self._evict(0, keep=session)
        return host

    async def _make_room(
        self, size: int, shared: HostProcess | None, preload: Preload | None
    ) -> None:
        """Evict others for a session of `size` bytes that is needed."""
        if preload is not None:
            preload.check()
        if preload is None or preload.needed:
            if not self._fits(size):
                self._abort_preloads()
            await self._evict(size, beside=shared)
        elif not self._fits(size):
            raise PreloadAborted(f"{size / 1e6:,.0f} MB are not free", no_room=True)

    def _fits(self, size: int) -> bool:
        """Return whether `size` more bytes fit into the memory, with all that is being loaded."""
        limit = self._memory.limit_bytes
        return (
            self._residents.rss_bytes() + self._preloads.rss_bytes() + size <= self.memory_bytes
            and (not limit or self._memory.used_bytes() + size <= limit)
            and available_memory_bytes() - size >= FREE_SHARE * usable_memory_bytes()
        )

    def _abort_preloads(self) -> bool:
        """Abort the preloads; return whether that frees memory."""
        used = self._preloads.abort_for_memory()
        for session, size in used.items():
            self._takes_at_least(session, size)
        return bool(used)

    def _takes_at_least(self, session: Session, size: int) -> None:
        self._initial_bytes[session] = max(self._initial_bytes.get(session, 0), size)

    async def _start(self, session: Session, preload: Preload | None) -> HostProcess:
        models = await asyncio.to_thread(self._models.of, session.engine)
        provider = self._providers.get(session.configuration.execution_provider)
        try:
            return await HostProcess.start(
                models,
                session,
                memory=self._memory,
                cores=self._cores,
                provider=provider,
                hang_timeout_s=self._hang_timeout_s,
                on_launched=(lambda _: None) if preload is None else preload.watch,
                on_exit=self._residents.forget_host,
                on_unusable=partial(self._condemn_variant, session),
            )
        except CrowdedOut as crowded:
            self._takes_at_least(session, crowded.size_bytes)  # for which room is made next time
            if preload is None:
                raise
            raise PreloadAborted(str(crowded), no_room=True) from None
        finally:
            if preload is not None:
                await preload.end()

    def _blame(self, session: Session, error: SynergaiError) -> SynergaiError:
        """Return why a session cannot be loaded, and remember it if its configuration is why."""
        if isinstance(error, LoadSuspected):
            self._unusable.suspect(session)
        # While another session of the engine runs, the engine itself can be used.
        runs = isinstance(error, EngineUnusable) and self._residents.has_engine(session.engine)
        if not runs and not is_due_to_configuration(session, error):
            return error
        self._condemn(session, str(error))
        return ConfigurationUnusable(str(error))

    def _condemn_variant(self, session: Session, variant: str, reason: str) -> None:
        configuration = replace(session.configuration, variant=variant)
        self._condemn(replace(session, configuration=configuration), reason)

    def _condemn(self, session: Session, reason: str) -> None:
        if session in self._unusable:
            return
        self._unusable.add(session, reason)
        host = self._residents.get(session)
        if host is None:
            return
        if self._residents.is_only_session(session, host):
            self._residents.retire_host(host)
        else:  # the runs that wait for it fail one by one, and its memory is freed with the host
            self._residents.forget(session)

    async def _evict(
        self, size: int, keep: Session | None = None, beside: HostProcess | None = None
    ) -> None:
        """Evict idle sessions, least recently used first, until `size` more bytes fit the budget.

        Pinned sessions and `keep` are not evicted, nor the last session of `beside`.
        """
        for session, host in self._residents.by_use():
            if self._residents.rss_bytes() + size <= self.memory_bytes:
                return
            if session == keep or self._is_pinned(session) or not is_idle(session, host):
                continue
            if host is beside and self._residents.is_only_session(session, host):
                continue
            _log.info("evicting %s to free memory", session)
            await self._residents.evict_session(session, host)

    def _is_pinned(self, session: Session) -> bool:
        return session in self._pinned or session.engine in self._kept
