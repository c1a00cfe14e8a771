"""The metrics of a gateway at work, by Prometheus' parser and naming conventions."""

import re
from collections.abc import Iterable
from importlib.metadata import version

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from gateway.server import Gateway
from synergai.v1 import jobs_pb2
from tests.http1 import get
from tests.integration.gateway.conftest import Caller, FakeAgent, infer_request

UNITS = ("seconds", "bytes", "joules", "watts", "ratio")
"""Base units; a name that has one ends with it, before the suffix of its type."""
OTHER_UNITS = re.compile(
    "_(s|ms|us|ns|millis|milliseconds|microseconds|nanoseconds|minutes|hours|kb|mb|kib|mib|percent"
    "|kilobytes|megabytes|milliwatts|kwh|wh)(_|$)"
)
TYPES = re.compile("_(counter|gauge|histogram|summary)(_|$)")
LABELS = {"engine", "outcome", "state", "tenant", "worker", "version", "le"}


def violations(families: Iterable[Metric]) -> list[str]:
    """Return what breaks the naming conventions."""
    found = []
    for family in families:
        name = family.name
        if not re.fullmatch("synergai_[a-z]+(_[a-z]+)*", name):
            found.append(f"{name}: not in snake case")
        if not family.documentation.endswith("."):
            found.append(f"{name}: no sentence as help text")
        if family.type not in ("counter", "gauge", "histogram"):
            found.append(f"{name}: has the type {family.type}")
        if OTHER_UNITS.search(name) or TYPES.search(name):
            found.append(f"{name}: has a unit other than a base unit, or its type")
        if any(f"_{unit}_" in name for unit in UNITS):
            found.append(f"{name}: does not end with its unit")
        if family.type == "histogram" and not name.endswith("_seconds"):
            found.append(f"{name}: histogram without a unit")
        if family.type == "gauge" and name.endswith(("_total", "_count", "_sum", "_bucket")):
            found.append(f"{name}: gauge with the suffix of another type")
        for sample in family.samples:
            if family.type == "counter" and sample.name != f"{name}_total":
                found.append(f"{sample.name}: counter without the suffix _total")
            if unknown := sample.labels.keys() - LABELS:
                found.append(f"{sample.name}: has the labels {sorted(unknown)}")
    return found


async def scrape(gateway: Gateway) -> dict[str, Metric]:
    page = await get(gateway.http_address, "/metrics")
    assert page.status == 200
    families = {each.name: each for each in text_string_to_metric_families(page.body.decode())}
    return {name: family for name, family in families.items() if name.startswith("synergai_")}


async def test_metrics_follow_the_naming_conventions(
    agent: FakeAgent, caller: Caller, gateway: Gateway
) -> None:
    await caller.oip.ModelInfer(
        infer_request(), metadata=(("synergai-tenant", "shop"),), timeout=30
    )
    job = (await caller.watched((await caller.submit(5)).id))[-1]
    assert job.state == jobs_pb2.JOB_STATE_SUCCEEDED
    assert len(agent.assignments) >= 2
    families = await scrape(gateway)
    assert violations(families.values()) == []
    values: dict[tuple[str, ...], float] = {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in families.values()
        for sample in family.samples
    }
    assert values["synergai_build_info", version("synergai")] == 1
    assert values["synergai_requests_total", "echo", "ok"] == 1
    assert values["synergai_jobs_total", "echo", "ok"] == 1
    assert values["synergai_queries_total", "echo"] == 6
    assert values["synergai_worker_queries_total", "w1"] == 6
    assert values["synergai_tenant_requests_total", "ok", "shop"] == 1
    assert values["synergai_tenant_jobs_total", "default", "ok"] == 1
    assert values["synergai_worker_queue_depth", "w1"] == 0
    assert values["synergai_requests_in_flight",] == values["synergai_queue_depth",] == 0
    for kind in ("request", "job"):
        assert values[f"synergai_{kind}_run_seconds_count", "echo"] == 1
        assert values[f"synergai_{kind}_queue_seconds_count", "echo"] == 1
        assert values[f"synergai_{kind}_deadline_violations_total", "echo"] == 0
