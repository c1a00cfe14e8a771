"""Statistics, metrics, traces, and the feed of the fleet page."""

import asyncio
import sys
from collections.abc import AsyncGenerator, Iterable
from contextlib import AsyncExitStack, aclosing

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from prometheus_client import CollectorRegistry, Histogram, Metric, generate_latest

from gateway.calls.http import fleet_page
from gateway.calls.http.fleet_page import MAX_VIEWERS, FleetFeed
from gateway.calls.servicers.engines import engine_config, engine_statistics
from gateway.dispatch.report_intake import count_run
from gateway.monitoring import counts
from gateway.monitoring.counts import EngineStatistics
from gateway.monitoring.metrics import (
    FamilyCollector,
    MetricFamily,
    engine_families,
    tenant_families,
    worker_families,
)
from gateway.monitoring.tracing import Tracing
from synergai import errors
from synergai.core.routes.deployment import EngineDeployment
from synergai.domain import Engine, EngineName, WorkerId
from synergai.errors import InvalidInput, Overloaded
from synergai.fleet_page.page_state import PageState
from synergai.jobs import JobState
from synergai.oip import inference_pb2 as oip
from synergai.runtime.clock import Clock
from synergai.wire.agent_messages import ProtocolViolation
from synergai.wire.parameters import CallIds, ids_from_metadata
from synergai.wire.work_transport import SentOver
from tests.staged_runs import staged_run
from tests.unit.gateway.conftest import GatewayHarness


def statistics(harness: GatewayHarness) -> EngineStatistics:
    found: EngineStatistics = harness.metrics.engines["echo"].statistics
    return found


async def test_successful_request_is_counted_with_its_times(harness: GatewayHarness) -> None:
    worker = harness.add_worker()
    request, assignment = harness.started(worker)
    harness.complete(
        worker, assignment, [oip.ModelInferResponse().SerializeToString()], done=1, compute_s=1e-9
    )
    assert request.result.done()
    found = statistics(harness)
    assert found.success.count == found.queue.count == found.transfer.count == 1
    assert found.compute.count == 1
    parts = found.queue.seconds + found.transfer.seconds + found.compute.seconds
    assert found.success.seconds == pytest.approx(parts)
    assert found.last_query_at is not None


async def test_reported_compute_time_is_limited_by_elapsed_time(harness: GatewayHarness) -> None:
    worker = harness.add_worker()
    _, assignment = harness.started(worker)
    harness.complete(worker, assignment, [b""], done=1, compute_s=1e6)
    assert statistics(harness).transfer.seconds == 0
    assert statistics(harness).success.seconds < 1e3


async def test_rejected_expired_cancelled_and_failed_requests_are_counted_separately(
    harness: GatewayHarness,
) -> None:
    harness.add_worker()
    harness.begin_request().abandon()
    with pytest.raises(Exception, match="deadline"):
        harness.begin_request(budget_s=0.0)
    with pytest.raises(Exception, match="needs 4 bytes"):
        harness.begin_request(raw_input_contents=[b"x"])
    for _ in range(4):
        harness.begin_request()
    with pytest.raises(Overloaded):
        harness.begin_request()
    found = statistics(harness)
    counts = [d.count for d in (found.cancelled, found.expired, found.fail, found.rejected)]
    assert counts == [1, 1, 1, 1]
    assert found.success.count == 0


async def test_statistics_convert_to_tritons_message(
    harness: GatewayHarness, engine: Engine
) -> None:
    found = statistics(harness)
    found.record_compute(4, 2.0, harness.clock.now())
    found.record_success(0.25, 0.5, 1.0)
    found.cancelled.add(3.0)
    message = engine_statistics(engine, found, harness.clock)
    assert (message.inference_count, message.execution_count) == (4, 4)
    assert message.last_inference > 1.6e12
    stats = message.inference_stats
    assert (stats.success.count, stats.success.ns) == (1, 1_750_000_000)
    assert (stats.queue.ns, stats.compute_input.ns) == (250_000_000, 500_000_000)
    assert (stats.compute_infer.count, stats.compute_infer.ns) == (4, 2_000_000_000)
    assert stats.cancelled.count == message.response_stats["0"].cancel.count == 1
    assert [batch.batch_size for batch in message.batch_stats] == [1]


