"""What the gateway counts and measures, for Prometheus."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
)
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

from gateway.statistics import EngineStatistics

if TYPE_CHECKING:
    from collections.abc import Callable

    from synergai.domain import JobState

_BUCKETS: Final = (
    *(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 3600.0),
)


class Metrics:
    """The instruments, in a registry of their own.

    What is measured per engine is bound to it once, in `EngineMetrics`.
    """

    def __init__(self) -> None:
        # Otherwise every counter and histogram brings another series: when it began.
        disable_created_metrics()  # type: ignore[no-untyped-call]  # the library's own omission
        self.registry = CollectorRegistry()
        for collector in (GCCollector, PlatformCollector, ProcessCollector):
            collector(registry=self.registry)
        self.requests = self._counter("requests", "Single requests answered", "engine", "code")
        self.jobs = self._counter("jobs", "Jobs ended", "engine", "state")
        self.queries = self._counter("queries", "Queries recorded", "engine")
        self.violations = self._counter(
            "violations", "Requests and jobs that missed their deadline", "engine"
        )
        self.goodput = self._counter(
            "goodput", "Requests and jobs done in time, those without deadline included", "engine"
        )
        self.waiting = self._histogram("waiting", "From acceptance to the first dispatch")
        self.estimated = self._histogram("estimated", "From dispatch to completion, as estimated")
        self.actual = self._histogram("actual", "From dispatch to completion, as it was")
        self.excess = self._histogram("excess", "By how much deadlines were missed")
        self.stale_reports = Counter(
            "synergai_stale_reports",
            "Reports under assignments that were not outstanding",
            registry=self.registry,
        )
        self.refused_agents = Counter(
            "synergai_refused_agents",
            "Streams of agents that were ended for what they sent",
            registry=self.registry,
        )
        self._engines: dict[str, EngineMetrics] = {}

    def engine(self, name: str) -> EngineMetrics:
        """The instruments of one engine; only of engines that exist, lest labels run over."""
        found = self._engines.get(name)
        if found is None:
            found = self._engines[name] = EngineMetrics(self, name)
        return found

    def gauge(self, name: str, text: str, read: Callable[[], float]) -> None:
        """Show what `read` returns; it is called from another thread."""
        Gauge(f"synergai_{name}", text, registry=self.registry).set_function(read)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"synergai_{name}", text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str) -> Histogram:
        return Histogram(
            f"synergai_{name}_seconds", text, ["engine"], buckets=_BUCKETS, registry=self.registry
        )


class EngineMetrics:
    """The instruments of one engine.

    Attributes:
        statistics: the same from the protocol's point of view.
    """

    def __init__(self, metrics: Metrics, engine: str) -> None:
        self.statistics = EngineStatistics()
        self._engine = engine
        self._requests = metrics.requests
        self._jobs = metrics.jobs
        self._codes: dict[str, Counter] = {}
        self.queries = metrics.queries.labels(engine)
        self._violations = metrics.violations.labels(engine)
        self._goodput = metrics.goodput.labels(engine)
        self._waiting = metrics.waiting.labels(engine)
        self._estimated = metrics.estimated.labels(engine)
        self._actual = metrics.actual.labels(engine)
        self._excess = metrics.excess.labels(engine)

    def answered(self, code: str) -> None:
        """Count a request by the name of its status code."""
        counter = self._codes.get(code)
        if counter is None:
            counter = self._codes[code] = self._requests.labels(self._engine, code)
        counter.inc()

    def ended(self, state: JobState) -> None:
        """Count a job by the state that it ended in."""
        self._jobs.labels(self._engine, state.name.lower()).inc()

    def waited(self, seconds: float) -> None:
        """Measure the time to the first dispatch."""
        self._waiting.observe(seconds)

    def completed(self, estimated_s: float | None, actual_s: float) -> None:
        """Measure the time from dispatch to completion beside its estimate, if there was one."""
        self._actual.observe(actual_s)
        if estimated_s:
            self._estimated.observe(estimated_s)

    def met(self) -> None:
        """Count what was done in time."""
        self._goodput.inc()

    def violated(self, excess_s: float) -> None:
        """Count what was not, and measure by how much."""
        self._violations.inc()
        self._excess.observe(excess_s)
