"""Base of the collectors: snapshots on the event loop, rendered by another thread.

The instruments of ``prometheus_client`` would take a lock for each count; here, only the event loop
changes or reads the numbers. At a scrape it takes a snapshot of them, which another thread renders.
"""

from __future__ import annotations

from abc import abstractmethod
from itertools import accumulate
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from prometheus_client.core import Metric

    from gateway.monitoring.counts import Distribution

StateT = TypeVar("StateT")
PREFIX: Final = "synergai_"


class SnapshotCollector(Collector, Generic[StateT]):
    """Collector of metric families from a snapshot of some state."""

    def __init__(self) -> None:
        self._state: StateT | None = None

    def snapshot(self) -> None:
        """Copy the state for the next `collect`; call on the event loop."""
        self._state = self.read()

    def collect(self) -> Iterator[Metric]:
        """Yield the families of the last snapshot; safe in any thread."""
        state = self._state
        if state is not None:
            yield from self.families(state)

    @abstractmethod
    def read(self) -> StateT:
        """Return an immutable copy of the state."""

    @abstractmethod
    def families(self, state: StateT) -> Iterator[Metric]:
        """Yield the metric families of `state`."""


def counter(name: str, text: str, *labels: str) -> CounterMetricFamily:
    """Return an empty counter family; its samples get the suffix ``_total``."""
    return CounterMetricFamily(PREFIX + name, text, labels=labels)


def gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    """Return an empty gauge family."""
    return GaugeMetricFamily(PREFIX + name, text, labels=labels)


def histogram(name: str, text: str, *labels: str) -> HistogramMetricFamily:
    """Return an empty histogram family; fill it with `add_distribution`."""
    return HistogramMetricFamily(PREFIX + name, text, labels=labels)


def add_distribution(
    family: HistogramMetricFamily, labels: Sequence[str], distribution: Distribution
) -> None:
    """Add the series of a snapshot to a family."""
    cumulative = accumulate(distribution.counts)
    pairs = list(zip(distribution.buckets.labels, cumulative, strict=True))
    family.add_metric(labels, pairs, distribution.total)


class Value(NamedTuple):
    """A counter or gauge without labels."""

    family: Callable[[str, str], CounterMetricFamily | GaugeMetricFamily]
    name: str
    text: str
    read: Callable[[], float]


class ValueCollector(SnapshotCollector[list[float]]):
    """Collector of single values, each read by a function."""

    def __init__(self) -> None:
        super().__init__()
        self._values: list[Value] = []

    def add_counter(self, name: str, text: str, read: Callable[[], float]) -> None:
        """Add a counter with the value that `read` returns."""
        self._values.append(Value(counter, name, text, read))

    def add_gauge(self, name: str, text: str, read: Callable[[], float]) -> None:
        """Add a gauge with the value that `read` returns."""
        self._values.append(Value(gauge, name, text, read))

    def read(self) -> list[float]:
        """Return all values."""
        return [value.read() for value in self._values]

    def families(self, state: list[float]) -> Iterator[Metric]:
        """Yield a family for each value."""
        for value, number in zip(self._values, state, strict=True):
            family = value.family(value.name, value.text)
            family.add_metric([], number)
            yield family
