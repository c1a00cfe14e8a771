"""Outcomes of the jobs of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from profiler.simulator.virtual_worker import BusySpan
    from synergai.domain import EngineName, Job, JobId

LATE_S: Final = 1e-9
"""Time after its deadline up to which a job is in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOutcome:
    """Outcome of a job.

    Attributes:
        wait_s: from its arrival until a worker started it; None if none did.
        end_to_end_s: from its arrival to its last query; None if it did not finish.
        excess_s: time beyond its deadline; 0 if it was in time or did not finish.
        violated: whether it was late or did not finish.
    """

    engine: EngineName
    queries: int
    wait_s: float | None
    end_to_end_s: float | None
    excess_s: float
    violated: bool


def job_outcomes(
    jobs: Iterable[Job], spans: Iterable[BusySpan], finished: Mapping[JobId, float]
) -> tuple[JobOutcome, ...]:
    """Return the outcomes of jobs."""
    started: dict[JobId, float] = {}
    for span in spans:
        started[span.job_id] = min(span.started, started.get(span.job_id, span.started))
    outcomes = []
    for job in jobs:
        begun, ended = started.get(job.id), finished.get(job.id)
        excess_s = 0.0 if ended is None else max(0.0, ended - job.deadline)
        outcomes.append(
            JobOutcome(
                engine=job.engine,
                queries=job.queries,
                wait_s=None if begun is None else begun - job.arrival,
                end_to_end_s=None if ended is None else ended - job.arrival,
                excess_s=excess_s,
                violated=ended is None or excess_s > LATE_S,
            )
        )
    return tuple(outcomes)
