"""The route of a query: the engines that it passes in order, until it leaves at an early exit.

A query runs whole, or in stages. Behind an exit, it continues with the tensors of the stage, or
begins again with its inputs on a worker that has the engine whole, whatever is expected to be
faster. How often queries leave at an exit is learned, from the rate of its calibration on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from synergai.names import engine_of_stage

if TYPE_CHECKING:
    from collections.abc import Callable

    from synergai.domain import Engine, EngineName

_PRIOR: Final = 10.0
"""Queries that the calibrated rate of an exit counts for."""
_HORIZON: Final = 200.0
"""Queries over which the rate of an exit is learned."""
MOST_EXITS: Final = 4096
"""Exits that are remembered, those that were seen last: stages come and go with their versions."""


class ExitRates:
    """Shares of the queries that leave at exits, as far as they have got there."""

    def __init__(self) -> None:
        # By name and digest of the stage: queries that left, and all, older ones with less weight.
        self._seen: dict[tuple[EngineName, str], tuple[float, float]] = {}

    def rate(self, stage: Engine) -> float:
        """Return the share that leaves at the exit of a stage."""
        left, queries = self._counts(stage)
        return left / queries

    def learned(self, engine: Engine) -> Engine:
        """Return an engine, with the rate of its exit as it was learned."""
        if engine.exit is None:
            return engine
        return replace(engine, exit=replace(engine.exit, rate=self.rate(engine)))

    def observe(self, stage: Engine, *, left: bool) -> None:
        """Learn from a query that was free to leave."""
        kept = 1 - 1 / _HORIZON
        before, queries = self._counts(stage)
        self._seen.pop((stage.name, stage.digest), None)
        self._seen[stage.name, stage.digest] = kept * before + left, kept * queries + 1
        if len(self._seen) > MOST_EXITS:
            del self._seen[next(iter(self._seen))]

    def _counts(self, stage: Engine) -> tuple[float, float]:
        calibrated = 0.0 if stage.exit is None else stage.exit.rate
        return self._seen.get((stage.name, stage.digest), (_PRIOR * calibrated, _PRIOR))


class Route(Struct, frozen=True):
    """Engines that a query runs through, one after the other.

    Attributes:
        engines: stages; or stages with exits and the whole engine behind them, or that alone.
        floor: accuracy that the exits must hold for queries to leave there.
    """

    engines: tuple[Engine, ...]
    floor: float = 0.0

    @property
    def whole(self) -> Engine:
        """The engine as clients see it."""
        last = self.engines[-1]
        return _whole_engine(self.engines) if last.stage_of else last

    @property
    def has_exits(self) -> bool:
        """Whether queries may leave behind one of the engines, or are asked to stay."""
        return any(engine.exit for engine in self.engines)

    def is_last(self, position: int) -> bool:
        """Return whether no engine is behind the one at a position."""
        return position + 1 == len(self.engines)

    def may_leave(self, position: int) -> bool:
        """Return whether queries may leave behind one of the engines."""
        exit_ = self.engines[position].exit
        return exit_ is not None and exit_.accuracy >= self.floor

    def begins_again(self, position: int) -> bool:
        """Return whether one of the engines gets the inputs of the query once more."""
        return 0 < position < len(self.engines) and not self.engines[position].stage_of

    def seconds(
        self,
        seconds: Callable[[Engine], float],
        rate: Callable[[Engine], float],
        begin: int = 0,
    ) -> float:
        """Return the expected time of a query from one of the engines on."""
        total, share = 0.0, 1.0
        for position, engine in enumerate(self.engines[begin:], begin):
            total += share * seconds(engine)
            if self.may_leave(position):
                share *= 1 - rate(engine)
        return total


def _whole_engine(stages: tuple[Engine, ...]) -> Engine:
    first, last = stages[0], stages[-1]
    return replace(
        first,
        name=engine_of_stage(first.name),
        outputs=last.outputs,
        postprocess=last.postprocess,
        digest=first.stage_of,
        samples=0,
        samples_digest="",
        max_batch=min(stage.max_batch for stage in stages),
        unverified=next((stage.unverified for stage in stages if stage.unverified), ""),
        query_s=sum(stage.query_s for stage in stages),
        stage_of="",
        stage_end=0,
    )
