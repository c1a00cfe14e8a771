"""Quotas and priority ceilings, applied to requests and jobs."""

import asyncio
from pathlib import Path

import pytest

from gateway.entry.access.caller import Caller, Grant, Role
from gateway.entry.access.table import AccessTable, Quota
from gateway.entry.admission import TenantUsage
from gateway.journal.journal import Journal
from synergai.domain import EngineName
from synergai.errors import InvalidInput, PermissionDenied, QuotaExceeded
from synergai.jobs import JobSpec
from synergai.oip.inference_pb2 import InferParameter
from tests.unit.gateway.conftest import GatewayHarness

SPEC = JobSpec(engine=EngineName("echo"), queries=10)
GRANT = Grant(to=("camera",), roles=frozenset({Role.INFER, Role.SUBMIT}))
CAMERA = Caller("camera", "lab", (GRANT,), max_priority=3)


def limit(harness: GatewayHarness, **quota: float) -> None:
    harness.admission.use_table(AccessTable(tenants={"lab": Quota(**quota)}))  # type: ignore[arg-type]  # some limits are whole


def priority(level: int) -> dict[str, InferParameter]:
    """Return a request's parameters with a priority as the protocol counts it."""
    return {"priority": InferParameter(int64_param=level)}


def usage(harness: GatewayHarness) -> TenantUsage:
    (found,) = harness.admission._usages.values()
    return found


async def test_request_counts_for_the_callers_tenant_until_it_ends(
    harness: GatewayHarness,
) -> None:
    worker = harness.add_worker()
    limit(harness, requests_in_flight=1)
    request = harness.begin_request(caller=CAMERA)
    assert request.job.tenant == "lab"
    with pytest.raises(QuotaExceeded, match="requests_in_flight = 1"):
        harness.begin_request(caller=CAMERA)
    assert harness.metric("tenant_requests_total", tenant="lab", outcome="rejected") == 1
    harness.begin_request()
    harness.complete(worker, harness.assignments(worker)[0], [b""], done=1)
    harness.dispatcher.flush()
    assert usage(harness).in_flight == 0
    harness.begin_request(caller=CAMERA).abandon()
    assert usage(harness).in_flight == 0


async def test_request_that_is_refused_for_another_reason_frees_its_room(
    harness: GatewayHarness,
) -> None:
    harness.add_worker()
    limit(harness, requests_in_flight=1, requests_per_s=10.0)
    with pytest.raises(InvalidInput):
        harness.begin_request(caller=CAMERA, raw_input_contents=[b"x"])
    assert usage(harness).in_flight == 0
    assert harness.admission.requests == 0


async def test_priority_of_requests_and_jobs_is_limited(harness: GatewayHarness) -> None:
    harness.add_worker()
    with pytest.raises(PermissionDenied, match="priority 9 exceeds"):
        harness.begin_request(caller=CAMERA, parameters=priority(1))
    harness.begin_request(caller=CAMERA, parameters=priority(7))
    with pytest.raises(PermissionDenied, match="priority 4 exceeds"):
        await harness.jobs.submit(CAMERA, JobSpec(engine=EngineName("echo"), priority=4))
    await harness.jobs.submit(CAMERA, JobSpec(engine=EngineName("echo"), priority=3))


async def test_job_counts_until_it_ends(harness: GatewayHarness) -> None:
    worker = harness.add_worker()
    limit(harness, unfinished_jobs=1, queries_per_job=10)
    first = await harness.jobs.submit(CAMERA, SPEC, "key")
    with pytest.raises(QuotaExceeded, match="unfinished_jobs = 1"):
        await harness.jobs.submit(CAMERA, SPEC)
    assert (await harness.jobs.submit(CAMERA, SPEC, "key")).id == first.id
    harness.complete(worker, harness.assignments(worker)[0], done=10)
    assert [status async for status in harness.jobs.watch(CAMERA, first.id)][-1].state.ended
    assert usage(harness).jobs == 0
    with pytest.raises(QuotaExceeded, match="queries_per_job = 10"):
        await harness.jobs.submit(CAMERA, JobSpec(engine=EngineName("echo"), queries=11))


async def test_job_submitted_twice_at_once_counts_once(harness: GatewayHarness) -> None:
    harness.add_worker()
    limit(harness, unfinished_jobs=2)
    await asyncio.gather(*(harness.jobs.submit(CAMERA, SPEC, "key") for _ in range(2)))
    assert usage(harness).jobs == 1


async def test_unfinished_jobs_count_after_a_restart(tmp_path: Path) -> None:
    for restored in range(2):
        harness = GatewayHarness(Journal(tmp_path))
        limit(harness, unfinished_jobs=1)
        assert await harness.jobs.restore() == restored
        harness.add_worker()
        if not restored:
            await harness.jobs.submit(CAMERA, SPEC)
        with pytest.raises(QuotaExceeded, match="unfinished_jobs = 1"):
            await harness.jobs.submit(CAMERA, SPEC)
        harness.dispatcher.close()
        await harness.journal.close()
