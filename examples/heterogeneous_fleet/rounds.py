"""Three rounds of jobs: loose deadlines, tight ones, and loose ones again.

Job sizes and deadlines are derived from the measured profiles, so that they suit fast and slow
machines.
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
    from synergai.jobs import JobStatus
    from synergai.profiles.dictionary import ConfigurationDictionary

_LOOSE_S: Final = 1.0
_TIGHT_S: Final = 8.0
"""Size of a job, in seconds of the fastest worker in its fast mode."""
_LOOSE_QOS_S: Final = 60.0
_TIGHT_FRACTION: Final = 0.8
"""QoS time of a tight job, as a fraction of its duration in the fastest frugal mode."""


@dataclass(frozen=True, slots=True)
class Round:
    """Jobs submitted together, their results, and the workers afterwards."""

    jobs: list[PlannedJob]
    results: list[JobStatus]
    workers: list[WorkerStatus]


def planned(dictionary: ConfigurationDictionary) -> list[list[PlannedJob]]:
    """Return the jobs of each round."""
    cloud = WORKERS[0]
    profile = dictionary.row(ENGINE, cloud.worker_class)
    fast_qps, frugal_qps = (profile[Configuration(1, m)].qps for m in (cloud.fast, cloud.frugal))
    loose = PlannedJob(ENGINE, max(1, round(_LOOSE_S * fast_qps)), _LOOSE_QOS_S, "loose")
    queries = max(1, round(_TIGHT_S * fast_qps))
    tight = PlannedJob(ENGINE, queries, _TIGHT_FRACTION * queries / frugal_qps, "tight")
    return [[loose] * len(WORKERS), [tight] * 2, [loose] * len(WORKERS)]


async def run(client: Client, jobs: list[PlannedJob]) -> Round:
    """Submit the jobs of a round together and wait for all of them."""
    handles = [await client.submit(job.engine, queries=job.queries, qos=job.qos) for job in jobs]
    results = await asyncio.gather(*(handle.wait() for handle in handles))
    return Round(jobs, list(results), await client.workers())
