"""``synergai.v1.Jobs``, without a server."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

from gateway.calls.servicers.jobs import JobResults, JobsServicer
from gateway.jobs.submitted import SubmittedJobs
from gateway.jobs.uploads import InputUploads
from synergai.jobs import JobStatus
from synergai.v1 import jobs_pb2
from synergai.wire.memory_bounds import UnreadResponses

if TYPE_CHECKING:
    from synergai.wire.server_call import ServerCall


class _SlowJobs:
    """Jobs whose list takes two turns of the event loop."""

    def __init__(self) -> None:
        self.listing = 0
        self.most_at_once = 0

    async def list(self, *_: object) -> list[JobStatus]:
        self.listing += 1
        self.most_at_once = max(self.most_at_once, self.listing)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        self.listing -= 1
        return []


async def test_jobs_are_listed_for_one_caller_at_a_time() -> None:
    jobs = _SlowJobs()
    servicer = JobsServicer(
        cast("SubmittedJobs", jobs),
        cast("InputUploads", None),
        cast("JobResults", None),
        cast("UnreadResponses", None),
    )
    context = cast("ServerCall", None)
    await asyncio.gather(*(servicer.list(jobs_pb2.ListRequest(), context) for _ in range(5)))
    assert jobs.most_at_once == 1
