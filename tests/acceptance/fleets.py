"""Fleets whose processes are killed and restarted."""

import contextlib
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import psutil

from synergai.testing import LocalFleet

HOST: Final = "engine host"
"""Stands for an engine host of any agent."""


class KilledFleet:
    """A gateway and agents that are killed and restarted.

    Args:
        directory: state and logs.
        models: the agents' model directory.
        agents: their names.
        gateway: further options of the gateway.
        options: further options of the agents.
    """

    def __init__(
        self,
        directory: Path,
        models: Path,
        agents: Sequence[str],
        *,
        gateway: Sequence[str] = (),
        options: Sequence[str] = (),
    ) -> None:
        self.local = LocalFleet(directory)
        self._models = models
        self._agents = agents
        self._gateway = gateway
        self._options = options

    def start(self) -> None:
        """Start all processes, and wait for the agents."""
        for name in ("gateway", *self._agents):
            self._start(name)
        self.local.wait_for_workers(len(self._agents))

    def kill(self, victim: str, rng: random.Random) -> bool:
        """Kill the gateway, an agent or a host, and restart it; False if there is none."""
        if victim == HOST:
            with contextlib.suppress(psutil.NoSuchProcess):
                agent = psutil.Process(self.local.agents[rng.choice(self._agents)].pid)
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
            options = ["--threads", "1", *self._options]
            self.local.start_agent(name, models=self._models, options=options)
