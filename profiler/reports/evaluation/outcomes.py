"""Outcomes of runs: what became of each job, and what the workers did."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from profiler.simulator.outcomes import job_outcomes
from profiler.simulator.recording import read_log
from profiler.simulator.results import summarize, summarize_jobs
from synergai.domain import WorkerClass
from synergai.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from profiler.simulator.outcomes import JobOutcome
    from profiler.simulator.recording import GatewayLog
    from profiler.simulator.results import SimulationResult
    from profiler.simulator.simulation import SimulationRun
    from profiler.simulator.virtual_worker import BusySpan
    from profiler.simulator.workload import Profile
    from synergai.domain import Configuration, EngineName, WorkerId

_NO_NAME: Final = re.compile(r"[^A-Za-z0-9._-]+")
"""Characters that are not part of the names of experiments, which are used in file names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Work of a worker class for an engine.

    Attributes:
        setup_s: time of setups, T_pre that was paid.
        joules: energy of the busy time; None if the power is not known for all of it.
    """

    worker_class: WorkerClass
    engine: EngineName
    queries: int
    setup_s: float
    run_s: float
    joules: float | None = None

    @property
    def busy_s(self) -> float:
        """Time that the worker was not free."""
        return self.setup_s + self.run_s


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyOutcome:
    """The outcome of a run.

    Attributes:
        jobs: every job, in order of arrival.
        work: sums by worker class and engine.
        decisions_s: CPU seconds of each decision.
    """

    result: SimulationResult
    jobs: tuple[JobOutcome, ...]
    work: tuple[Work, ...]
    decisions_s: tuple[float, ...]


def outcome_of_run(run: SimulationRun, violations_at_least: int | None = None) -> PolicyOutcome:
    """Return the outcome of a simulated run."""
    return PolicyOutcome(
        result=replace(summarize(run), violations_at_least=violations_at_least),
        jobs=job_outcomes(run.workload.jobs, run.spans, run.finished),
        work=_work(run.spans, run.workload.workers, _watts(run.workload.profile)),
        decisions_s=run.decisions_s,
    )


def outcomes_of_logs(paths: Sequence[Path]) -> list[PolicyOutcome]:
    """Read event logs and return their outcomes.

    Logs whose files have the same name are of one experiment: side by side if their policies
    differ, otherwise as repetitions.
    """
    outcomes: list[PolicyOutcome] = []
    for path in paths:
        log, name = read_log(path), _NO_NAME.sub("-", path.stem)
        known = [(each.result.experiment, each.result.policy) for each in outcomes]
        outcomes.append(outcome_of_log(log, name, known.count((name, log.policy))))
    return outcomes


def outcome_of_log(log: GatewayLog, name: str, repetition: int = 0) -> PolicyOutcome:
    """Return the outcome of a gateway's recorded run.

    Jobs that neither ended nor missed their deadlines before the log ended are left out.
    """
    known = log.finished.keys() | log.failed
    ended = [job for job in log.jobs if job.id in known or job.deadline < log.ended]
    if not ended:
        raise InvalidInput(f"no job or request of the event log {name} ended")
    jobs = job_outcomes(ended, log.spans, log.finished)
    return PolicyOutcome(
        result=summarize_jobs(name, log.policy, repetition, jobs, log.decisions_s),
        jobs=jobs,
        work=_work(log.spans, log.classes, {}),
        decisions_s=log.decisions_s,
    )


def _watts(profile: Profile) -> dict[tuple[WorkerClass, EngineName, Configuration], float]:
    """Return the measured power of every configuration that has one."""
    return {
        (name, engine, entry.configuration): entry.watts
        for engine in profile.engines
        for name in profile.classes
        for entry in profile.entries(engine, name)
        if entry.watts
    }


def _work(
    spans: Iterable[BusySpan],
    classes: Mapping[WorkerId, WorkerClass],
    watts: Mapping[tuple[WorkerClass, EngineName, Configuration], float],
) -> tuple[Work, ...]:
    groups: dict[tuple[WorkerClass, EngineName], list[BusySpan]] = {}
    for span in spans:
        worker_class = classes.get(span.worker_id, WorkerClass(span.worker_id))
        groups.setdefault((worker_class, span.engine), []).append(span)
    work = []
    for (name, engine), group in groups.items():
        powers = [watts.get((name, engine, span.configuration)) for span in group]
        energies = [
            power * (span.ended - span.started)
            for power, span in zip(powers, group, strict=True)
            if power is not None
        ]
        work.append(
            Work(
                worker_class=name,
                engine=engine,
                queries=sum(span.done for span in group),
                setup_s=sum(span.ready - span.started for span in group),
                run_s=sum(span.ended - span.ready for span in group),
                joules=sum(energies) if len(energies) == len(group) else None,
            )
        )
    return tuple(work)
