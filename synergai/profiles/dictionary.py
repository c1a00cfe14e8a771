"""The configuration dictionary: what every engine does on every worker class.

One entry per engine, worker class and configuration, as the profiler measured it (thesis,
chapter 6, "Configuration Dictionary"). The estimator reads it, the profiler writes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from synergai.domain import (
    MAX_BATCH,
    BatchTimes,
    Configuration,
    EngineName,
    WorkerClass,
    validate_name,
)
from synergai.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

MAX_FIGURE: Final = 2.0**53
"""Beyond this, to which JSON counts exactly, or its inverse for a rate, a figure is a mistake."""
_NOTHING: Mapping[Configuration, ProfileEntry] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileEntry:
    """What one engine does on one worker class in one configuration.

    Attributes:
        qps: queries per second, one at a time (MLPerf Single Stream).
        backend_start_s: until the engine's process and library are up.
        model_load_s: until the model is loaded and warm.
        data_preparation_s: until the sample set is in memory.
        latency_p50_s: median time of a query; 0 where it was not measured, as for all below.
        latency_p90_s: 90th percentile.
        latency_p99_s: 99th percentile.
        watts: mean power while it ran.
        queries: how many queries the figures rest on.
        label: ``measured``, ``observed`` in service, ``reconstructed`` or ``emulated``.
        measured_at: ISO 8601, UTC.
        batch_qps: queries per second if 2, 4, 8, … are computed at once, in this order; empty
            where that was not measured, and nothing is computed in batches.

    Raises:
        InvalidInput: on construction, if a figure is negative, `qps` is 0, or one is beyond
            `MAX_FIGURE`.
    """

    engine: EngineName
    worker_class: WorkerClass
    configuration: Configuration
    qps: float
    backend_start_s: float = 0.0
    model_load_s: float = 0.0
    data_preparation_s: float = 0.0
    latency_p50_s: float = 0.0
    latency_p90_s: float = 0.0
    latency_p99_s: float = 0.0
    watts: float = 0.0
    queries: int = 0
    label: str = "measured"
    measured_at: str = ""
    batch_qps: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        validate_name(self.engine, "engine name")
        validate_name(self.worker_class, "worker class")
        where = f"{self.engine} on {self.worker_class} with {self.configuration}"
        for name, rates in (("qps", (self.qps,)), ("batch_qps", self.batch_qps)):
            for rate in rates:
                if not 1 / MAX_FIGURE <= rate <= MAX_FIGURE:
                    raise InvalidInput(
                        f"{where}: {name} must be positive, at most {MAX_FIGURE:g}, not {rate}"
                    )
        if 1 << len(self.batch_qps) > MAX_BATCH:
            raise InvalidInput(f"{where}: batch_qps is of batches beyond {MAX_BATCH}")
        for name in (
            "backend_start_s",
            "model_load_s",
            "data_preparation_s",
            "latency_p50_s",
            "latency_p90_s",
            "latency_p99_s",
            "watts",
            "queries",
        ):
            value = getattr(self, name)
            if not 0 <= value <= MAX_FIGURE:
                raise InvalidInput(
                    f"{where}: {name} must be 0 or more, at most {MAX_FIGURE:g}, not {value}"
                )

    @property
    def t_pre_s(self) -> float:
        """Pre-processing time of the thesis: all that comes before a cold engine's first query."""
        return self.backend_start_s + self.model_load_s + self.data_preparation_s

    @property
    def batch_times(self) -> BatchTimes | None:
        """How long its batches take; None if it has none."""
        if not self.batch_qps:
            return None
        rates = (self.qps, *self.batch_qps)
        return BatchTimes(tuple((1 << power) / rate for power, rate in enumerate(rates)))

    @property
    def joules(self) -> float:
        """Energy per query, that of the machine while it ran; 0 where it was not measured."""
        return self.watts / self.qps


class ConfigurationDictionary:
    """A table of profile entries, looked up by engine and worker class."""

    def __init__(self, entries: Iterable[ProfileEntry] = ()) -> None:
        self._table: dict[tuple[EngineName, WorkerClass], dict[Configuration, ProfileEntry]] = {}
        for entry in entries:
            self.put(entry)

    def put(self, entry: ProfileEntry) -> None:
        """Add `entry`, or replace the one for the same engine, class and configuration."""
        row = self._table.setdefault((entry.engine, entry.worker_class), {})
        row[entry.configuration] = entry

    def row(
        self, engine: EngineName, worker_class: WorkerClass
    ) -> Mapping[Configuration, ProfileEntry]:
        """All that is known of `engine` on `worker_class`, by configuration; maybe nothing."""
        return self._table.get((engine, worker_class), _NOTHING)

    def __iter__(self) -> Iterator[ProfileEntry]:
        for row in self._table.values():
            yield from row.values()

    def __len__(self) -> int:
        return sum(map(len, self._table.values()))
