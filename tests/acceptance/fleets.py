"""Fleets whose processes are killed and restarted."""

import contextlib
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final

import psutil

from demo.local_fleet import LocalFleet

HOST: Final = "engine host"
"""Stands for an engine host of any agent."""
PLANNER: Final = "planner"
"""Stands for the process in which the gateway plans or cuts an engine."""
TEMPORARY: Final = "temporary"
"""Folder for the temporary files of all processes, which tells them from others as well."""


class KilledFleet:
    """A gateway and agents that are killed and restarted."""

    def __init__(
        self,
        directory: Path,
        agents: Mapping[str, Path],
        *,
        gateway: Sequence[str] = (),
        options: Mapping[str, Sequence[str]] = MappingProxyType({}),
        prefixes: Mapping[str, Sequence[str]] = MappingProxyType({}),
    ) -> None:
        self.local = LocalFleet(directory)
        self.temporary = directory / TEMPORARY
        self.temporary.mkdir()
        self._agents = agents
        self._gateway = gateway
        self._options = options
        self._prefixes = prefixes

    def start_all(self) -> None:
        for name in ("gateway", *self._agents):
            self.start(name)
        self.local.wait_for_workers(len(self._agents))

    def kill(self, victim: str, rng: random.Random) -> bool:
        """Kill a process, and restart it if it is the gateway or an agent; False if not there."""
        if victim in (HOST, PLANNER):
            parent = "gateway" if victim == PLANNER else rng.choice(list(self._agents))
            with contextlib.suppress(psutil.NoSuchProcess):
                if children := self.children(parent):
                    rng.choice(children).kill()
                    return True
            return False
        if victim not in ("gateway", *self.local.agents):
            return False
        self.local.kill(victim)
        time.sleep(rng.uniform(0.0, 0.2))
        self.start(victim)
        return True

    def children(self, name: str) -> list[psutil.Process]:
        """Return the engine hosts of an agent, or the processes in which the gateway plans."""
        parent = self.local.gateway if name == "gateway" else self.local.agents.get(name)
        return [] if parent is None else psutil.Process(parent.pid).children()

    def stop(self, name: str) -> None:
        """Stop an agent in an orderly way."""
        agent = self.local.agents.pop(name)
        agent.terminate()
        agent.wait()

    def start(self, name: str) -> None:
        """Start the gateway or an agent."""
        prefix = ["env", f"TMPDIR={self.temporary}", *self._prefixes.get(name, ())]
        if name == "gateway":
            self.local.start_gateway(self._gateway, prefix)
        else:
            options = ["--threads", "1", *self._options.get(name, ())]
            self.local.start_agent(name, models=self._agents[name], options=options, prefix=prefix)

    def find_leftovers(self) -> Iterator[str]:
        """Yield the processes and temporary files that are left of a fleet that has stopped."""
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get("TMPDIR") == str(self.temporary):
                    yield f"process {process.pid} is left: {process.cmdline()}"
        yield from (f"{path} is left" for path in self.temporary.iterdir())
