"""The sessions of a worker: those that are resident in engine hosts, and those that it cannot run.

A host has one resident session, or several of one engine that differ in their variant only.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from synergai.domain import EngineName, Session, UnusableSession
from synergai.errors import ConfigurationUnusable, EngineUnusable, SynergaiError, Unavailable
from synergai.runtime.resources import rss_bytes
from synergai.runtime.tasks import TaskBag
from synergai.runtime.text import printable
from worker_agent.hosts.loads import LoadCrashed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from worker_agent.hosts.process import HostProcess
    from worker_agent.ipc import Ready

UNLOAD_WAIT_S: Final = 5.0
"""A host that computes frees a variant later; nothing else waits longer than this for it."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SessionChange:
    """A session that was loaded, was evicted, or failed to load; `no_room` if memory was short."""

    session: Session
    resident: bool
    ready: Ready | None = None
    error: SynergaiError | None = None
    size: int = 0
    no_room: bool = False


class ResidentSessions:
    """Sessions by last use, and their hosts, until these have completed their runs.

    Args:
        on_change: told of sessions that are no longer resident.
    """

    def __init__(self, on_change: Callable[[SessionChange], None]) -> None:
        self._on_change = on_change
        # The least recently used first.
        self._hosts: dict[Session, HostProcess] = {}
        self._retiring: set[HostProcess] = set()
        self._retirements = TaskBag()

    def get(self, session: Session) -> HostProcess | None:
        host = self._hosts.get(session)
        return None if host is None or host.is_closed else host

    def use(self, session: Session) -> HostProcess | None:
        """Return the same as `get`, and mark the session as used."""
        if session in self._hosts:
            self._hosts[session] = self._hosts.pop(session)
        return self.get(session)

    def add(self, session: Session, host: HostProcess, *, used: bool = True) -> None:
        """Add a session, as the one used last, or else as the first to evict."""
        if used:
            self._hosts[session] = host
        else:
            self._hosts = {session: host, **self._hosts}

    def sessions(self) -> list[Session]:
        """Return all sessions, the most recently used first."""
        return [session for session, host in reversed(self._hosts.items()) if not host.is_closed]

    def by_use(self) -> list[tuple[Session, HostProcess]]:
        """Return all sessions with their hosts, the least recently used first."""
        return list(self._hosts.items())

    def last_used(self) -> dict[HostProcess, Session]:
        """Return the hosts, each with its session that was used last."""
        return {host: session for session, host in self._hosts.items()}

    def has_engine(self, engine: EngineName) -> bool:
        return any(each.engine == engine for each in self.sessions())

    def is_only_session(self, session: Session, host: HostProcess) -> bool:
        return all(other is not host for each, other in self._hosts.items() if each != session)

    def hosts(self) -> set[HostProcess]:
        """Return all hosts, also those that complete their last runs."""
        return {*self._hosts.values(), *self._retiring}

    def rss_bytes(self) -> int:
        return sum(rss_bytes(host.pid) for host in self.hosts())

    async def evict_session(self, session: Session, host: HostProcess) -> None:
        """Free an idle session: its variant if its host has others, or else the host."""
        if self._hosts.get(session) is not host:
            return
        only = self.is_only_session(session, host)
        self.forget(session, no_room=True)
        if only:
            await host.close()
            return
        with suppress(Unavailable):  # it died, which frees even more
            answer = host.unload_variant(session.configuration.variant)
            await asyncio.wait([answer], timeout=UNLOAD_WAIT_S)

    def retire_host(self, host: HostProcess) -> None:
        """Let a host complete its runs, and close it then."""
        sessions = self._sessions_of(host)
        for session in sessions:
            del self._hosts[session]
        self._retiring.add(host)
        self._retirements.start(self._close_when_idle(host, host.retire(), sessions))

    def forget_host(self, host: HostProcess) -> None:
        """Remove the sessions of a host that has exited or is closing."""
        for session in self._sessions_of(host):
            self.forget(session)

    def forget(self, session: Session, *, no_room: bool = False) -> None:
        """Remove a session, which is freed or has failed."""
        del self._hosts[session]
        self._on_change(SessionChange(session, resident=False, no_room=no_room))

    async def close(self) -> None:
        await asyncio.gather(*(host.close() for host in self.hosts()))
        await self._retirements.wait()
        self._hosts.clear()

    def _sessions_of(self, host: HostProcess) -> list[Session]:
        return [session for session, each in self._hosts.items() if each is host]

    async def _close_when_idle(
        self, host: HostProcess, idle: asyncio.Future[None], sessions: Iterable[Session]
    ) -> None:
        """Close a host after its last run, which needs its session until then."""
        await idle
        for session in sessions:
            if session not in self._hosts:
                self._on_change(SessionChange(session, resident=False))
        await host.close()
        self._retiring.remove(host)


def is_idle(session: Session, host: HostProcess) -> bool:
    """Return whether no run needs a session: none of its variant, or none at all without one."""
    variant = session.configuration.variant
    return not host.needs(variant) if variant else host.is_idle


class UnusableSessions:
    """Sessions whose execution provider or variant cannot be used.

    They are remembered until the engine's files change, because every attempt costs a start of the
    runtime.
    """

    def __init__(self, on_change: Callable[[EngineName], None]) -> None:
        self._reasons: dict[Session, str] = {}
        self._suspected: set[Session] = set()
        self._on_change = on_change

    def __contains__(self, session: Session) -> bool:
        return session in self._reasons

    def listed(self) -> list[UnusableSession]:
        return sorted(UnusableSession(*item) for item in self._reasons.items())

    def error(self, session: Session) -> ConfigurationUnusable | None:
        reason = self._reasons.get(session)
        return None if reason is None else ConfigurationUnusable(reason)

    def is_suspected(self, session: Session) -> bool:
        return session in self._suspected

    def suspect(self, session: Session) -> None:
        """Remember that a host with queries has crashed while it loaded a session."""
        self._suspected.add(session)

    def acquit(self, session: Session) -> None:
        """Forget that a session was suspected, because it was loaded."""
        self._suspected.discard(session)

    def add(self, session: Session, reason: str) -> None:
        """Remember that an engine cannot be run with the provider or the variant of `session`."""
        self._reasons[session] = printable(reason)
        _log.warning("%s is not used with %s: %s", session.engine, session.configuration, reason)
        self._on_change(session.engine)

    def forget(self, engine: EngineName) -> None:
        """Forget the sessions of an engine, because its files have changed."""
        self._suspected = {each for each in self._suspected if each.engine != engine}
        kept = {each: reason for each, reason in self._reasons.items() if each.engine != engine}
        if len(kept) < len(self._reasons):
            self._reasons = kept
            self._on_change(engine)


def is_due_to_configuration(session: Session, error: SynergaiError) -> bool:
    """Return whether the provider or the variant of a session is the cause of a failed load.

    The engine itself has been loaded before, on the CPU and with another variant.
    """
    configuration = session.configuration
    return bool(configuration.execution_provider or configuration.variant) and isinstance(
        error, (EngineUnusable, LoadCrashed)
    )