async def test_batch_counts_as_one_execution_of_its_size(
    harness: GatewayHarness, engine: Engine
) -> None:
    found = statistics(harness)
    found.record_compute(3, 0.5, 0.0)
    for _ in range(8):
        found.record_compute(1, 0.25, 0.0, batch=4)
    message = engine_statistics(engine, found, harness.clock)
    assert (message.inference_count, message.execution_count) == (11, 5)
    assert message.inference_stats.compute_infer.ns == 2_500_000_000
    sizes = {each.batch_size: each.compute_infer for each in message.batch_stats}
    assert (sizes[1].count, sizes[1].ns) == (3, 500_000_000)
    assert (sizes[4].count, sizes[4].ns) == (2, 500_000_000)


async def test_batch_beyond_the_limit_is_a_protocol_violation(harness: GatewayHarness) -> None:
    worker = harness.add_worker()
    _, assignment = harness.started(worker)
    with pytest.raises(ProtocolViolation, match="batch of 2 queries"):
        harness.complete(worker, assignment, [b""], done=1, batch=2)


def test_configuration_excludes_the_batch_dimension_of_a_batching_engine_only(
    engine: Engine,
) -> None:
    config = engine_config(replace(engine, max_batch=8))
    assert config.max_batch_size == 8
    assert config.HasField("dynamic_batching")
    assert [list(tensor.dims) for tensor in config.input] == [[]]
    assert [list(tensor.dims) for tensor in config.output] == [[]]
    config = engine_config(engine)
    assert config.max_batch_size == 0
    (tensor,) = config.input
    assert (tensor.name, tensor.data_type, list(tensor.dims)) == ("x", 11, [-1])
    assert list(config.version_policy.specific.versions) == [1]


def exposed(metrics: list[Metric], name: str) -> list[str]:
    registry = CollectorRegistry()
    registry.register(type("Given", (), {"collect": lambda _: metrics})())
    lines = generate_latest(registry).decode().splitlines()
    return [line for line in lines if line.startswith(name) and "_created" not in line]


def collected(families: Iterable[MetricFamily]) -> list[Metric]:
    collector = FamilyCollector()
    collector.add(*families)
    collector.snapshot()
    return list(collector.collect())


@pytest.mark.parametrize(
    ("kind", "buckets"), [("request", counts.REQUEST_BUCKETS), ("job", counts.JOB_BUCKETS)]
)
@given(data=st.data())
def test_histogram_is_exposed_as_by_prometheus_client(
    kind: str, buckets: counts.Buckets, data: st.DataObject
) -> None:
    durations = st.sampled_from(buckets.bounds) | st.floats(0.0, 1e5)
    name = f"synergai_{kind}_queue_seconds"
    theirs = Histogram(name, "", ["engine"], buckets=buckets.bounds, registry=None)
    ours = counts.EngineMetrics()
    theirs.labels("digits")
    for seconds in data.draw(st.lists(durations, max_size=12)):
        theirs.labels("digits").observe(seconds)
        (ours.requests if kind == "request" else ours.jobs).queue.observe(seconds)
    families = [f for f in collected(engine_families({"digits": ours})) if f.name == name]
    assert exposed(families, name) == exposed(list(theirs.collect()), name)


def test_scrape_shows_the_last_snapshot() -> None:
    metrics = counts.EngineMetrics()
    collector = FamilyCollector()
    collector.add(*engine_families({"digits": metrics}))
    assert list(collector.collect()) == []
    collector.snapshot()
    metrics.queries += 1
    metrics.requests.count("ok")
    metrics.requests.queue.observe(1.0)
    families = list(collector.collect())
    assert exposed(families, "synergai_queries_total") == [
        'synergai_queries_total{engine="digits"} 0.0'
    ]
    assert exposed(families, "synergai_requests_total") == []
    assert 'synergai_request_queue_seconds_sum{engine="digits"} 0.0' in exposed(
        families, "synergai_request_queue_seconds_sum"
    )


