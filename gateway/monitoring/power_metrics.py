"""Prometheus collector of the workers' power and energy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from prometheus_client.core import Metric

    from gateway.fleet.worker import ConnectedWorker


class PowerCollector(Collector):
    """Collects power and energy per worker.

    Args:
        workers: returns the connected workers; called from another thread than the loop's.
    """

    def __init__(self, workers: Callable[[], Iterable[ConnectedWorker]]) -> None:
        self._workers = workers

    def collect(self) -> Iterator[Metric]:
        """Yield the metric families of all workers with a power meter."""
        watts = GaugeMetricFamily(
            "synergai_worker_watts", "Power of the worker's machine", labels=["worker"]
        )
        joules = CounterMetricFamily(
            "synergai_worker_joules",
            "Energy that the worker's machine has used since its agent started",
            labels=["worker"],
        )
        engines = CounterMetricFamily(
            "synergai_engine_joules",
            "Energy of the worker's machine while the engine computed, since it joined",
            labels=["worker", "engine"],
        )
        for worker in self._workers():
            power = worker.power
            if power.watts is not None and power.joules is not None:
                watts.add_metric([worker.id], power.watts)
                joules.add_metric([worker.id], power.joules)
            for engine, used in list(power.engines.items()):
                engines.add_metric([worker.id, engine], used)
        yield from (watts, joules, engines)
