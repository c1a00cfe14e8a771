"""Engine hosts on a machine with power modes, which is switched before a session is loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from synergai.errors import NotSupported, Unavailable
from synergai.runtime.tasks import TaskBag

if TYPE_CHECKING:
    import asyncio

    from synergai.domain import Session
    from worker_agent.hosts.pool import HostPool
    from worker_agent.hosts.process import HostProcess
    from worker_agent.power.manager import PowerManager


class PowerModeHosts:
    """Host pool that switches power modes.

    The runner requests another session only when nothing runs, so a switch never disturbs running
    work, and its duration is setup time of the work that needs it.
    """

    def __init__(self, hosts: HostPool, power: PowerManager) -> None:
        self._hosts = hosts
        self._power = power
        self._switching = TaskBag()

    @property
    def mode(self) -> str:
        """The active power mode; empty if unknown or not applicable."""
        return self._power.mode

    def get_resident(self, session: Session) -> HostProcess | None:
        """Return the host of `session` if it is resident and its power mode is active."""
        return self._hosts.get_resident(session) if self._mode_is_active(session) else None

    def load(self, session: Session) -> asyncio.Task[HostProcess]:
        """Switch to the session's power mode and load it.

        The task raises the exceptions of `HostPool.load`, and Unavailable if switching fails.
        """
        if self._mode_is_active(session):
            return self._hosts.load(session)
        return self._switching.start_awaited(self._switch_and_load(session))

    async def close(self) -> None:
        await self._switching.close()
        await self._hosts.close()

    def _mode_is_active(self, session: Session) -> bool:
        mode = session.configuration.power_mode
        return not mode or mode == self._power.mode

    async def _switch_and_load(self, session: Session) -> HostProcess:
        mode = session.configuration.power_mode
        # Sessions are tuned to the cores of their mode; some runtimes even abort when the cores
        # that they started on go offline.
        self._hosts.end_preloads("was aborted for a switch of the power mode")
        for other in self._hosts.resident_sessions():
            if other.configuration.power_mode != mode:
                await self._hosts.unload(other)
        try:
            await self._power.ensure(mode)
        except NotSupported as error:  # not a fault of the engine
            raise Unavailable(str(error)) from error
        return await self._hosts.load(session)
