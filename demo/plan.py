"""A dozen jobs whose sizes and QoS are derived from the measured profile.

Fixed numbers would be trivial on one machine and infeasible on another. Each job is therefore
defined by its duration on the fast worker, and its QoS is a multiple of that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from synergai.domain import EngineName, WorkerClass
    from synergai.profiles.dictionary import ConfigurationDictionary

SUBMIT_INTERVAL_S: Final = 0.6
"""Seconds between two submissions."""


@dataclass(frozen=True, slots=True)
class PlannedJob:
    """A job to submit.

    Attributes:
        qos: seconds from acceptance.
        kind: how its QoS compares to its duration: tight, loose or impossible.
    """

    engine: EngineName
    queries: int
    qos: float
    kind: str


_TEMPLATES: Final = (
    (2.5, 6.0, "loose"),
    (1.5, 2.5, "tight"),
    (2.0, 12.0, "loose"),
    (1.0, 6.0, "tight"),
    (2.0, 0.3, "impossible"),
    (1.5, 20.0, "loose"),
    (2.0, 6.0, "tight"),
    (1.5, 14.0, "loose"),
    (1.0, 9.0, "tight"),
    (2.5, 12.0, "loose"),
    (1.5, 10.0, "tight"),
    (2.0, 25.0, "loose"),
)
"""Seconds of each job on the fast worker, its QoS as a multiple of them, and its kind."""


def plan(
    dictionary: ConfigurationDictionary, engines: list[EngineName], fast: WorkerClass
) -> list[PlannedJob]:
    """Return the jobs in order of submission, alternating between the engines."""
    jobs = []
    for number, (seconds, qos_factor, kind) in enumerate(_TEMPLATES):
        engine = engines[number % len(engines)]
        qps = max(entry.qps for entry in dictionary.row(engine, fast).values())
        queries = max(1, round(seconds * qps))
        jobs.append(PlannedJob(engine, queries, seconds * qos_factor, kind))
    return jobs
