"""A dozen jobs whose sizes and QoS times follow from what was just profiled.

Fixed numbers would be trivial on one machine and hopeless on another. So each job is given as
how long its queries take on the fast worker, and its QoS time as a multiple of that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from synergai.domain import EngineName, WorkerClass
    from synergai.profiles.dictionary import ConfigurationDictionary

PAUSE_S: Final = 0.6
"""Between two submissions."""


@dataclass(frozen=True, slots=True)
class PlannedJob:
    """What is going to be asked for.

    Attributes:
        kind: what is expected of it: tight, loose or impossible.
        qos: seconds.
    """

    engine: EngineName
    queries: int
    qos: float
    kind: str


@dataclass(frozen=True, slots=True)
class _Shape:
    """A job in relative terms: seconds of work on the fast worker, and the patience with it."""

    seconds: float
    patience: float
    kind: str


_SHAPES: Final = (
    _Shape(2.5, 6.0, "loose"),
    _Shape(1.5, 2.5, "tight"),
    _Shape(2.0, 12.0, "loose"),
    _Shape(1.0, 6.0, "tight"),
    _Shape(2.0, 0.3, "impossible"),
    _Shape(1.5, 20.0, "loose"),
    _Shape(2.0, 6.0, "tight"),
    _Shape(1.5, 14.0, "loose"),
    _Shape(1.0, 9.0, "tight"),
    _Shape(2.5, 12.0, "loose"),
    _Shape(1.5, 10.0, "tight"),
    _Shape(2.0, 25.0, "loose"),
)


def plan(
    dictionary: ConfigurationDictionary, engines: list[EngineName], fast: WorkerClass
) -> list[PlannedJob]:
    """The jobs, in the order of their submission, the engines taking turns."""
    jobs = []
    for number, shape in enumerate(_SHAPES):
        engine = engines[number % len(engines)]
        qps = max(entry.qps for entry in dictionary.row(engine, fast).values())
        queries = max(1, round(shape.seconds * qps))
        jobs.append(PlannedJob(engine, queries, shape.seconds * shape.patience, shape.kind))
    return jobs
