"""The way of a query through its engine, which may end at an early exit.

A query runs whole, or through stages. Behind an exit, it continues with the tensor of the stage, or
begins again with its inputs on a worker that has the engine whole, whatever is expected to be
faster. How often queries leave at an exit is learned, from the rate of its calibration on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct

from gateway.fleet.stages import whole_engine
from synergai.errors import InvalidInput
from synergai.protocol.validation import DROP, STAY
from synergai.versions import split_version

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gateway.fleet.catalogue import Catalogue
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


class Way(Struct, frozen=True):
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
        return whole_engine(self.engines) if last.stage_of else last

    @property
    def has_exits(self) -> bool:
        """Whether queries may leave behind one of the engines, or are asked to stay."""
        return _has_exits(self.engines)

    def may_leave(self, position: int) -> bool:
        """Return whether queries may leave behind one of the engines."""
        exit_ = self.engines[position].exit
        return exit_ is not None and exit_.accuracy >= self.floor

    def begins_again(self, position: int) -> bool:
        """Return whether one of the engines gets the inputs of the query once more."""
        return 0 < position < len(self.engines) and not self.engines[position].stage_of

    def asks(self, position: int) -> str:
        """Return what a request asks of the exit of its stage; see `EXIT`; empty for nothing."""
        if self.engines[position].exit is not None and not self.may_leave(position):
            return STAY
        return DROP if self.begins_again(position + 1) else ""

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


class Ways:
    """Finds the ways through engines.

    Attributes:
        rates: those of all exits.
    """

    def __init__(self, catalogue: Catalogue) -> None:
        self.catalogue = catalogue
        self.rates = ExitRates()

    def find(
        self,
        engine: EngineName,
        floor: float,
        seconds: Callable[[Engine], float],
        rate: Callable[[Engine], float],
    ) -> Way | None:
        """Return the way that is expected to be the fastest; None if a query just runs whole."""
        catalogue = self.catalogue
        chains, early = catalogue.open_chains(engine), catalogue.early_stages(engine)
        if not (chains or early):
            return None
        whole = catalogue.whole(engine)
        ways = list(_ways(whole, chains, early, floor))
        if not ways and chains:
            raise _floor_not_reached(engine, floor, max(map(_accuracy, chains)))
        best = min(ways, key=lambda way: way.seconds(seconds, rate), default=None)
        return None if best is None or best.engines == (whole,) else best

    def has_exits(self, engine: EngineName) -> bool:
        """Return whether queries of an engine may leave at exits."""
        chains, early = self.catalogue.open_chains(engine), self.catalogue.early_stages(engine)
        return bool(early) or any(_has_exits(chain) for chain in chains)


def _ways(
    whole: Engine | None,
    chains: Sequence[tuple[Engine, ...]],
    early: tuple[Engine, ...],
    floor: float,
) -> Iterator[Way]:
    if whole is not None:
        yield Way((whole,), floor)
        for count, stage in enumerate(early, 1):
            if stage.stage_of not in whole.digests or not Way((stage,), floor).may_leave(0):
                break
            yield Way((*early[:count], whole), floor)
    for chain in chains:
        if (whole is None or _has_exits(chain)) and _accuracy(chain) >= floor:
            yield Way(chain, floor)


def _has_exits(stages: tuple[Engine, ...]) -> bool:
    return any(stage.exit for stage in stages)


def _accuracy(stages: tuple[Engine, ...]) -> float:
    """Return the accuracy of an engine without exits, as its stages with exits have it; or 0."""
    return max((each.exit.whole_accuracy for each in stages if each.exit), default=0.0)


def _floor_not_reached(engine: EngineName, floor: float, accuracy: float) -> InvalidInput:
    name, _ = split_version(engine)
    if accuracy:
        return InvalidInput(
            f"engine {name!r} does not reach an accuracy of {floor:g}: in stages, it has "
            f"{accuracy:.4g}"
        )
    return InvalidInput(
        f"the accuracy of engine {name!r} in stages is not known, so a floor of {floor:g} cannot "
        "be guaranteed; make them with 'synergai engines exits', or omit the floor"
    )
