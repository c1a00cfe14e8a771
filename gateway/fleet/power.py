"""What the machines of the fleet draw, and which engines that is charged to.

A machine's energy cannot be told apart by process. So an engine is charged the machine's power,
idle power included, for the time that it computed; what is drawn while nothing computes is
charged to the machine only.
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
    """The power of a worker's machine, as its agent reports it.

    Attributes:
        mode: the power mode in force; empty if there is none, or none is known.
        switch_s: what the last switch took; 0 before the first.
        meter: what measures; empty if nothing does.
        watts: mean power over the last heartbeat; None where it is not measured.
        joules: energy since the agent started; None likewise.
        engines: energy since the worker joined, by engine, in joules.
    """

    mode: str = ""
    switch_s: float = 0.0
    meter: str = ""
    watts: float | None = None
    joules: float | None = None
    engines: dict[EngineName, float] = field(default_factory=dict)
    _computed: dict[EngineName, float] = field(default_factory=dict)
    _metered_at: float = 0.0

    def computed(self, engine: EngineName, seconds: float) -> None:
        """An engine has computed for so long; it is charged with the next heartbeat."""
        if self.meter:
            self._computed[engine] = self._computed.get(engine, 0.0) + seconds

    def metered(self, draw: hub_pb2.Draw, now: float) -> None:
        """Take in what a heartbeat says.

        Raises:
            ProtocolViolation: a figure is impossible, or the energy has become less.
        """
        if not (math.isfinite(draw.watts) and math.isfinite(draw.joules)):
            raise ProtocolViolation("a machine's power must be a number")
        if draw.watts < 0 or draw.joules < (self.joules or 0.0):
            raise ProtocolViolation("a machine cannot give energy back")
        if self.joules is not None:
            # Engines that ran side by side computed for longer than it took.
            elapsed_s = max(now - self._metered_at, sum(self._computed.values()))
            watts = (draw.joules - self.joules) / elapsed_s if elapsed_s > 0 else 0.0
            for engine, seconds in self._computed.items():
                self.engines[engine] = self.engines.get(engine, 0.0) + watts * seconds
        self.watts, self.joules = draw.watts, draw.joules
        self._computed.clear()
        self._metered_at = now
