"""Sweeps: every policy on every experiment and seed."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Final, TypeVar

from msgspec import structs

from profiler.simulator.recording import recorded_steps
from profiler.simulator.simulation import SimulationResult, scheduling_settings, simulate, summarize
from profiler.simulator.simulator_settings import one_of, parse_seeds
from profiler.simulator.workload import EXPERIMENTS, JOBS, Profile, draw
from synergai.core.scheduling.events import JobArrived, JobCancelled
from synergai.domain import WorkerClass
from synergai.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from profiler.simulator.simulation import SimulationRun
    from profiler.simulator.simulator_settings import SimulatorSettings
    from profiler.simulator.workload import Workload
    from synergai.domain import Job, JobId


Value = TypeVar("Value")
PROFILE_AGNOSTIC: Final = ("be", "lru", "mru", "rr", "slo_mael", "srr")
PREDEFINED: Final = {"agx": "mode=6", "nx": "mode=5"}
"""Configurations of the profile-agnostic policies; other classes use the most threads."""


def make_workload(
    settings: SimulatorSettings, profile: Profile, experiment: str, seed: int
) -> Workload:
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


def arrivals_of(path: Path | None, jobs: int | None, default: int) -> tuple[tuple[Job, ...], int]:
    """Return the jobs of an event log, none without one, and the number of jobs to simulate."""
    given = () if path is None else read_arrivals(path)
    count = jobs or len(given) or default
    if given and count > len(given):
        raise InvalidInput(f"{path} has only {len(given):,} jobs, not {count:,}")
    return given, count


def by_class(values: Mapping[str, Value], profile: Profile) -> dict[WorkerClass, Value]:
    return {
        WorkerClass(one_of(name, list(profile.classes), "worker class")): value
        for name, value in values.items()
    }


def run(settings: SimulatorSettings, workload: Workload, policy: str) -> SimulationRun:
    """Simulate one policy."""
    known = set(workload.profile.classes)
    options = {name: text for name, text in PREDEFINED.items() if name in known}
    scheduling = scheduling_settings(policy, options if policy in PROFILE_AGNOSTIC else None)
    return simulate(workload, structs.replace(scheduling, preload=settings.preload))


def simulate_all(settings: SimulatorSettings, profile: Profile) -> Iterator[SimulationRun]:
    """Simulate all combinations of experiments, seeds and policies."""
    for experiment in settings.simulated:
        for seed in parse_seeds(settings.seeds):
            workload = make_workload(settings, profile, experiment, seed)
            for policy in settings.policies:
                yield run(settings, workload, policy)


def sweep(settings: SimulatorSettings, profile: Profile) -> Iterator[SimulationResult]:
    """Simulate and measure all combinations of experiments, seeds and policies."""
    return map(summarize, simulate_all(settings, profile))


def run_count(settings: SimulatorSettings) -> int:
    return len(settings.simulated) * len(parse_seeds(settings.seeds)) * len(settings.policies)


@lru_cache(maxsize=1)
def read_arrivals(path: Path) -> tuple[Job, ...]:
    """Return the jobs of a gateway's event log, in order of arrival; the first arrives at 0.

    Those that were cancelled are left out.
    """
    jobs: dict[JobId, Job] = {}
    try:
        for event, _, _ in recorded_steps(path):
            match event:
                case JobArrived(job):
                    jobs[job.id] = job
                case JobCancelled(job_id):
                    jobs.pop(job_id, None)
    except OSError as error:
        raise InvalidInput(f"cannot read {path}: {error.strerror}") from None
    found = sorted(jobs.values(), key=lambda job: job.arrival)
    if not found:
        raise InvalidInput(f"{path} has no jobs")
    origin = found[0].arrival
    return tuple(
        structs.replace(job, arrival=job.arrival - origin, deadline=job.deadline - origin)
        for job in found
    )
