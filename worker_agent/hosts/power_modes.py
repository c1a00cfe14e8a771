"""Engine hosts that run in the power mode of their session: the machine is switched first."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from synergai.errors import NotSupported, Unavailable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from synergai.domain import Session
    from worker_agent.hosts.pool import HostPool
    from worker_agent.hosts.process import HostProcess
    from worker_agent.power.controller import PowerMode
    from worker_agent.power.manager import PowerManager


class PowerModeHosts:
    """The runner's hosts on a machine with power modes; see ``worker_agent.runner.HostPool``.

    The runner asks for another session only when nothing runs, so a switch never disturbs work,
    and what it takes counts as the setup of the work that it is for.

    Args:
        hosts: the machine's engine hosts.
    """

    def __init__(self, hosts: HostPool) -> None:
        self._hosts = hosts
        self._power: PowerManager | None = None
        self._loads: set[asyncio.Task[HostProcess]] = set()

    def use(self, power: PowerManager) -> None:
        """From now on, switch with `power`."""
        self._power = power

    @property
    def mode(self) -> str:
        """The power mode in force; empty if there is none, or none is known."""
        return "" if self._power is None else self._power.mode

    @property
    def modes(self) -> Sequence[PowerMode]:
        """What the machine can be switched to, the mode in force last; maybe nothing."""
        if self._power is None:
            return ()
        in_force = self._power.mode
        return sorted(self._power.modes, key=lambda mode: mode.name == in_force)

    def resident(self, session: Session) -> HostProcess | None:
        """The host of `session`, if it is up and the machine is in its mode."""
        return self._hosts.resident(session) if self._is_in_mode(session) else None

    def load(self, session: Session) -> asyncio.Task[HostProcess]:
        """Put the session's mode in force, and bring it into memory.

        The task raises what `HostPool.load` raises, and Unavailable if the machine does not switch.
        """
        if self._is_in_mode(session):
            return self._hosts.load(session)
        task = asyncio.create_task(self._switch_and_load(session))
        self._loads.add(task)
        task.add_done_callback(self._loads.discard)
        return task

    async def close(self) -> None:
        """Leave what is being loaded, and the power modes."""
        for task in self._loads:
            task.cancel()
        await asyncio.gather(*self._loads, return_exceptions=True)
        if self._power is not None:
            await self._power.close()

    def _is_in_mode(self, session: Session) -> bool:
        mode = session.configuration.power_mode
        return self._power is None or not mode or mode == self._power.mode

    async def _switch_and_load(self, session: Session) -> HostProcess:
        mode = session.configuration.power_mode
        # Sessions were tuned to the cores of their mode; some runtimes even abort when the cores
        # that they started on are gone.
        for other in self._hosts.sessions():
            if other.configuration.power_mode != mode:
                await self._hosts.unload(other)
        if self._power is not None:
            try:
                await self._power.ensure(mode)
            except NotSupported as error:  # the engine is not to blame
                raise Unavailable(str(error)) from error
        return await self._hosts.load(session)
