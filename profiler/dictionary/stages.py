"""Times of stages: the parts of an engine between two of its cuts.

For some cuts, the dictionary has the part before it, the head, and the part behind it, the tail,
as entries of stages. Together, the two may take longer than the whole engine, since runtimes
convert the layout of a tensor that leaves or enters, or less, since the weights of a tail alone may
stay in the processor's caches. This cost of a cut and the times of heads follow for the other cuts
by interpolation over the estimated work, and those of all stages from both.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from statistics import fmean
from typing import TYPE_CHECKING, Final, NamedTuple

from synergai.domain import Configuration
from synergai.errors import NotFound
from synergai.names import stage_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from synergai.domain import EngineName, WorkerClass
    from synergai.profiles.dictionary import ConfigurationDictionary


CUT_S: Final = 0.0004
"""Time that a cut costs where none was measured: the conversion of the layout of a tensor."""
_ROUNDING: Final = 1e-9
"""Heads that are closer together are equal: means of the same numbers differ by rounding."""


class StageTime(NamedTuple):
    """Time of a query of a stage.

    Attributes:
        measured: whether the dictionary has it; otherwise, it is a prediction.
    """

    seconds: float
    measured: bool


class StageTimes:
    """Times of all stages of an engine on a worker class in a configuration.

    Args:
        works: estimated share of the engine's work before each of its cuts, ascending, 0 to 1.

    Attributes:
        heads: seconds from the inputs to each cut; the first is 0, the last is the whole engine's.
        costs: seconds that the parts on both sides of each cut take more than the whole, negative
            if they take less; 0 at the inputs and the outputs.

    Raises:
        NotFound: the dictionary lacks the engine, or both parts at every cut.
    """

    def __init__(
        self,
        dictionary: ConfigurationDictionary,
        engine: EngineName,
        works: Sequence[float],
        worker_class: WorkerClass,
        configuration: Configuration,
    ) -> None:
        self._dictionary = dictionary
        self._engine = engine
        self._worker_class = worker_class
        self.configuration = configuration
        self._end = len(works) + 1
        whole_s = self._seconds(engine)
        known = {
            position: (head_s, tail_s)
            for position in range(1, self._end)
            if (head_s := self._seconds(stage_name(engine, 0, position))) is not None
            and (tail_s := self._seconds(stage_name(engine, position, self._end))) is not None
        }
        if whole_s is None or not known:
            raise NotFound(
                f"the dictionary has no {'entry' if whole_s is None else 'stages'} of {engine!r} "
                f"on {worker_class} with {configuration}; measure them with 'synergai profile "
                f"--stages --engines {engine}'"
            )
        shares = [0.0, *works, 1.0]
        positions = sorted(known)
        heads = _ascending(positions, [known[position][0] for position in positions], whole_s)
        self.heads = _interpolate(shares, [0, *heads, self._end], [0.0, *heads.values(), whole_s])
        # Of these heads, so that what is left for a tail between two known ones is never negative.
        costs = [self.heads[position] + known[position][1] - whole_s for position in positions]
        # The nearest known cut stands for those near the ends; but no tail saves all its time.
        at_end = max(0.0, costs[-1])
        self.costs = _interpolate(shares, [0, *positions, self._end], [costs[0], *costs, at_end])
        self.costs[0] = self.costs[-1] = 0.0

    def of(self, first: int, last: int) -> StageTime:
        """Return the time of the stage between two cuts; an entry of it beats a prediction.

        Args:
            first: number of a cut; 0 for the inputs of the engine.
            last: number of a later cut; one more than there are for the outputs.
        """
        whole = (first, last) == (0, self._end)
        name = self._engine if whole else stage_name(self._engine, first, last)
        known = self._seconds(name)
        if known is not None:
            return StageTime(known, measured=True)
        cost = self.costs[first]
        if last < self._end:  # what a tail saves says nothing about other stages
            cost = max(0.0, cost)
        predicted = self.heads[last] - self.heads[first] + cost
        return StageTime(predicted, measured=False)

    def _seconds(self, engine: EngineName) -> float | None:
        entry = self._dictionary.row(engine, self._worker_class).get(self.configuration)
        return None if entry is None else 1 / entry.qps


class ClassTimes(NamedTuple):
    """Times of an engine and its stages on a worker class.

    Attributes:
        seconds: time of one query in the stage between two positions, as ``seconds[first][last]``;
            infinite where it is not known.
        whole: the fastest configuration of the whole engine.
        staged: the fastest one in which stages were measured; None if there is none.
        watts: power of the machine while the whole engine ran; 0 if that is not known.
    """

    seconds: tuple[tuple[float, ...], ...]
    whole: Configuration
    staged: Configuration | None
    watts: float = 0.0


def class_times(
    dictionary: ConfigurationDictionary,
    engine: EngineName,
    worker_class: WorkerClass,
    works: Sequence[float],
    positions: Sequence[int],
) -> ClassTimes:
    """Return the times of an engine between some of its cuts on a worker class.

    Args:
        positions: numbers of the cuts, from 1.

    Raises:
        NotFound: the dictionary has no entry of the engine on this class.
    """
    entries = dictionary.row(engine, worker_class)
    if not entries:
        raise NotFound(
            f"the dictionary has no entry of {engine!r} on {worker_class}; measure it there with "
            f"'synergai profile --engines {engine}'"
        )
    edges = (0, *positions, len(works) + 1)
    staged = stage_times(dictionary, engine, worker_class, works)
    seconds = [
        [staged.of(begin, end).seconds if staged and begin < end else math.inf for end in edges]
        for begin in edges
    ]
    fastest = max(entries.values(), key=lambda entry: entry.planned_qps)
    seconds[0][-1] = 1 / fastest.planned_qps
    return ClassTimes(
        tuple(map(tuple, seconds)),
        fastest.configuration,
        None if staged is None else staged.configuration,
        fastest.watts,
    )


def predicted_times(works: Sequence[float], positions: Sequence[int], whole_s: float) -> ClassTimes:
    """Return times of stages by their work alone, for a class on which none were measured.

    Args:
        whole_s: time of the whole engine.
    """
    shares = [0.0, *(works[position - 1] for position in positions), 1.0]
    seconds = [
        [max(end - begin, 0.0) * whole_s + CUT_S * (begin > 0) for end in shares]
        for begin in shares
    ]
    return ClassTimes(tuple(map(tuple, seconds)), Configuration(1), Configuration(1))


def stage_times(
    dictionary: ConfigurationDictionary,
    engine: EngineName,
    worker_class: WorkerClass,
    works: Sequence[float],
) -> StageTimes | None:
    """Return the times of stages in the fastest configuration that has them; None without any."""
    entries = dictionary.row(engine, worker_class).values()
    for entry in sorted(entries, key=lambda entry: entry.planned_qps, reverse=True):
        try:
            return StageTimes(dictionary, engine, works, worker_class, entry.configuration)
        except NotFound:
            continue
    return None


def _ascending(
    positions: Sequence[int], heads: Sequence[float], whole_s: float
) -> dict[int, float]:
    """Return heads by position that ascend to the time of the whole.

    Noise makes some heads longer than later ones. Such neighbours are replaced by their mean, in
    the middle of their positions, so that no stage between them takes no time.
    """
    pools: list[tuple[list[int], list[float]]] = []
    for position, head_s in zip(positions, heads, strict=True):
        pools.append(([position], [head_s]))
        while len(pools) > 1 and fmean(pools[-2][1]) >= fmean(pools[-1][1]) * (1 - _ROUNDING):
            of_pool, times = pools.pop()
            pools[-1][0].extend(of_pool)
            pools[-1][1].extend(times)
    means = {of_pool[len(of_pool) // 2]: fmean(times) for of_pool, times in pools}
    return {position: mean for position, mean in means.items() if mean < whole_s}


def _interpolate(
    shares: Sequence[float], positions: Sequence[int], values: Sequence[float]
) -> list[float]:
    """Return a value for each share, given those at some positions, the first and last included."""
    found = []
    for position, share in enumerate(shares):
        right = bisect_left(positions, position)
        if positions[right] == position:
            found.append(values[right])
            continue
        low, high = shares[positions[right - 1]], shares[positions[right]]
        part = (share - low) / (high - low) if high > low else 0.5
        found.append(values[right - 1] + part * (values[right] - values[right - 1]))
    return found
