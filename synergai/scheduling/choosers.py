"""The interface between the core and the rules that choose variants."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from msgspec import Struct

from synergai.runtime.plugins import Registry

if TYPE_CHECKING:
    from collections.abc import Sequence, Set

    from synergai.domain import EngineName
    from synergai.scheduling.fronts import Front
    from synergai.scheduling.state import WorkerRecord


class Query(Struct, frozen=True):
    """A request that a worker runs next, in a variant to be chosen.

    Attributes:
        engine: its engine.
        worker: where it runs.
        front: the variants that it may use.
        starts_at: when it is expected to start.
        deadline: its deadline; infinite if it has none.
        now: the instant of the event.
        limits: knows what its deadline and the requests that wait behind it need.
    """

    engine: EngineName
    worker: WorkerRecord
    front: Front
    starts_at: float
    deadline: float
    now: float
    limits: Limits

    @property
    def fastest_s(self) -> float:
        """Seconds of the engine's fastest variant on the worker; the unit of the front's costs."""
        return self.front.fastest_s

    @property
    def left_s(self) -> float:
        """Seconds from its start to its deadline; infinite if it has none."""
        return self.deadline - self.starts_at

    def in_time(self, at: int) -> int:
        """Return the slowest variant, up to a given one, that keeps the deadlines.

        That is its own deadline, and those of the requests that wait behind it. The fastest if
        there is none.
        """
        return self.limits.slowest_in_time(self, at) if at else 0


class Limits(Protocol):
    """Limits on the variant of a single request."""

    def slowest_in_time(self, query: Query, at: int) -> int:
        """Return the slowest variant, up to a given one, that keeps the deadlines."""


class Load(Protocol):
    """Information for a rule about the engines with variants that share workers."""

    @property
    def sharing(self) -> Set[EngineName]:
        """Engines with variants that share a worker with others of them."""

    def allowance(self, engine: EngineName, now: float) -> float:
        """Return the mean cost that a query may have, in times of the fastest variant."""

    def arrivals_per_s(self, engine: EngineName, now: float) -> float:
        """Return how many requests of the engine arrived within the last second."""

    def deadline_s(self, engine: EngineName) -> float:
        """Return the mean time that requests have; infinite if they have no deadlines."""

    def workers(self, engine: EngineName) -> Sequence[WorkerRecord]:
        """Return the workers that have the engine."""


class Chooser(Protocol):
    """Chooses the variants of requests."""

    def choose(self, query: Query) -> int:
        """Return the number of a variant of the query's front."""


CHOOSERS: Final = Registry[Chooser](
    "synergai.choosers",
    {
        "allowance": "synergai.scheduling.credit:Allowance",
        "largest": "synergai.simulator.accuracy.choosers:Largest",
        "smallest": "synergai.simulator.accuracy.choosers:Smallest",
        "chain": "synergai.simulator.accuracy.choosers:Chain",
        "model-switching": "synergai.simulator.accuracy.choosers:ModelSwitching",
        "slackfit": "synergai.simulator.accuracy.choosers:SlackFit",
    },
)
"""Rules by name. All but the first are those of others, for comparison."""
