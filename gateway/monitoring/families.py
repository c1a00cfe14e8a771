"""Metric families: read on the event loop, rendered by another thread.

The instruments of ``prometheus_client`` would take a lock for each count; here, only the event loop
changes or reads the numbers. At a scrape it takes a snapshot of them, which another thread renders.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar as Shown

from gateway.monitoring.counts import HistogramSnapshot

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from prometheus_client.core import Metric

    from gateway.monitoring.counts import Exemplar

    Series: TypeAlias = tuple[Sequence[str], float | HistogramSnapshot]

PREFIX: Final = "synergai_"


class MetricFamily(NamedTuple):
    """A metric family."""

    new: Callable[..., Any]
    name: str
    text: str
    labels: tuple[str, ...]
    read: Callable[[], Iterable[Series]]

    def render(self, series: Iterable[Series]) -> Metric:
        """Return the family with some series, in the library's form."""
        family = self.new(PREFIX + self.name, self.text, labels=self.labels)
        for labels, value in series:
            if isinstance(value, HistogramSnapshot):
                buckets = zip(value.buckets.labels, accumulate(value.counts), strict=True)
                shown = [
                    (*bucket, _exemplar(value.exemplars.get(number)))
                    for number, bucket in enumerate(buckets)
                ]
                family.add_metric(labels, shown, value.total)
            else:
                family.add_metric(labels, value)
        return family  # type: ignore[no-any-return]  # the library's families share no `add_metric`


def _exemplar(found: Exemplar | None) -> Shown | None:
    return found and Shown({"trace_id": found.trace_id}, found.seconds, found.unix)


def counter(
    name: str, text: str, read: Callable[[], Iterable[Series]], *labels: str
) -> MetricFamily:
    """Return a counter family; its series get the suffix ``_total``."""
    return MetricFamily(CounterMetricFamily, name, text, labels, read)


def gauge(name: str, text: str, read: Callable[[], Iterable[Series]], *labels: str) -> MetricFamily:
    """Return a gauge family."""
    return MetricFamily(GaugeMetricFamily, name, text, labels, read)


def histogram(
    name: str, text: str, read: Callable[[], Iterable[Series]], *labels: str
) -> MetricFamily:
    """Return a histogram family; its values are distributions."""
    return MetricFamily(HistogramMetricFamily, name, text, labels, read)


class FamilyCollector(Collector):
    """Collector of metric families from a snapshot of their series."""

    def __init__(self) -> None:
        self._families: list[MetricFamily] = []
        self._snapshot: list[tuple[MetricFamily, list[Series]]] = []

    def add(self, *families: MetricFamily) -> None:
        """Add families."""
        self._families.extend(families)

    def snapshot(self) -> None:
        """Read all series for the next `collect`; call on the event loop."""
        self._snapshot = [(family, list(family.read())) for family in self._families]

    def collect(self) -> Iterator[Metric]:
        """Yield the families of the last snapshot; safe in any thread."""
        for family, series in self._snapshot:
            yield family.render(series)
