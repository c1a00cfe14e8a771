"""Configuration dictionary: measured performance of engines by worker class and configuration.

The profiler writes one entry per engine, worker class and configuration; the estimator reads them
(thesis, chapter 6, "Configuration Dictionary").
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from synergai.domain import (
    MAX_BATCH,
    BatchTimes,
    Configuration,
    EngineName,
    WorkerClass,
    validate_engine,
    validate_name,
)
from synergai.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

MAX_FIGURE: Final = 2.0**53
"""Upper bound of all figures (JSON integers are exact up to it); its inverse bounds rates below."""
MEASURED: Final = "measured"
"""Label of an entry of the profiler."""
DISTURBED: Final = "disturbed"
"""Label of an entry of the profiler during which other processes took CPU time."""
OBSERVED: Final = "observed"
"""Label of an entry measured on queries in service."""
_EMPTY: Mapping[Configuration, ProfileEntry] = MappingProxyType({})


class ProfileEntry(Struct, frozen=True, kw_only=True):
    """Performance of an engine on a worker class in a configuration.

    Attributes:
        qps: throughput in queries per second, one query at a time (MLPerf Single Stream).
        backend_start_s: time to start the engine's process and runtime.
        model_load_s: time to load and warm up the model.
        data_preparation_s: time to load the sample set into memory.
        latency_p50_s: median latency of a query; 0 if not measured, as for the figures below.
        latency_p90_s: 90th percentile of the latency.
        latency_p99_s: 99th percentile of the latency.
        watts: mean power of the machine while the engine ran.
        queries: number of measured queries.
        label: origin: ``measured``, ``disturbed`` (measured while the machine was busy),
            ``observed`` in service, ``reconstructed`` or ``emulated``.
        measured_at: ISO 8601, UTC.
        batch_qps: throughput with batches of 2, 4, 8, … queries, in this order; empty if not
            measured, which disables batching.

    Raises:
        InvalidInput: on construction, if a figure is negative or beyond `MAX_FIGURE`, or `qps` is
            0.
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
    label: str = MEASURED
    measured_at: str = ""
    batch_qps: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.engine != (engine := validate_engine(self.engine)):
            raise InvalidInput(f"version 1 of an engine is written {engine}, not {self.engine}")
        validate_name(self.worker_class, "worker class")
        where = f"{self.engine} on {self.worker_class} with {self.configuration}"
        for name, rates in (("qps", (self.qps,)), ("batch_qps", self.batch_qps)):
            for rate in rates:
                if not 1 / MAX_FIGURE <= rate <= MAX_FIGURE:
                    raise InvalidInput(
                        f"{where}: {name} must be positive, at most {MAX_FIGURE:g}, not {rate}"
                    )
        if 1 << len(self.batch_qps) > MAX_BATCH:
            raise InvalidInput(f"{where}: batch_qps has batches larger than {MAX_BATCH}")
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

    def may_replace(self, known: ProfileEntry) -> bool:
        """Return whether it is no worse than `known`, the entry of the same configuration."""
        return not (self.label == DISTURBED and known.label == MEASURED)

    @property
    def t_pre_s(self) -> float:
        """Pre-processing time T_pre of the thesis: seconds before a cold engine's first query."""
        return self.backend_start_s + self.model_load_s + self.data_preparation_s

    @property
    def batch_times(self) -> BatchTimes | None:
        """Compute times of batches; None if they were not measured."""
        if not self.batch_qps:
            return None
        rates = (self.qps, *self.batch_qps)
        return BatchTimes(tuple((1 << power) / rate for power, rate in enumerate(rates)))

    @property
    def joules(self) -> float:
        """Energy of the machine per query; 0 if not measured."""
        return self.watts / self.qps


class ConfigurationDictionary:
    """Table of profile entries, indexed by engine and worker class."""

    def __init__(self, entries: Iterable[ProfileEntry] = ()) -> None:
        self._table: dict[tuple[EngineName, WorkerClass], dict[Configuration, ProfileEntry]] = {}
        for entry in entries:
            self.put(entry)

    def put(self, entry: ProfileEntry) -> None:
        """Add `entry`, replacing one with the same engine, class and configuration."""
        row = self._table.setdefault((entry.engine, entry.worker_class), {})
        row[entry.configuration] = entry

    def remove(self, entry: ProfileEntry) -> None:
        """Remove the entry with the same engine, class and configuration, if there is one."""
        key = entry.engine, entry.worker_class
        if (row := self._table.get(key)) is not None:
            row.pop(entry.configuration, None)
            if not row:
                del self._table[key]

    def row(
        self, engine: EngineName, worker_class: WorkerClass
    ) -> Mapping[Configuration, ProfileEntry]:
        """Return the entries of `engine` on `worker_class` by configuration."""
        return self._table.get((engine, worker_class), _EMPTY)

    def __iter__(self) -> Iterator[ProfileEntry]:
        for row in self._table.values():
            yield from row.values()

    def __len__(self) -> int:
        return sum(map(len, self._table.values()))
