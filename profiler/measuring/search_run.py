"""A search on this machine: its space, and the measurements that the strategy asks for."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, TypeAlias

from msgspec.structs import replace

from profiler.measuring.generators import Draft
from profiler.measuring.search.expected_gain import Objective, SharedProcessSearch
from profiler.measuring.search.space import (
    SHORT_ERROR,
    Knobs,
    Point,
    SearchSpace,
    Trial,
    TrialResult,
    device_of,
)
from profiler.measuring.search.state import Search, SearchPlan
from synergai.domain import Configuration, Session
from synergai.errors import EngineUnusable
from synergai.profiles.dictionary import DISTURBED, MEASURED, OBSERVED, PREDICTED, ProfileEntry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from profiler.dictionary.origins import EngineOrigins
    from profiler.measuring.generators import Machine
    from profiler.measuring.measurer import Measurer
    from profiler.measuring.messages import Measurement
    from profiler.measuring.search.space import Row
    from synergai.domain import EngineName, WorkerClass


ROUGH_ERROR: Final = 0.1
"""Standard error of what was observed in service, or while other processes were busy."""
MAX_OTHERS: Final = 400
"""Entries of the dictionary that are used in addition to the space: time and memory grow with the
square of their number, and a fleet may have thousands."""
_UNKNOWN_MHZ: Final = 1000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchedSpace:
    """A space with what is known about it.

    Attributes:
        space: the points to search, and entries that say something about them.
        drafts: what to measure, by point to search.
        known: results of the dictionary by point.
    """

    space: SearchSpace
    rows: Sequence[Row]
    drafts: Mapping[int, Draft]
    known: Mapping[int, TrialResult]


def knobs_of(configuration: Configuration, machine: Machine) -> Knobs:
    """Return what makes a configuration of this machine faster or slower."""
    mode = machine.mode(configuration.power_mode)
    cores = machine.cores(configuration.power_mode)
    clock_mhz = machine.top_mhz or _UNKNOWN_MHZ
    if mode is None:
        return Knobs(configuration.threads, cores, clock_mhz)
    clock_mhz = (mode.max_mhz or clock_mhz) * mode.share
    return Knobs(configuration.threads, cores, clock_mhz, mode.memory_mhz)


def make_space(
    drafts: Mapping[EngineName, Sequence[Draft]],
    worker_class: WorkerClass,
    machine: Machine,
    entries: Iterable[ProfileEntry],
    is_fresh: Callable[[ProfileEntry], bool],
) -> SearchedSpace:
    points: list[Point] = []
    by_point: dict[int, Draft] = {}
    index_of: dict[tuple[EngineName, Configuration], int] = {}
    for engine, each in drafts.items():
        for draft in each:
            configuration = draft.configuration
            device = device_of(worker_class, configuration)
            index_of[engine, configuration] = len(points)
            by_point[len(points)] = draft
            points.append(Point(engine, device, configuration, knobs_of(configuration, machine)))
    rows = list(dict.fromkeys(point.row for point in points))
    known: dict[int, TrialResult] = {}
    others: list[ProfileEntry] = []
    for entry in entries:
        if entry.label not in {MEASURED, DISTURBED, OBSERVED}:
            continue
        here = entry.worker_class == worker_class
        index = index_of.get((entry.engine, entry.configuration)) if here else None
        if index is None:
            others.append(entry)
        elif is_fresh(entry):
            known[index] = result_of(entry)
    # The most informative entries for this search.
    others.sort(key=lambda each: (each.worker_class != worker_class, each.engine not in drafts))
    del others[MAX_OTHERS:]
    most_threads: dict[tuple[str, str], int] = defaultdict(int)
    for entry in others:
        key = entry.worker_class, entry.configuration.power_mode
        most_threads[key] = max(most_threads[key], entry.configuration.threads, 1)
    for entry in others:
        configuration = entry.configuration
        if entry.worker_class == worker_class and (
            not machine.modes or machine.mode(configuration.power_mode)
        ):
            knobs = knobs_of(configuration, machine)
        else:
            cores = most_threads[entry.worker_class, configuration.power_mode]
            knobs = Knobs(configuration.threads, cores, entry.clock_mhz or _UNKNOWN_MHZ)
        device = device_of(entry.worker_class, configuration)
        known[len(points)] = result_of(entry)
        points.append(Point(entry.engine, device, configuration, knobs))
    # Rows of the dictionary that are searched as well are told apart by their points.
    return SearchedSpace(space=SearchSpace(points), rows=rows, drafts=by_point, known=known)


def result_of(entry: ProfileEntry) -> TrialResult:
    """Return an entry as the result of a measurement that took no time."""
    error = max(entry.error, SHORT_ERROR) if entry.label == MEASURED else ROUGH_ERROR
    return TrialResult(entry.qps, entry.watts, entry.t_pre_s, 0.0, error)


Follow: TypeAlias = "Callable[[Session], AbstractContextManager[object]]"
"""Shows that a session is being measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Expected extent of a search.

    Attributes:
        configurations: engines times configurations.
        known: of these, those that the dictionary has.
        exhaustive_s: expected duration of full measurements of the others.
        at_most_s: limit of the search's duration; infinite if there is none.
    """

    configurations: int
    known: int
    exhaustive_s: float
    at_most_s: float


class SearchRun:
    """A search on this machine.

    Args:
        budget: share of the exhaustive time; infinite for no limit; None for the default one,
            with a measurement of each row.
        origins: digests and runtimes, for predictions.
    """

    def __init__(
        self,
        searched: SearchedSpace,
        *,
        objective: Objective,
        budget: float | None,
        plan: SearchPlan,
        measurer: Measurer,
        origins: EngineOrigins,
        worker_class: WorkerClass,
        keep: Callable[[Measurement], object],
        skip: Callable[[EngineUnusable], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._searched = searched
        self._plan = plan
        self._measurer = measurer
        self._origins = origins
        self._worker_class = worker_class
        self._keep = keep
        self._skip = skip
        self._clock = clock
        self._search = Search(
            searched.space,
            SharedProcessSearch(objective),
            plan,
            budget,
            searched.known,
            searched.drafts.keys(),
        )
        self.measurements: dict[int, Measurement] = {}

    def forecast(self) -> Forecast:
        """Return what the search will take, as far as is known."""
        left = self._search.state.open()
        exhaustive_s = self._search.state.costs.exhaustive_s(left)
        return Forecast(
            configurations=len(self._searched.drafts),
            known=len(self._searched.drafts) - len(left),
            exhaustive_s=exhaustive_s,
            at_most_s=self._search.budget_s(),
        )

    def progress(self) -> str:
        """Return how far the search is, for people."""
        state = self._search.state
        left_s = state.budget_s - state.spent_s
        at_most = f", at most {left_s:.0f} s left" if 0 < left_s < math.inf else ""
        return f"{len(state.new)} measured, {len(state.open())} not{at_most}"

    def run(self, follow: Follow, on_progress: Callable[[], object]) -> None:
        """Search until the strategy needs no more, and then measure batches of the best."""
        while (trial := self._search.next()) is not None:
            on_progress()
            self._measure(trial, follow)
        for point in self._best_with_batches():
            self._measure(Trial(point), follow, batches=True)

    def without_time(self) -> list[str]:
        """Return what was not measured at all for lack of time, as texts for people.

        An engine that was measured in part is named with the variants and execution providers that
        are missing.
        """
        state, space = self._search.state, self._searched.space
        rows = [row for row in self._searched.rows if row not in state.unmeasurable]
        missing = [row for row in rows if not state.measured(row)]
        found: set[str] = set()
        for row in missing:
            others = [each for each in self._searched.rows if each[0] == row[0]]
            if all(each in missing for each in others):
                found.add(row[0])
                continue
            configuration = space.points[state.rows[row][0]].configuration
            what = replace(configuration, threads=0, power_mode="")
            found.add(f"{row[0]} ({what})" if what != Configuration() else f"{row[0]} (the CPU)")
        return sorted(found)

    def predictions(self) -> list[ProfileEntry]:
        """Return entries of the configurations that were not measured."""
        entries = []
        # Threads and modes do not change answers.
        accuracies = {
            self._searched.space.points[index].row: (
                each.entry.accuracy,
                each.entry.accuracy_samples,
                each.entry.samples_digest,
            )
            for index, each in self.measurements.items()
        }
        for index, prediction in self._search.predictions().items():
            point = self._searched.space.points[index]
            origin = self._origins.of(point.engine, point.configuration.variant)
            accuracy = accuracies.get(point.row, (0.0, 0, ""))
            entries.append(
                ProfileEntry(
                    engine=point.engine,
                    worker_class=self._worker_class,
                    configuration=point.configuration,
                    qps=prediction.qps,
                    error=prediction.error,
                    watts=prediction.watts,
                    model_load_s=self._search.state.costs.setup_s(point.row),
                    label=PREDICTED,
                    measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
                    digest=origin.digest,
                    runtime=origin.runtime,
                    accuracy=accuracy[0],
                    accuracy_samples=accuracy[1],
                    samples_digest=accuracy[2],
                )
            )
        return entries

    def _measure(self, trial: Trial, follow: Follow, *, batches: bool = False) -> None:
        point = self._searched.space.points[trial.point]
        draft = self._searched.drafts.get(trial.point, Draft(point.configuration))
        session = Session(point.engine, point.configuration)
        plan = self._plan
        began = self._clock()
        try:
            with follow(session):
                measurement = self._measurer.measure(
                    session,
                    queries=plan.short_queries,
                    min_duration=plan.short_s,
                    # The batches of slow configurations are of no use.
                    max_batch=draft.max_batch if batches else 1,
                )
        except EngineUnusable as error:
            self._skip(error)
            self._search.state.fail(trial, self._clock() - began)
            return
        entry = measurement.entry
        result = TrialResult(
            qps=entry.qps,
            watts=entry.watts,
            setup_s=entry.t_pre_s,
            seconds=self._clock() - began,
            error=ROUGH_ERROR if measurement.is_disturbed else max(SHORT_ERROR, entry.error),
        )
        self._search.state.tell(trial, result)
        combined = combine(measurement, self._search.state.results[trial.point])
        self.measurements[trial.point] = combined
        self._keep(combined)

    def _best_with_batches(self) -> Iterable[int]:
        """Yield the best point of each row whose engine has batches that were not measured."""
        state = self._search.state
        for row in self._searched.rows:
            best = state.best(row)
            if best is None or best not in self.measurements:
                continue
            wanted = self._searched.drafts[best].max_batch > 1
            if wanted and not self.measurements[best].entry.batch_qps:
                yield best


def combine(measurement: Measurement, results: list[TrialResult]) -> Measurement:
    """Return a measurement with the mean QPS of all results of its point."""
    weights = [each.error**-2 for each in results]
    qps = sum(w * each.qps for w, each in zip(weights, results, strict=True)) / sum(weights)
    entry = measurement.entry
    scale = qps / entry.qps
    combined = replace(
        entry,
        qps=qps,
        batch_qps=tuple(scale * rate for rate in entry.batch_qps),
        error=1 / math.sqrt(sum(weights)),
        repeats=len(results),
    )
    return replace(measurement, entry=combined)


def make_plan(queries: int, min_duration_s: float) -> SearchPlan:
    """Return the durations of measurements; short ones are not longer than others."""
    usual = SearchPlan()
    return SearchPlan(
        full_s=min_duration_s,
        full_queries=queries,
        short_s=min(usual.short_s, min_duration_s),
        short_queries=min(usual.short_queries, queries),
    )
