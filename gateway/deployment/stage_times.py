"""What queries of engines have taken lately on each worker, and how many there were."""

from __future__ import annotations

import math
from collections import deque
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeAlias

from synergai.core.routes.deployment import StageTime
from synergai.names import engine_of_stage, is_stage, split_version, stage_name, stage_positions

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from gateway.fleet.worker import ConnectedWorker
    from synergai.domain import EngineName

    _Key: TypeAlias = tuple[ConnectedWorker, EngineName]
    _Count: TypeAlias = tuple[float, int]
    """Seconds and queries."""

WINDOW_S: Final = 1.0
"""Time after which queries are counted again."""
RATE_WINDOWS: Final = 5
"""Windows over which rates are averaged, so that they do not follow each burst."""
_AGREES: Final = 0.25
"""Relative difference of two times in a row that confirm each other."""
_LEAST_SHARE: Final = 0.25
"""Difference of a time from the planned one that counts, as a share of the longest one planned."""
_SHARED_CHANGE: Final = 1.4
"""Factor below which what stages of several engines take on one worker is as planned: how long they
wait for each other is not known any better."""
_LEAST: Final = 3
"""Queries that tell how long one takes."""


class StageTimes:
    """Counts the queries of engines, whole and in stages, in windows of time."""

    def __init__(self) -> None:
        # At the ends of the last windows: when, and seconds and queries in all.
        self._ends: deque[tuple[float, dict[_Key, _Count]]] = deque(maxlen=RATE_WINDOWS + 1)
        # At these times: the requests for each engine in all.
        self._asked: deque[Mapping[EngineName, int]] = deque(maxlen=RATE_WINDOWS + 1)
        # Of the queries since those that told how long the next one takes.
        self._since: dict[_Key, tuple[float, int]] = {}
        # What the last ones took, and what such queries took when two in a row agreed, and when.
        self._last: dict[_Key, float] = {}
        self._seconds: dict[_Key, tuple[float, float]] = {}
        # By stage and id of a worker: what a query was planned to take.
        self._planned: dict[tuple[EngineName, str], float] = {}

    def set_planned(
        self, engine: EngineName, times: Iterable[StageTime], *, is_whole: bool = False
    ) -> None:
        """Set what queries of an engine are planned to take, in stages or whole."""
        for each in times:
            name = engine if is_whole else stage_name(engine, each.first, each.last)
            self._planned[name, each.worker] = each.seconds

    def observe(
        self,
        workers: Iterable[ConnectedWorker],
        engines: Collection[EngineName],
        now: float,
        asked: Mapping[EngineName, int] = MappingProxyType({}),
        *,
        is_changing: bool = False,
    ) -> None:
        """Begin another window if the last one has ended.

        Args:
            asked: the requests in stages of each engine until now.
            is_changing: stages are being deployed. Loads delay queries, which tell nothing then.
        """
        ended_at, _ = self._ends[-1] if self._ends else (-WINDOW_S, {})
        if now < ended_at + WINDOW_S:
            return
        counts = {
            (worker, name): computed
            for worker in workers
            for name, computed in worker.computed.items()
            if engine_of_stage(name) in engines
        }
        self._since = {key: self._since.get(key, (0.0, 0)) for key in counts}
        self._seconds = {key: self._seconds[key] for key in self._seconds if key in counts}
        self._last = {key: self._last[key] for key in self._last if key in counts}
        self._planned = {
            key: seconds
            for key, seconds in self._planned.items()
            if engine_of_stage(key[0]) in engines
        }
        before = self._ends[-1][1] if self._ends else {}
        new = {
            key: (counts[key][0] - before[key][0], counts[key][1] - before[key][1])
            for key in counts.keys() & before.keys()
        }
        for key, (seconds, queries) in self._own(new, now - ended_at).items():
            seconds, queries = self._since[key][0] + seconds, self._since[key][1] + queries
            self._since[key] = (0.0, 0) if is_changing else (seconds, queries)
            if queries >= _LEAST and not is_changing:
                self._since[key] = 0.0, 0
                self._note(key, seconds / queries, now)
        self._ends.append((now, counts))
        self._asked.append(dict(asked))

    def _own(self, new: Mapping[_Key, _Count], elapsed_s: float) -> dict[_Key, _Count]:
        """Return what queries would have taken if each worker had run one stage at a time.

        Those of several stages delay each other. How long they took all together tells how fast
        their worker is, and not how long each of them takes.
        """
        found = dict(new)
        for worker in {worker for worker, _ in new}:
            busy = [key for key in new if key[0] is worker and new[key][1]]
            if len(busy) < 2:
                continue
            known = {key: new[key][1] * self._planned.get((key[1], worker.id), 0.0) for key in busy}
            is_planned = all(known.values())
            if not is_planned:
                known = {key: new[key][0] for key in busy}
            # A query that arrives while the other stage runs waits for half a query of it.
            shares = sum(new[key][0] for key in busy) / elapsed_s
            own_s = elapsed_s * min(1.0, 2 * (math.sqrt(1 + shares) - 1))
            part = own_s / (sum(known.values()) or 1.0)
            if is_planned and 1 / _SHARED_CHANGE < part < _SHARED_CHANGE:
                part = 1.0
            found |= {key: (part * known[key], new[key][1]) for key in busy}
        return found

    def _note(self, key: _Key, query_s: float, now: float) -> None:
        """Note what the last queries took, some of which may have begun before a change."""
        last_s, self._last[key] = self._last.get(key, query_s), query_s
        if abs(query_s - last_s) <= _AGREES * last_s:
            self._seconds[key] = query_s, now

    def of(self, engine: EngineName) -> tuple[StageTime, ...]:
        """Return what queries of the stages of an engine have taken, as far as that is known.

        Of a worker, those stages count that ran last: it may have been faster before.
        """
        found = {
            (worker, stage): figure
            for (worker, stage), figure in self._seconds.items()
            if is_stage(stage) and engine_of_stage(stage) == engine
        }
        latest = {
            worker: max(at for (each, _), (_, at) in found.items() if each is worker)
            for worker, _ in found
        }
        return tuple(
            StageTime(worker.id, *stage_positions(stage), seconds)
            for (worker, stage), (seconds, at) in found.items()
            if at >= latest[worker] - RATE_WINDOWS * WINDOW_S
        )

    def unplanned(self, engine: EngineName) -> tuple[StageTime, ...]:
        """Return the times that differ from their plan by a share of the longest planned one.

        Smaller differences hardly change the rate of the engine.
        """
        times = [
            (each, self._planned.get((stage_name(engine, each.first, each.last), each.worker), 0.0))
            for each in self.of(engine)
        ]
        least_s = _LEAST_SHARE * max((planned_s for _, planned_s in times), default=0.0)
        return tuple(each for each, planned_s in times if abs(each.seconds - planned_s) > least_s)

    def queries_per_s(self, engine: EngineName) -> float:
        """Return the rate at which queries of an engine began lately, whole or in stages."""
        return sum(
            queries
            for (_, name), (_, queries) in self._rates(engine)
            if name == engine or _is_first(name)
        )

    def expected_per_s(self, engine: EngineName) -> float:
        """Return the rate at which queries of an engine are expected.

        A version without queries is expected to get those of the other versions.
        """
        name = split_version(engine)[0]
        _, counts = self._ends[-1] if self._ends else (0.0, {})
        engines = {engine_of_stage(stage) for _, stage in counts}
        others = (each for each in engines if split_version(each)[0] == name)
        return self._arriving_per_s(engine) or sum(map(self._arriving_per_s, others))

    def expected(self, engine: EngineName) -> float:
        """Return the number of queries from which that rate is known."""
        elapsed_s = self._ends[-1][0] - self._ends[0][0] if self._ends else 0.0
        return elapsed_s * self.expected_per_s(engine)

    def _arriving_per_s(self, engine: EngineName) -> float:
        """Return the rate at which queries of an engine arrived, also those that wait."""
        if len(self._ends) < 2:
            return 0.0
        (began, _), (now, counts) = self._ends[0], self._ends[-1]
        computed = 0
        for key, (_, queries) in counts.items():
            if key[1] == engine or (engine_of_stage(key[1]) == engine and _is_first(key[1])):
                computed += queries - next(each[key][1] for _, each in self._ends if key in each)
        requests = self._asked[-1].get(engine, 0) - self._asked[0].get(engine, 0)
        return max(requests, computed) / (now - began)

    def _rates(self, engine: EngineName) -> Iterator[tuple[_Key, tuple[float, float]]]:
        """Yield the seconds and queries of an engine per second, by worker and stage."""
        now, counts = self._ends[-1] if self._ends else (0.0, {})
        for key, (seconds, queries) in counts.items():
            if engine_of_stage(key[1]) != engine:
                continue
            began, first = next((at, each[key]) for at, each in self._ends if key in each)
            if began < now:
                elapsed_s = now - began
                yield key, ((seconds - first[0]) / elapsed_s, (queries - first[1]) / elapsed_s)


def _is_first(name: EngineName) -> bool:
    """Return whether an engine is the first stage of another one."""
    return is_stage(name) and not stage_positions(name)[0]
