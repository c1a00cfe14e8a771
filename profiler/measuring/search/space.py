"""The space of a search: engines on devices in configurations, and measurements of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from synergai.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from synergai.domain import Configuration, EngineName


Device: TypeAlias = "tuple[str, str]"
"""A worker class, and what computes there; see `device_of`."""
Row: TypeAlias = "tuple[EngineName, Device]"


def device_of(worker_class: str, configuration: Configuration) -> Device:
    """Return what a configuration computes on: other threads and modes are the same device.

    Execution providers are devices of their own, the CPU if none is named, and so are variants of
    an engine: the figures of one say little about another.
    """
    name = configuration.execution_provider
    return worker_class, f"{name}/{configuration.variant}" if configuration.variant else name


class Knobs(NamedTuple):
    """Features that make configurations of one device faster or slower.

    Attributes:
        threads: threads of the engine; 0 if it computes without threads of the CPU.
        clock_mhz: highest clock of the cores, times the share of them that may be used; any
            constant, such as 1, if it is the same for all configurations of the device.
        memory_mhz: highest clock of the memory; 0 if not known.
    """

    threads: int
    cores: int
    clock_mhz: float = 1.0
    memory_mhz: float = 0.0

    @property
    def is_full(self) -> bool:
        """Whether all cores compute."""
        return self.threads >= self.cores


@dataclass(frozen=True, slots=True)
class Point:
    """An engine on a device in one configuration."""

    engine: EngineName
    device: Device
    configuration: Configuration
    knobs: Knobs

    @property
    def row(self) -> Row:
        """The engine and the device, whose configurations are compared with each other."""
        return self.engine, self.device


class SearchSpace:
    """The points of a search.

    Args:
        points: the points; each engine, device and configuration at most once.
    """

    def __init__(self, points: Sequence[Point]) -> None:
        if not points:
            raise InvalidInput("there is no configuration to search")
        if len({(point.row, point.configuration) for point in points}) < len(points):
            raise InvalidInput("a configuration appears twice in the space of a search")
        self.points = tuple(points)

    def __len__(self) -> int:
        return len(self.points)

    @cached_property
    def rows(self) -> Mapping[Row, Sequence[int]]:
        rows: dict[Row, list[int]] = {}
        for index, point in enumerate(self.points):
            rows.setdefault(point.row, []).append(index)
        return rows


SHORT_ERROR: Final = 0.024
"""Standard error of the logarithm of the QPS of a short run: 2 % from run to run, and 10 % from
query to query, over 64 queries."""


class Trial(NamedTuple):
    """A measurement that a strategy asks for.

    Attributes:
        full: whether it takes the time of an exhaustive profile, rather than the least.
    """

    point: int
    full: bool = False


class TrialResult(NamedTuple):
    """Outcome of a measurement.

    Attributes:
        watts: power of the machine; 0 if it cannot be measured.
        seconds: duration of everything, the switch of the power mode included.
        error: standard error of the logarithm of `qps`.
    """

    qps: float
    watts: float
    setup_s: float
    seconds: float
    error: float = SHORT_ERROR
