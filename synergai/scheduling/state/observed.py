"""What the reports of a worker have shown, which corrects the estimates of its engines."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from synergai.domain import EngineName


@dataclass(slots=True, eq=False)
class Observed:
    """What the reports of a worker have shown so far, by engine.

    Attributes:
        typical: the median of single queries' paces, roughly.
        requests: requests behind the pace of an engine that was measured with a single one.
        setup: observed over profiled setup time; also by whether the session was added to a host
            that had others of its engine.
        transfer_s: additional time per query that came with its tensors.
        switch_s: time of a power mode switch; None if there was none.
    """

    pace: dict[EngineName, float] = field(default_factory=dict)
    typical: dict[EngineName, float] = field(default_factory=dict)
    requests: Counter[EngineName] = field(default_factory=Counter)
    setup: dict[tuple[EngineName, bool], float] = field(default_factory=dict)
    transfer_s: dict[EngineName, float] = field(default_factory=dict)
    switch_s: float | None = None

    def void_pace(self, engine: EngineName) -> None:
        """Forget the pace of an engine, as a profile that it relates to is replaced."""
        self.pace.pop(engine, None)
        self.typical.pop(engine, None)
        del self.requests[engine]
