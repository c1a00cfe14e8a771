"""What is counted and measured per engine: plain numbers, and how Prometheus is shown them.

Every request passes here several times. Prometheus' own counters take a lock at each step, which
only the event loop would ever hold; these are added to by the loop alone, and read when asked for.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from gateway.monitoring.statistics import EngineStatistics

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


class Durations:
    """How many durations were of which length, and their sum in seconds."""

    __slots__ = ("_counts", "_sum")

    def __init__(self) -> None:
        self._counts = [0] * len(_BOUNDS)
        self._sum = 0.0

    def add(self, seconds: float) -> None:
        """Count one."""
        self._counts[bisect_left(_BOUNDS_S, seconds)] += 1
        self._sum += seconds

    def shown(self) -> tuple[list[tuple[str, float]], float]:
        """How many were no longer than each bound; and the sum."""
        return list(zip(_BOUNDS, accumulate(self._counts), strict=True)), self._sum


class EngineMetrics:
    """The figures of one engine.

    Attributes:
        requests: single requests answered, by the name of their status code.
        jobs: jobs ended, by state.
        statistics: the same from the protocol's point of view.
    """

    __slots__ = ("jobs", "requests", "statistics", *_COUNTERS, *_DURATIONS)

    def __init__(self) -> None:
        self.requests: dict[str, int] = {}
        self.jobs: dict[str, int] = {}
        self.queries = 0
        self.violations = 0
        self.goodput = 0
        self.waiting = Durations()
        self.estimated = Durations()
        self.actual = Durations()
        self.excess = Durations()
        self.statistics = EngineStatistics()

    def answered(self, code: str) -> None:
        """Count a request by the name of its status code."""
        self.requests[code] = self.requests.get(code, 0) + 1

    def ended(self, state: JobState) -> None:
        """Count a job by the state that it ended in."""
        name = state.name.lower()
        self.jobs[name] = self.jobs.get(name, 0) + 1

    def waited(self, seconds: float) -> None:
        """Measure the time to the first dispatch."""
        self.waiting.add(seconds)

    def completed(self, estimated_s: float | None, actual_s: float) -> None:
        """Measure the time from dispatch to completion beside its estimate, if there was one."""
        self.actual.add(actual_s)
        if estimated_s:
            self.estimated.add(estimated_s)

    def met(self) -> None:
        """Count what was done in time."""
        self.goodput += 1

    def violated(self, excess_s: float) -> None:
        """Count what was not, and measure by how much."""
        self.violations += 1
        self.excess.add(excess_s)


class EngineCollector(Collector):
    """Shows Prometheus the figures of all engines; it does so in another thread.

    Args:
        engines: by name; whoever adds to it may do so meanwhile.
    """

    def __init__(self, engines: dict[str, EngineMetrics]) -> None:
        self._engines = engines

    def collect(self) -> Iterator[Metric]:
        """All that there is."""
        engines = list(self._engines.items())
        yield _counted("requests", "Single requests answered", "code", engines)
        yield _counted("jobs", "Jobs ended", "state", engines)
        for name, text in _COUNTERS.items():
            counter = CounterMetricFamily(f"synergai_{name}", text, labels=["engine"])
            for engine, metrics in engines:
                counter.add_metric([engine], getattr(metrics, name))
            yield counter
        for name, text in _DURATIONS.items():
            histogram = HistogramMetricFamily(f"synergai_{name}_seconds", text, labels=["engine"])
            for engine, metrics in engines:
                histogram.add_metric([engine], *getattr(metrics, name).shown())
            yield histogram


def _counted(
    name: str, text: str, label: str, engines: Iterable[tuple[str, EngineMetrics]]
) -> Metric:
    """A counter with one more label."""
    counter = CounterMetricFamily(f"synergai_{name}", text, labels=["engine", label])
    for engine, metrics in engines:
        for value, count in list(getattr(metrics, name).items()):
            counter.add_metric([engine, value], count)
    return counter
