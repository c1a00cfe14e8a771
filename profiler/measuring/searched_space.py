"""The space of a search on this machine, and what the dictionary knows about it."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from profiler.measuring.search.space import Knobs, Point, SearchSpace, device_of
from profiler.measuring.search.trials import SHORT_ERROR, TrialResult
from synergai.profiles.dictionary import DISTURBED, MEASURED, OBSERVED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from profiler.measuring.generators import Draft, Machine
    from profiler.measuring.search.space import Row
    from synergai.domain import Configuration, EngineName, WorkerClass
    from synergai.profiles.dictionary import ProfileEntry

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
    """Return the space of a search."""
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
