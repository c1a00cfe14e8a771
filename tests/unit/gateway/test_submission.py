"""What a client gets that submits a job again under the same key."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from synergai.domain import EngineName, JobSpec
from synergai.errors import IdempotencyConflict, Overloaded

SPEC = JobSpec(engine=EngineName("echo"), queries=10)


async def test_job_submitted_again_at_the_same_time_is_one(office: Any) -> None:
    office.join()
    statuses = await asyncio.gather(*(office.jobs.submit(SPEC, "key") for _ in range(2)))
    assert len({status.id for status in statuses}) == 1


async def test_job_submitted_again_is_found_even_if_no_other_would_be_taken(office: Any) -> None:
    office.join()
    first = await office.jobs.submit(SPEC, "key")
    await office.jobs.submit(SPEC)
    with pytest.raises(Overloaded):
        await office.jobs.submit(SPEC, "another key")
    assert (await office.jobs.submit(SPEC, "key")).id == first.id
    with pytest.raises(IdempotencyConflict):
        await office.jobs.submit(replace(SPEC, queries=11), "key")
