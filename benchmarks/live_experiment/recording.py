"""A gateway's event log as if it were a simulated run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from msgspec import structs

from profiler.simulator.recording import read_log
from profiler.simulator.simulation import SimulationRun

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from profiler.simulator.workload import Workload
    from synergai.domain import Job


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """A live run.

    Attributes:
        run: in profiled time, aligned with the workload at the first arrival.
        mismatches: number of events after which the replayed commands differ.
    """

    run: SimulationRun
    events: int
    mismatches: int


def read_recording(
    path: Path, workload: Workload, policy: str, scale: float, jobs: Mapping[str, Job]
) -> Recording:
    """Read and replay the event log of a workload."""
    log = read_log(path)
    origin = log.jobs[0].arrival if log.jobs else 0.0

    def profile_time(at: float) -> float:
        """Convert gateway time to profiled time; the first arrival is the common origin."""
        return workload.jobs[0].arrival + (at - origin) * scale

    return Recording(
        run=SimulationRun(
            workload=replace(
                workload,
                jobs=tuple(
                    structs.replace(
                        jobs[live.id],
                        arrival=profile_time(live.arrival),
                        deadline=profile_time(live.deadline),
                    )
                    for live in log.jobs
                ),
            ),
            policy=policy,
            spans=tuple(
                replace(
                    span,
                    job_id=jobs[span.job_id].id,
                    started=profile_time(span.started),
                    ready=profile_time(span.ready),
                    ended=profile_time(span.ended),
                )
                for span in log.spans
            ),
            finished={jobs[job_id].id: profile_time(at) for job_id, at in log.finished.items()},
            decisions_s=log.decisions_s,
        ),
        events=log.events,
        mismatches=log.mismatches,
    )
