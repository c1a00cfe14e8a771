"""Our histograms and counters against those of prometheus_client."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram, generate_latest

from gateway.monitoring.engine_metrics import EngineCollector, EngineMetrics

if TYPE_CHECKING:
    from prometheus_client import Metric

BOUNDS = (
    *(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 3600.0),
)


def exposed(metrics: list[Metric], name: str) -> list[str]:
    registry = CollectorRegistry()
    registry.register(type("Given", (), {"collect": lambda _: metrics})())
    lines = generate_latest(registry).decode().splitlines()
    return [line for line in lines if line.startswith(name) and "_created" not in line]


@given(st.lists(st.sampled_from(BOUNDS) | st.floats(0.0, 1e5), max_size=12))
def test_histogram_is_exposed_as_by_prometheus_client(seconds: list[float]) -> None:
    name = "synergai_waiting_seconds"
    theirs = Histogram(name, "", ["engine"], buckets=BOUNDS, registry=None)
    ours = EngineMetrics()
    theirs.labels("digits")
    for each in seconds:
        theirs.labels("digits").observe(each)
        ours.observe_wait(each)
    collected = list(EngineCollector({"digits": ours}).collect())
    assert exposed(collected, name) == exposed(list(theirs.collect()), name)


def test_requests_are_counted_by_status_code() -> None:
    metrics = EngineMetrics()
    for code in ("OK", "OK", "CANCELLED"):
        metrics.count_request(code)
    lines = exposed(list(EngineCollector({"digits": metrics}).collect()), "synergai_requests_total")
    assert lines == [
        'synergai_requests_total{code="OK",engine="digits"} 2.0',
        'synergai_requests_total{code="CANCELLED",engine="digits"} 1.0',
    ]
