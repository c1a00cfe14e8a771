"""Our collectors against prometheus_client, and their figures."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram, Metric, generate_latest

from gateway.dispatch.report_intake import count_run
from gateway.monitoring import counts
from gateway.monitoring.metrics import (
    FamilyCollector,
    MetricFamily,
    engine_families,
    tenant_families,
    worker_families,
)
from synergai import errors
from synergai.domain import EngineName, WorkerId
from synergai.jobs import JobState
from synergai.wire.work_transport import SentOver
from tests.unit.gateway.conftest import GatewayHarness


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
