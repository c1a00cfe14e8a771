"""Sweeps: every policy on every experiment and seed."""

from __future__ import annotations

import csv
import math
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Final, TypeVar

from msgspec import structs

from profiler.simulator.audit import audit
from profiler.simulator.recording import read_log
from profiler.simulator.simulation import SimulationResult, scheduling_settings, simulate, summarize
from profiler.simulator.simulator_settings import one_of, parse_seeds
from profiler.simulator.workload import EXPERIMENTS, JOBS, Arrival, Profile, draw
from synergai.domain import EngineName, WorkerClass
from synergai.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from profiler.simulator.simulation import SimulationRun
    from profiler.simulator.simulator_settings import SimulatorSettings
    from profiler.simulator.workload import Workload


Value = TypeVar("Value")
PROFILE_AGNOSTIC: Final = ("be", "lru", "mru", "rr", "slo_mael", "srr")
PREDEFINED: Final = {"agx": "mode=6", "nx": "mode=5"}
"""Configurations of the profile-agnostic policies; other classes use the most threads."""


def make_workload(
    settings: SimulatorSettings, profile: Profile, experiment: str, seed: int
) -> Workload:
    """Return the workload of one experiment and seed."""
    fleet = by_class(settings.fleet, profile)  # empty for one of each
    given, count = arrivals_of(settings.arrivals, settings.jobs, JOBS)
    workload = draw(
        profile,
        EXPERIMENTS[experiment],
        seed,
        sessions=settings.sessions,
        t_pre=settings.t_pre,
        estimate_error=settings.estimate_error,
        count=count,
        # The experiments' arrivals are for one worker of each class; a file's are what
        # they are.
        rate=settings.load_factor * (profile.capacity(fleet) if fleet and not given else 1.0),
        given=given,
    )
    return replace(workload, fleet=fleet)


def arrivals_of(
    path: Path | None, jobs: int | None, default: int
) -> tuple[tuple[Arrival, ...], int]:
    """Return the arrivals in a file, none without one, and the number of jobs to simulate."""
    given = () if path is None else read_arrivals(path)
    count = jobs or len(given) or default
    if given and count > len(given):
        raise InvalidInput(f"{path} has only {len(given):,} jobs, not {count:,}")
    return given, count


def by_class(values: Mapping[str, Value], profile: Profile) -> dict[WorkerClass, Value]:
    """Return values of worker classes."""
    return {
        WorkerClass(one_of(name, list(profile.classes), "worker class")): value
        for name, value in values.items()
    }


def run(settings: SimulatorSettings, workload: Workload, policy: str) -> SimulationRun:
    """Simulate one policy and audit the run."""
    known = set(workload.profile.classes)
    options = {name: text for name, text in PREDEFINED.items() if name in known}
    scheduling = scheduling_settings(policy, options if policy in PROFILE_AGNOSTIC else None)
    ran = simulate(workload, structs.replace(scheduling, preload=settings.preload))
    audit(ran)
    return ran


def simulate_all(
    settings: SimulatorSettings, profile: Profile
) -> Iterator[tuple[SimulationRun, int | None]]:
    """Simulate all combinations of experiments, seeds and policies.

    Yields:
        Each run, and the lower bound on its violations if it was requested.
    """
    for experiment in settings.simulated:
        for seed in parse_seeds(settings.seeds):
            workload = make_workload(settings, profile, experiment, seed)
            bound = None
            if settings.bounds:
                from profiler.simulator.bounds import violations_at_least

                bound = violations_at_least(workload)
            for policy in settings.policies:
                yield run(settings, workload, policy), bound


def sweep(settings: SimulatorSettings, profile: Profile) -> Iterator[SimulationResult]:
    """Simulate and measure all combinations of experiments, seeds and policies.

    Yields:
        One result per run.
    """
    for ran, bound in simulate_all(settings, profile):
        yield replace(summarize(ran), violations_at_least=bound)


def run_count(settings: SimulatorSettings) -> int:
    """Return the number of runs of a sweep."""
    return len(settings.simulated) * len(parse_seeds(settings.seeds)) * len(settings.policies)


_SHOWN: Final = 40
"""Characters of a cell that messages quote."""
COLUMNS: Final = ("arrival_s", "engine", "queries", "qos_s")
_MAX_QUERIES: Final = 1 << 53
"""Integers up to this one are exact as floating-point numbers."""


@lru_cache(maxsize=1)
def read_arrivals(path: Path) -> tuple[Arrival, ...]:
    """Read a CSV file or the event log of a gateway, in order of arrival.

    A CSV file has a header with the column `arrival_s`, in seconds, and optionally `engine`,
    `queries` and `qos_s`; empty cells are drawn. Every other file is read as an event log.
    """
    try:
        found = _read_csv(path) if path.suffix.lower() == ".csv" else _read_log(path)
    except OSError as error:
        raise InvalidInput(f"cannot read {path}: {error.strerror}") from None
    if not found:
        raise InvalidInput(f"{path} has no jobs")
    found.sort(key=lambda arrival: arrival.at)
    origin = found[0].at
    return tuple(
        Arrival(
            at=each.at - origin,
            engine=each.engine,
            queries=each.queries,
            qos_s=each.qos_s,
            perishable=each.perishable,
        )
        for each in found
    )


def _read_log(path: Path) -> list[Arrival]:
    return [
        Arrival(
            at=job.arrival,
            engine=job.engine,
            queries=job.queries,
            qos_s=job.deadline - job.arrival,
            perishable=job.perishable,
        )
        for job in read_log(path).jobs
    ]


def _read_csv(path: Path) -> list[Arrival]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as lines:
            rows = csv.DictReader(lines, skipinitialspace=True)
            columns = rows.fieldnames or ()
            unknown = [name for name in columns if name not in COLUMNS]
            if "arrival_s" not in columns or unknown:
                raise InvalidInput(
                    f"the first line of {path} must name its columns: arrival_s, and any of "
                    f"{', '.join(COLUMNS[1:])}; it has {', '.join(columns) or 'nothing'}"
                )
            return [_arrival(row, f"line {rows.line_num} of {path}") for row in rows]
    except (UnicodeDecodeError, csv.Error) as error:
        raise InvalidInput(f"{path} is not a CSV file: {error}") from None


def _arrival(row: Mapping[str | None, object], where: str) -> Arrival:
    def cell(name: str) -> str:
        return str(row.get(name) or "").strip()

    if None in row:
        raise InvalidInput(f"{where} has more cells than the first line")
    at = _number(cell("arrival_s"), "arrival_s", where)
    queries, qos_s = cell("queries"), cell("qos_s")
    return Arrival(
        at=at,
        engine=EngineName(cell("engine")) if cell("engine") else None,
        queries=_count(queries, where) if queries else None,
        qos_s=_number(qos_s, "qos_s", where) if qos_s else None,
    )


def _count(text: str, where: str) -> int:
    try:
        count = int(text)
    except ValueError:
        count = 0
    if not 0 < count <= _MAX_QUERIES:
        raise InvalidInput(f"queries in {where} must be a positive integer, not {text[:_SHOWN]!r}")
    return count


def _number(text: str, name: str, where: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise InvalidInput(f"{name} in {where} must be a number of seconds, not {text!r}")
    return number
