"""Sessions that a worker cannot run, although it can run their engine in other configurations."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from synergai.domain import UnusableSession
from synergai.errors import ConfigurationUnusable, EngineUnusable
from synergai.runtime.text import printable
from worker_agent.hosts.loads import LoadCrashed

if TYPE_CHECKING:
    from collections.abc import Callable

    from synergai.domain import EngineName, Session
    from synergai.errors import SynergaiError

_log = logging.getLogger(__name__)


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
        """Return the unusable sessions, sorted."""
        return sorted(UnusableSession(*item) for item in self._reasons.items())

    def error(self, session: Session) -> ConfigurationUnusable | None:
        """Return why a session cannot be used; None if it can."""
        reason = self._reasons.get(session)
        return None if reason is None else ConfigurationUnusable(reason)

    def is_suspected(self, session: Session) -> bool:
        """Return whether a host that computed queries has crashed while it loaded the session."""
        return session in self._suspected

    def add(self, session: Session, reason: str) -> None:
        """Remember that an engine cannot be run with the provider or the variant of `session`."""
        self._reasons[session] = printable(reason)
        _log.warning("%s is not used with %s: %s", session.engine, session.configuration, reason)
        self._on_change(session.engine)

    def suspect(self, session: Session) -> None:
        """Remember that a host that computed queries crashed while it loaded `session`."""
        self._suspected.add(session)

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
