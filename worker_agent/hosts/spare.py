"""The agent's side of an engine host that starts before its engine is known."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from synergai.domain import EngineName
from worker_agent.hosts.child import Child
from worker_agent.hosts.launch import Launch

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from synergai.domain import Session


class SpareHost:
    """A host without an engine. Created by `start`."""

    def __init__(self, launch: Launch, child: Child) -> None:
        self._launch = launch
        self._child = child

    @classmethod
    async def start(cls) -> SpareHost:
        """Start the process, which is ready a quarter of a second later."""
        with Launch.prepare_spare() as launch:
            return cls(launch, await Child.start(launch, EngineName("")))

    def become(
        self, models: Path, session: Session, cores: Sequence[int], data_bytes: int
    ) -> tuple[Launch, Child]:
        """Let it load an engine; it is that of a `HostProcess` then.

        Raises:
            OSError: it has exited.
        """
        arguments = self._launch.arguments(models, session, cores, data_bytes)
        try:
            self._launch.agent_socket.sendall(json.dumps(arguments).encode() + b"\n")
        except OSError:
            self._launch.close()
            raise
        self._child.engine = session.engine
        return self._launch, self._child

    @property
    def pid(self) -> int:
        """Process id of the host."""
        return self._child.pid

    async def close(self) -> None:
        """End it."""
        self._launch.close()
        self._child.kill()
        await self._child.wait_exit()
