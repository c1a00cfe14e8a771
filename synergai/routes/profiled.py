"""Times of the stages of an engine on a worker class, from the configuration dictionary."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from synergai.errors import NotFound
from synergai.profiles.stages import StageTimes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from synergai.domain import Configuration, EngineName, WorkerClass
    from synergai.profiles.dictionary import ConfigurationDictionary


class ClassTimes(NamedTuple):
    """Times of an engine and its stages on a worker class.

    Attributes:
        seconds: time of one query in the stage between two positions, as ``seconds[first][last]``;
            infinite where it is not known.
        whole: the fastest configuration of the whole engine.
        staged: the fastest one in which stages were measured; None if there is none.
    """

    seconds: tuple[tuple[float, ...], ...]
    whole: Configuration
    staged: Configuration | None


def class_times(
    dictionary: ConfigurationDictionary,
    engine: EngineName,
    worker_class: WorkerClass,
    works: Sequence[float],
    positions: Sequence[int],
) -> ClassTimes:
    """Return the times of an engine on a worker class.

    Args:
        works: estimated share of the engine's work before each of its cuts, 0 to 1.
        positions: numbers of the cuts of the chain, from 1.

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
    seconds = [[math.inf] * len(edges) for _ in edges]
    staged = stage_times(dictionary, engine, worker_class, works)
    if staged is not None:
        for first, begin in enumerate(edges):
            for last, end in enumerate(edges[first + 1 :], first + 1):
                seconds[first][last] = staged.of(begin, end).seconds
    fastest = max(entries.values(), key=lambda entry: entry.planned_qps)
    seconds[0][-1] = 1 / fastest.planned_qps
    return ClassTimes(
        tuple(map(tuple, seconds)),
        fastest.configuration,
        None if staged is None else staged.configuration,
    )


def stage_times(
    dictionary: ConfigurationDictionary,
    engine: EngineName,
    worker_class: WorkerClass,
    works: Sequence[float],
) -> StageTimes | None:
    """Return the times of stages in the fastest configuration that has them; None without any.

    Args:
        works: estimated share of the engine's work before each of its cuts, 0 to 1.
    """
    entries = dictionary.row(engine, worker_class).values()
    for entry in sorted(entries, key=lambda entry: entry.planned_qps, reverse=True):
        try:
            return StageTimes(dictionary, engine, works, worker_class, entry.configuration)
        except NotFound:
            continue
    return None
