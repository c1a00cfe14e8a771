"""The configuration dictionary: what every engine does on every worker class.

One entry per engine, worker class and configuration, as the profiler measured it (thesis,
chapter 6, "Configuration Dictionary"). The estimator reads it, the profiler writes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from synergai.domain import Configuration, EngineName, WorkerClass, checked_name
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

    def __post_init__(self) -> None:
        checked_name(self.engine, "engine name")
        checked_name(self.worker_class, "worker class")
        where = f"{self.engine} on {self.worker_class} with {self.configuration}"
        if not 1 / MAX_FIGURE <= self.qps <= MAX_FIGURE:
            raise InvalidInput(
                f"{where}: qps must be positive, at most {MAX_FIGURE:g}, not {self.qps}"
            )
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
