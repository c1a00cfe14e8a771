"""Power of the workers' machines, and the energy attributed to each engine.

A machine's energy cannot be measured per process. An engine is therefore charged the machine's
mean power, idle power included, for its compute time. Energy used while nothing computes is
attributed to the machine only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gateway.fleet.agent_validation import ProtocolViolation

if TYPE_CHECKING:
    from synergai.domain import EngineName
    from synergai.v1 import hub_pb2


@dataclass(slots=True, eq=False, kw_only=True)
class WorkerPower:
    """Power of a worker's machine, as reported by its agent.

    Attributes:
        joules: energy since the agent started; None if not measured.
        engines: energy since the worker joined, in joules, by engine.
    """

    mode: str = ""
    switch_s: float = 0.0
    meter: str = ""
    watts: float | None = None
    joules: float | None = None
    engines: dict[EngineName, float] = field(default_factory=dict)
    _computed: dict[EngineName, float] = field(default_factory=dict)
    _metered_at: float = 0.0

    def add_compute(self, engine: EngineName, seconds: float) -> None:
        """Record compute time of an engine, which a meter charges at the next heartbeat."""
        self._computed[engine] = self._computed.get(engine, 0.0) + seconds

    def update(self, draw: hub_pb2.Draw, now: float) -> None:
        """Record the power draw of a heartbeat, and charge the engines that computed since."""
        if not (math.isfinite(draw.watts) and math.isfinite(draw.joules)):
            raise ProtocolViolation("power and energy must be finite numbers")
        if draw.watts < 0 or draw.joules < (self.joules or 0.0):
            raise ProtocolViolation("power must not be negative, and energy must not decrease")
        if self.joules is not None:
            # Engines running side by side compute for longer than the elapsed time.
            elapsed_s = max(now - self._metered_at, sum(self._computed.values()))
            watts = (draw.joules - self.joules) / elapsed_s if elapsed_s > 0 else 0.0
            for engine, seconds in self._computed.items():
                self.engines[engine] = self.engines.get(engine, 0.0) + watts * seconds
        self.watts, self.joules = draw.watts, draw.joules
        self._computed.clear()
        self._metered_at = now
