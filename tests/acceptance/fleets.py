"""Fleets whose processes are killed and restarted."""

import contextlib
import random
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final

import psutil

from demo.local_fleet import LocalFleet

HOST: Final = "engine host"
"""Stands for an engine host of any agent."""


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
        self._agents = agents
        self._gateway = gateway
        self._options = options
        self._prefixes = prefixes

    def start(self) -> None:
        for name in ("gateway", *self._agents):
            self._start(name)
        self.local.wait_for_workers(len(self._agents))

    def kill(self, victim: str, rng: random.Random) -> bool:
        """Kill the gateway, an agent or a host, and restart it; False if there is none."""
        if victim == HOST:
            with contextlib.suppress(psutil.NoSuchProcess):
                agent = psutil.Process(self.local.agents[rng.choice(list(self._agents))].pid)
                if hosts := agent.children():
                    rng.choice(hosts).kill()
                    return True
            return False
        self.local.kill(victim)
        time.sleep(rng.uniform(0.0, 0.2))
        self._start(victim)
        return True

    def _start(self, name: str) -> None:
        if name == "gateway":
            self.local.start_gateway(self._gateway)
        else:
            options = ["--threads", "1", *self._options.get(name, ())]
            prefix = self._prefixes.get(name, ())
            self.local.start_agent(name, models=self._agents[name], options=options, prefix=prefix)
