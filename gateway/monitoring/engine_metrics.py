"""Per-engine counters and histograms, and their Prometheus collector.

Several of them change with every request. The instruments of ``prometheus_client`` take a lock
each time; these are plain numbers that only the event loop changes, read when scraped.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from synergai.protocol.oip_server.statistics import EngineStatistics

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from prometheus_client.core import Metric

    from synergai.domain import JobState

_BOUNDS_S: Final = (
    *(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 3600.0),
)
_BOUNDS: Final = (*map(str, _BOUNDS_S), "+Inf")
_COUNTERS: Final = {
    "queries": "Queries recorded",
    "violations": "Requests and jobs that missed their deadline",
    "goodput": "Requests and jobs done in time, those without deadline included",
}
_DURATIONS: Final = {
    "waiting": "From acceptance to the first dispatch",
    "estimated": "From dispatch to completion, as estimated",
    "actual": "From dispatch to completion, as it was",
    "excess": "By how much deadlines were missed",
}


class Histogram:
    """Distribution of durations in seconds."""

    __slots__ = ("_counts", "_sum")

    def __init__(self) -> None:
        self._counts = [0] * len(_BOUNDS)
        self._sum = 0.0

    def observe(self, seconds: float) -> None:
        """Record a duration."""
        self._counts[bisect_left(_BOUNDS_S, seconds)] += 1
        self._sum += seconds

    def buckets(self) -> tuple[list[tuple[str, float]], float]:
        """Return the cumulative count up to each bound, and the sum of all durations."""
        return list(zip(_BOUNDS, accumulate(self._counts), strict=True)), self._sum


class EngineMetrics:
    """Metrics of one engine.

    Attributes:
        requests: completed requests by the name of their status code.
        jobs: ended jobs by final state.
        statistics: figures for the protocol's ModelStatistics.
    """

    __slots__ = ("jobs", "requests", "statistics", *_COUNTERS, *_DURATIONS)

    def __init__(self) -> None:
        self.requests: dict[str, int] = {}
        self.jobs: dict[str, int] = {}
        self.queries = 0
        self.violations = 0
        self.goodput = 0
        self.waiting = Histogram()
        self.estimated = Histogram()
        self.actual = Histogram()
        self.excess = Histogram()
        self.statistics = EngineStatistics()

    def count_request(self, code: str) -> None:
        """Count a completed request by the name of its status code."""
        self.requests[code] = self.requests.get(code, 0) + 1

    def count_job(self, state: JobState) -> None:
        """Count an ended job by its final state."""
        name = state.name.lower()
        self.jobs[name] = self.jobs.get(name, 0) + 1

    def observe_wait(self, seconds: float) -> None:
        """Record the time from acceptance to the first dispatch."""
        self.waiting.observe(seconds)

    def observe_completion(self, estimated_s: float | None, actual_s: float) -> None:
        """Record the time from dispatch to completion and its estimate, if there was one."""
        self.actual.observe(actual_s)
        if estimated_s:
            self.estimated.observe(estimated_s)

    def count_met(self) -> None:
        """Count a request or job that completed in time."""
        self.goodput += 1

    def count_violation(self, excess_s: float) -> None:
        """Count a missed deadline and record by how much it was missed."""
        self.violations += 1
        self.excess.observe(excess_s)


class EngineCollector(Collector):
    """Collects the metrics of all engines; called from another thread than the loop's.

    Args:
        engines: metrics by engine name; the event loop may add to it at any time.
    """

    def __init__(self, engines: dict[str, EngineMetrics]) -> None:
        self._engines = engines

    def collect(self) -> Iterator[Metric]:
        """Yield all metric families."""
        engines = list(self._engines.items())
        yield _labelled_counter("requests", "Single requests answered", "code", engines)
        yield _labelled_counter("jobs", "Jobs ended", "state", engines)
        for name, text in _COUNTERS.items():
            counter = CounterMetricFamily(f"synergai_{name}", text, labels=["engine"])
            for engine, metrics in engines:
                counter.add_metric([engine], getattr(metrics, name))
            yield counter
        for name, text in _DURATIONS.items():
            histogram = HistogramMetricFamily(f"synergai_{name}_seconds", text, labels=["engine"])
            for engine, metrics in engines:
                histogram.add_metric([engine], *getattr(metrics, name).buckets())
            yield histogram


def _labelled_counter(
    name: str, text: str, label: str, engines: Iterable[tuple[str, EngineMetrics]]
) -> Metric:
    """Return a counter with one label beside the engine."""
    counter = CounterMetricFamily(f"synergai_{name}", text, labels=["engine", label])
    for engine, metrics in engines:
        for value, count in list(getattr(metrics, name).items()):
            counter.add_metric([engine, value], count)
    return counter
