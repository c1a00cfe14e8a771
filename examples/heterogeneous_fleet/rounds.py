"""Three rounds of jobs: deadlines with time to spare, then tight ones, then time to spare again.

How much is asked, and until when, follows from what was just profiled, so that it is neither
trivial on a fast machine nor hopeless on a slow one.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from demo.plan import PlannedJob
from examples.heterogeneous_fleet.workers import ENGINE, WORKERS
from synergai.domain import Configuration

if TYPE_CHECKING:
    from synergai import Client
    from synergai.client.fleet import WorkerStatus
    from synergai.client.jobs import JobStatus
    from synergai.profiles.dictionary import ConfigurationDictionary

_LOOSE_S: Final = 1.0
_TIGHT_S: Final = 8.0
"""Work of a job, in seconds of the fastest worker in its fast mode."""
_LOOSE_QOS_S: Final = 60.0
_TIGHT_SHARE: Final = 0.8
"""QoS time of a tight job, as a part of what it would take the fastest of the frugal modes."""


@dataclass(frozen=True, slots=True)
class Round:
    """Jobs that were submitted together, and what became of them and of the fleet."""

    jobs: list[PlannedJob]
    results: list[JobStatus]
    workers: list[WorkerStatus]


def planned(dictionary: ConfigurationDictionary) -> list[list[PlannedJob]]:
    """The jobs of each round."""
    cloud = WORKERS[0]
    profile = dictionary.row(ENGINE, cloud.worker_class)
    fast_qps, frugal_qps = (profile[Configuration(1, m)].qps for m in (cloud.fast, cloud.frugal))
    loose = PlannedJob(ENGINE, max(1, round(_LOOSE_S * fast_qps)), _LOOSE_QOS_S, "loose")
    queries = max(1, round(_TIGHT_S * fast_qps))
    tight = PlannedJob(ENGINE, queries, _TIGHT_SHARE * queries / frugal_qps, "tight")
    return [[loose] * len(WORKERS), [tight] * 2, [loose] * len(WORKERS)]


async def run(client: Client, jobs: list[PlannedJob]) -> Round:
    """Submit the jobs of a round together, and wait until all have ended."""
    handles = [await client.submit(job.engine, queries=job.queries, qos=job.qos) for job in jobs]
    results = await asyncio.gather(*(handle.wait() for handle in handles))
    return Round(jobs, list(results), await client.workers())
