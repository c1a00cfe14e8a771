"""Quotas, limits and priority ceilings: what is counted, what is refused, and what is forgotten."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.entry.access.caller import Caller, Grant, Role
from gateway.entry.access.table import AccessTable, Quota
from gateway.entry.admission import Admission, TenantUsage, TokenBucket
from gateway.journal.journal import Journal
from synergai.domain import EngineName
from synergai.errors import InvalidInput, Overloaded, PermissionDenied, QuotaExceeded
from synergai.jobs import JobSpec
from synergai.oip.inference_pb2 import InferParameter
from synergai.runtime.clock import Clock
from tests.unit.gateway.conftest import FakeClock, GatewayHarness


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def quotas_of(clock: FakeClock, **tenants: Quota) -> Admission:
    return Admission(9, 1 << 30, clock, AccessTable(tenants=tenants))


def refusal(start: Callable[[], object]) -> QuotaExceeded:
    with pytest.raises(QuotaExceeded) as caught:
        start()
    return caught.value


def test_burst_of_a_second_passes_and_then_the_rate(clock: FakeClock) -> None:
    quotas = quotas_of(clock, lab=Quota(requests_per_s=10.0))
    for _ in range(10):
        quotas.start_request("lab", 1)
    error = refusal(lambda: quotas.start_request("lab", 1))
    assert error.quota == "requests_per_s"
    assert error.retry_after_s == pytest.approx(0.1)
    assert str(error) == (
        "tenant 'lab' has used up its quota requests_per_s = 10; try again in 0.1 s"
    )
    clock.time += 0.1
    quotas.start_request("lab", 1)
    with pytest.raises(QuotaExceeded):
        quotas.start_request("lab", 1)


def test_refused_request_uses_nothing(clock: FakeClock) -> None:
    quotas = quotas_of(clock, lab=Quota(requests_per_s=5.0, bytes_per_s=10.0))
    quotas.start_request("lab", 10)
    for _ in range(100):
        assert refusal(lambda: quotas.start_request("lab", 10)).quota == "bytes_per_s"
    clock.time += 1.0
    usage = quotas.start_request("lab", 10)
    assert usage is not None
    assert usage.in_flight == 2
    used = {name: bucket.used(clock.time) for name, bucket in usage._rates.items()}
    assert used == {"requests_per_s": 1.0, "bytes_per_s": 10.0}


@given(
    rate=st.floats(0.1, 1e4),
    steps=st.lists(st.tuples(st.floats(0.0, 3.0), st.floats(0.1, 100.0)), max_size=60),
)
def test_bucket_never_passes_more_than_its_rate_and_a_burst(
    rate: float, steps: list[tuple[float, float]]
) -> None:
    now, taken, largest = 0.0, 0.0, 0.0
    bucket = TokenBucket(rate, now)
    for pause, cost in steps:
        now += pause
        if not bucket.wait_s(cost, now):
            bucket.take(cost, now)
            taken += cost
            largest = max(largest, cost)
        else:
            later = now + bucket.wait_s(cost, now)
            assert bucket.wait_s(cost, later + 1e-6) == 0.0
        assert taken <= bucket.capacity + rate * now + largest + 1e-6


@pytest.mark.parametrize(
    ("quota", "name", "start", "end"),
    [
        (
            Quota(requests_in_flight=2),
            "requests_in_flight",
            lambda quotas: quotas.start_request("lab", 1),
            lambda usage: usage.end_request(),
        ),
        (
            Quota(unfinished_jobs=2),
            "unfinished_jobs",
            lambda quotas: quotas.start_job("lab", 7),
            lambda usage: usage.end_job(),
        ),
    ],
)
def test_number_at_a_time_is_limited(
    clock: FakeClock,
    quota: Quota,
    name: str,
    start: Callable[[Admission], TenantUsage | None],
    end: Callable[[TenantUsage], None],
) -> None:
    quotas = quotas_of(clock, lab=quota)
    usage = start(quotas)
    assert usage is not None
    start(quotas)
    error = refusal(lambda: start(quotas))
    assert (error.tenant, error.quota, error.retry_after_s) == ("lab", name, None)
    assert f"{name} = 2" in str(error)
    end(usage)
    start(quotas)


def test_trying_again_helps_unless_what_is_to_be_stored_exceeds_the_quota_alone(
    clock: FakeClock,
) -> None:
    quotas = quotas_of(clock, lab=Quota(stored_bytes=100))
    assert "try again later" in str(refusal(lambda: quotas.check_stored("lab", 90, 11)))
    assert "does not help" in str(refusal(lambda: quotas.check_stored("lab", 0, 101)))


def test_restored_jobs_count_even_beyond_the_quota(clock: FakeClock) -> None:
    quotas = quotas_of(clock, lab=Quota(unfinished_jobs=1))
    restored = [quotas.restore_job("lab") for _ in range(2)]
    assert restored[0] is not None
    restored[0].end_job()
    with pytest.raises(QuotaExceeded):
        quotas.start_job("lab", 1)
    restored[0].end_job()
    quotas.start_job("lab", 1)


def test_tenants_do_not_share_a_quota(clock: FakeClock) -> None:
    quotas = quotas_of(clock, lab=Quota(requests_per_s=1.0), default=Quota(requests_per_s=2.0))
    quotas.start_request("lab", 1)
    for tenant in ("shop", "kiosk", ""):
        quotas.start_request(tenant, 1)
        quotas.start_request(tenant, 1)
        with pytest.raises(QuotaExceeded):
            quotas.start_request(tenant, 1)
    with pytest.raises(QuotaExceeded, match="tenant 'lab'"):
        quotas.start_request("lab", 1)


def test_another_table_applies_at_once_and_keeps_what_is_in_use(clock: FakeClock) -> None:
    quotas = quotas_of(clock, lab=Quota(requests_per_s=10.0, requests_in_flight=4))
    started = [quotas.start_request("lab", 1) for _ in range(4)]
    job = quotas.start_job("lab", 1)
    quotas.use_table(AccessTable(tenants={"lab": Quota(requests_per_s=5.0, unfinished_jobs=1)}))
    assert refusal(lambda: quotas.start_job("lab", 1)).quota == "unfinished_jobs"
    quotas.start_request("lab", 1)
    assert refusal(lambda: quotas.start_request("lab", 1)).quota == "requests_per_s"
    assert started[0] is job is not None
    assert (job.in_flight, job.jobs) == (5, 1)
    quotas.use_table(AccessTable())
    quotas.start_request("lab", 1)
    quotas.use_table(AccessTable(tenants={"default": Quota(requests_in_flight=6)}))
    assert refusal(lambda: quotas.start_request("lab", 1)).quota == "requests_in_flight"


def test_idle_tenants_are_forgotten_and_busy_ones_kept(clock: FakeClock) -> None:
    quotas = quotas_of(clock, default=Quota(requests_per_s=10.0))
    for number in range(5000):
        clock.time += 0.01
        usage = quotas.start_request(f"tenant-{number}", 1)
        assert usage is not None
        if number:
            usage.end_request()
        assert len(quotas._usages) <= 64
    assert "tenant-0" in quotas._usages


def test_number_of_busy_tenants_is_limited(clock: FakeClock) -> None:
    table = AccessTable(tenants={"default": Quota(requests_in_flight=1)})
    quotas = Admission(9, 1 << 30, clock, table, max_tenants=3)
    started = [quotas.start_request(f"tenant-{number}", 1) for number in range(3)]
    for _ in range(2):
        with pytest.raises(Overloaded, match="3 tenants are active"):
            quotas.start_request("one more", 1)
    assert started[0] is not None
    started[0].end_request()
    with pytest.raises(Overloaded):  # all of them were just looked at
        quotas.start_request("one more", 1)
    clock.time += 1.0
    quotas.start_request("one more", 1)


def test_rejections_are_counted_by_a_bounded_number_of_tenants(clock: FakeClock) -> None:
    quotas = quotas_of(clock, lab=Quota(requests_in_flight=1), default=Quota(unfinished_jobs=0))
    quotas.start_request("lab", 1)
    for _ in range(3):
        with pytest.raises(QuotaExceeded):
            quotas.start_request("lab", 1)
    for number in range(200):
        with pytest.raises(QuotaExceeded):
            quotas.start_job(f"tenant-{number}", 1)
    assert quotas.rejections["lab", "requests_in_flight"] == 3
    assert quotas.rejections["tenant-0", "unfinished_jobs"] == 1
    assert quotas.rejections["other", "unfinished_jobs"] == 101
    assert len(quotas.rejections) < 200


# --- admission --------------------------------------------------------------------------------


async def test_admission_limits_requests_and_bytes_but_admits_one_large_request() -> None:
    admission = Admission(2, 10, Clock())
    admission.acquire(100)
    with pytest.raises(Overloaded, match="bytes"):
        admission.acquire(1)
    admission.release(100)
    admission.acquire(5)
    admission.acquire(5)
    with pytest.raises(Overloaded, match="requests"):
        admission.acquire(0)


# --- settings ---------------------------------------------------------------------------------


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


async def test_job_submitted_twice_at_once_is_one_and_counts_once(harness: GatewayHarness) -> None:
    harness.add_worker()
    limit(harness, unfinished_jobs=2)
    first, second = await asyncio.gather(
        *(harness.jobs.submit(CAMERA, SPEC, "key") for _ in range(2))
    )
    assert first.id == second.id
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