@pytest.mark.parametrize(
    ("error", "late", "outcome"),
    [
        (None, False, "ok"),
        (None, True, "late"),
        (errors.DeadlineExceeded(""), True, "expired"),
        (errors.Overloaded(""), False, "rejected"),
        (errors.Cancelled(""), True, "cancelled"),
        (errors.InvalidInput(""), False, "invalid"),
        (errors.EngineNotFound("x"), False, "invalid"),
        (errors.NotSupported(""), False, "invalid"),
        (errors.EngineUnusable(""), False, "failed"),
        (errors.Unavailable(""), True, "failed"),
    ],
)
def test_outcome_of_a_request(error: errors.SynergaiError | None, late: bool, outcome: str) -> None:
    assert counts.request_outcome(error, late=late) == outcome


def test_outcome_of_a_job_is_its_state_or_whether_it_was_in_time() -> None:
    ended = {state: counts.job_outcome(state) for state in JobState if state.ended}
    assert sorted(ended.values()) == ["cancelled", "expired", "failed", "ok", "rejected"]
    assert counts.job_outcome(JobState.SUCCEEDED, late=True) == "late"
    assert counts.job_outcome(JobState.EXPIRED, late=True) == "expired"


def test_tenants_beyond_the_limit_share_a_label() -> None:
    tenants = counts.TenantCounts(limit=2)
    for tenant in ("", "lab", "shop", "lab", "other", "kiosk"):
        tenants.count_request(tenant, "ok")
    tenants.count_job("shop", "ok")
    families = collected(tenant_families(tenants))
    assert exposed(families, "synergai_tenant_requests_total") == [
        'synergai_tenant_requests_total{outcome="ok",tenant="default"} 1.0',
        'synergai_tenant_requests_total{outcome="ok",tenant="lab"} 2.0',
        'synergai_tenant_requests_total{outcome="ok",tenant="other"} 3.0',
    ]
    assert exposed(families, "synergai_tenant_jobs_total") == [
        'synergai_tenant_jobs_total{outcome="ok",tenant="other"} 1.0'
    ]


async def test_worker_has_its_load_and_the_error_of_its_estimates(
    harness: GatewayHarness,
) -> None:
    worker = harness.add_worker()
    worker.busy_s = 2.0
    count_run(worker, estimate_s=1.0, run_s=1.5)
    count_run(worker, estimate_s=1.0, run_s=0.75)
    harness.begin_request()
    assert len(worker.in_flight) == 1
    paces = {(WorkerId("w1"), EngineName("echo")): 1.25}
    families = collected(worker_families(lambda: [worker], lambda: paces))
    values = {
        (sample.name.removeprefix("synergai_worker_"), *sample.labels.values()): sample.value
        for family in families
        for sample in family.samples
    }
    assert values == {
        ("queries_total", "w1"): 0,
        ("busy_seconds_total", "w1"): 2.0,
        ("assignments", "w1"): 1,
        ("queue_depth", "w1"): 1,
        ("pace_ratio", "w1", "echo"): 1.25,
        ("run_seconds_total", "w1"): 2.25,
        ("estimated_run_seconds_total", "w1"): 2.0,
        ("estimate_error_seconds_total", "w1"): 0.75,
    }


async def test_links_between_workers_are_those_that_they_have_learned(
    harness: GatewayHarness,
) -> None:
    holder, puller = harness.add_worker("w1"), harness.add_worker("w2")
    puller.peer_links = {"w1": SentOver(2e6, 0.003), "gone": SentOver(1e6, 0.001)}
    holder.peer_links = {"w2": SentOver(0.0, 0.0)}
    families = collected(worker_families(lambda: [holder, puller], dict))
    assert exposed(families, "synergai_peer_link") == [
        'synergai_peer_link_speed_bytes{source="w1",worker="w2"} 2e+06',
        'synergai_peer_link_round_trip_seconds{source="w1",worker="w2"} 0.003',
    ]


CONTEXT = f"00-{'1' * 32}-{'2' * 16}"


def test_missing_package_is_named_with_the_extra_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(InvalidInput, match=r"--traces needs opentelemetry.*tracing"):
        Tracing("http://127.0.0.1:1", 0.0, Clock())


