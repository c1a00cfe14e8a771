"""Submitting a job again under the same idempotency key."""

import asyncio

import pytest
from msgspec.structs import replace

from gateway.entry.access.caller import UNRESTRICTED
from synergai.domain import EngineName
from synergai.errors import EngineUnusable, IdempotencyConflict, InvalidInput, Overloaded
from synergai.jobs import JobSpec
from tests.unit.gateway.conftest import GatewayHarness

SPEC = JobSpec(engine=EngineName("echo"), queries=10)


async def test_job_submitted_twice_concurrently_is_one(harness: GatewayHarness) -> None:
    harness.add_worker()
    statuses = await asyncio.gather(
        *(harness.jobs.submit(UNRESTRICTED, SPEC, "key") for _ in range(2))
    )
    assert len({status.id for status in statuses}) == 1


async def test_job_submitted_again_is_found_even_if_new_jobs_are_refused(
    harness: GatewayHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.jobs.submitted.MAX_JOBS", 2)
    harness.add_worker()
    first = await harness.jobs.submit(UNRESTRICTED, SPEC, "key")
    await harness.jobs.submit(UNRESTRICTED, SPEC)
    with pytest.raises(Overloaded):
        await harness.jobs.submit(UNRESTRICTED, SPEC, "another key")
    assert (await harness.jobs.submit(UNRESTRICTED, SPEC, "key")).id == first.id
    with pytest.raises(IdempotencyConflict):
        await harness.jobs.submit(UNRESTRICTED, replace(SPEC, queries=11), "key")


@pytest.mark.parametrize("key", ["a\nb", "k" * 257], ids=["not printable", "too long"])
async def test_unsuitable_key_is_refused(harness: GatewayHarness, key: str) -> None:
    harness.add_worker()
    with pytest.raises(InvalidInput, match="an idempotency key has at most 256 characters"):
        await harness.jobs.submit(UNRESTRICTED, SPEC, key)


async def test_job_without_samples_is_refused(harness: GatewayHarness) -> None:
    worker = harness.add_worker()
    unverified = replace(worker.engines[SPEC.engine], samples=0, unverified="it fails")
    harness.catalogue.update(worker.id, unverified)
    with pytest.raises(EngineUnusable, match="no samples"):
        await harness.jobs.submit(UNRESTRICTED, SPEC)