@pytest.mark.parametrize(
    ("traceparent", "share", "traced"),
    [
        (f"{CONTEXT}-01", 0.0, True),
        (f"{CONTEXT}-03", 0.0, True),
        (f"{CONTEXT}-00", 1.0, False),
        ("", 0.0, False),
        ("", 1.0, True),
        ("00-1-2-01", 0.0, False),
        (f"{CONTEXT}-01-more", 0.0, False),
    ],
)
async def test_client_decides_and_a_share_of_the_others_is_traced(
    traceparent: str, share: float, traced: bool
) -> None:
    tracing = Tracing("http://127.0.0.1:1", share, Clock())
    assert (tracing.begin_trace(traceparent) is not None) == traced
    await tracing.close()


def test_ids_of_a_call_are_read_from_its_metadata() -> None:
    metadata = (("a", "b"), ("traceparent", "c"), ("request-id", "mine"), ("x-bin", b"\0"))
    assert ids_from_metadata(metadata) == CallIds("mine", "c")
    assert ids_from_metadata((("request-id", "not valid"),)) == CallIds()


@pytest.fixture(autouse=True)
def _no_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_page, "INTERVAL_S", 0.0)
    monkeypatch.setattr(fleet_page, "_STAGGER_S", 0.0)


def make_feed() -> FleetFeed:
    page = PageState()
    for step in staged_run(2, 10):
        page.record(*step)
    deployed = EngineDeployment(engine=EngineName("net"), state="deployed")
    return FleetFeed(page, lambda: (), lambda: [deployed], lambda: 9.0, lambda: None)


async def kind(messages: AsyncGenerator[bytes, None]) -> bytes:
    message = await anext(messages)
    assert message.endswith(b"\n\n")
    return message.split(b"\n")[0]


async def test_state_has_the_deployments_of_engines() -> None:
    async with aclosing(make_feed().messages()) as messages:
        assert b'"kind":"deployment","id":"net","state":"deployed"' in await anext(messages)


async def test_viewers_get_the_state_and_then_share_the_bytes_of_changes() -> None:
    feed = make_feed()
    async with aclosing(feed.messages()) as one, aclosing(feed.messages()) as other:
        assert (await kind(one), await kind(other)) == 2 * (b"event: state",)
        for _ in range(3):
            changes = await anext(one)
            assert changes.startswith(b"event: changes\n")
            assert await anext(other) is changes


async def test_viewer_that_missed_changes_gets_the_state_again() -> None:
    feed = make_feed()
    async with aclosing(feed.messages()) as slow, aclosing(feed.messages()) as fast:
        assert await kind(slow) == b"event: state"
        for _ in range(200):
            await anext(fast)
        assert await kind(slow) == b"event: state"
        assert await kind(slow) == b"event: changes"


async def test_viewer_gets_no_state_whose_changes_are_about_to_go() -> None:
    feed = make_feed()
    async with aclosing(feed.messages()) as first:
        await anext(first)
        for _ in range(fleet_page._KEPT - 2):
            await anext(first)
        async with aclosing(feed.messages()) as late:
            assert await kind(late) == b"event: state"
            for _ in range(5):
                await asyncio.sleep(0)
            assert await kind(late) == b"event: changes"


async def test_large_state_comes_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_page, "_PART", 10)
    feed = make_feed()
    async with aclosing(feed.messages()) as messages:
        assert await kind(messages) == b"event: state"
        for _ in range(2):
            assert (await anext(messages)).count(b'"kind"') == 10


async def test_viewers_are_limited() -> None:
    feed = make_feed()
    async with AsyncExitStack() as stack:
        for _ in range(MAX_VIEWERS):
            await anext(await stack.enter_async_context(aclosing(feed.messages())))
        with pytest.raises(Overloaded, match="viewers"):
            await anext(feed.messages())
    async with aclosing(feed.messages()) as messages:
        assert await kind(messages) == b"event: state"


async def test_nothing_is_published_without_viewers() -> None:
    feed = make_feed()
    async with aclosing(feed.messages()) as messages:
        await anext(messages)
    before = len(asyncio.all_tasks())
    published = feed._next
    for _ in range(5):
        await asyncio.sleep(0)
    assert (len(asyncio.all_tasks()), feed._next) == (before, published)
