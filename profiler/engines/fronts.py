"""Fronts of variants: accuracy against throughput, per worker class and configuration.

A variant is *dominated* if another one is at least as fast and as accurate. Differences below their
standard error are ignored: of two variants that cannot be told apart in one figure, the one that
is better in the other remains.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from synergai.domain import Origin
from synergai.profiles.dictionary import common_samples

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from synergai.domain import Configuration, EngineName, Variant, WorkerClass
    from synergai.profiles.dictionary import ProfileEntry

MIN_QPS_ERROR: Final = 0.01
"""Least standard error of the logarithm of a QPS: runs differ by about as much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontPoint:
    """A variant on a worker class in a configuration.

    Attributes:
        qps_error: standard error of the logarithm of the throughput.
        accuracy: share of right answers, 0 to 1; None if it is not known.
        accuracy_error: its standard error; None if it is not known.
        samples: number of samples that the accuracy was measured on; 0 if it was not measured here.
        origin: where the accuracy comes from; None if it is not known.
        dominated_by: a variant of the front that makes this one pointless; empty if it is on the
            front, or if its accuracy is not known.
        on_other_samples: whether an accuracy was measured, but on other samples than most
            other variants, so that it does not count.
    """

    variant: str
    qps: float
    qps_error: float
    accuracy: float | None = None
    accuracy_error: float | None = None
    samples: int = 0
    origin: Origin | None = None
    dominated_by: str = ""
    on_other_samples: bool = False

    @property
    def on_front(self) -> bool:
        """Whether no other variant dominates it."""
        return self.accuracy is not None and not self.dominated_by


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantFront:
    """The variants of an engine on a worker class in a configuration.

    Attributes:
        points: the variants, the fastest first.
    """

    engine: EngineName
    worker_class: WorkerClass
    configuration: Configuration
    points: tuple[FrontPoint, ...]

    @property
    def front(self) -> list[FrontPoint]:
        """The variants that no other one dominates, the fastest first."""
        return [point for point in self.points if point.on_front]


def variant_fronts(
    entries: Iterable[ProfileEntry], declared: Mapping[str, Variant]
) -> list[VariantFront]:
    """Return the fronts of one engine, sorted by worker class and configuration.

    Args:
        entries: the entries of its variants; those without a variant are left out.
        declared: what the engine's folder says of each variant, for accuracies that were not
            measured.
    """
    rows: dict[tuple[EngineName, WorkerClass], list[ProfileEntry]] = {}
    for entry in entries:
        rows.setdefault((entry.engine, entry.worker_class), []).append(entry)
    samples = {key: common_samples(row) for key, row in rows.items()}
    groups: dict[tuple[EngineName, WorkerClass, Configuration], list[FrontPoint]] = {}
    for entry in (each for row in rows.values() for each in row):
        if entry.configuration.variant:
            key = entry.engine, entry.worker_class, replace(entry.configuration, variant="")
            variant = declared.get(entry.configuration.variant)
            groups.setdefault(key, []).append(
                _point(entry, variant, samples[entry.engine, entry.worker_class])
            )
    return [
        VariantFront(
            engine=engine,
            worker_class=worker_class,
            configuration=configuration,
            points=tuple(_marked(points)),
        )
        for (engine, worker_class, configuration), points in sorted(
            groups.items(), key=lambda item: item[0]
        )
    ]


def _point(entry: ProfileEntry, declared: Variant | None, samples: str) -> FrontPoint:
    name, qps_error = entry.configuration.variant, max(entry.error, MIN_QPS_ERROR)
    if entry.is_accurate_on(samples):
        return FrontPoint(
            variant=name,
            qps=entry.qps,
            qps_error=qps_error,
            accuracy=entry.accuracy,
            accuracy_error=entry.accuracy_error,
            samples=entry.accuracy_samples,
            origin=Origin.MEASURED,
        )
    known = declared is not None and declared.accuracy
    return FrontPoint(
        variant=name,
        qps=entry.qps,
        qps_error=qps_error,
        accuracy=declared.accuracy if declared is not None and known else None,
        origin=declared.origin if declared is not None and known else None,
        on_other_samples=entry.accuracy_samples > 0,
    )


def _marked(points: Sequence[FrontPoint]) -> list[FrontPoint]:
    """Return the points, the fastest first, with what dominates them."""
    ordered = sorted(points, key=lambda point: (-point.qps, -(point.accuracy or 0), point.variant))
    known = [point for point in ordered if point.accuracy is not None]
    # Only members of the front dominate others: a chain of variants whose neighbours cannot be
    # told apart would otherwise vanish but for its fastest one.
    front: list[FrontPoint] = []
    for point in known:
        if front and not _is_more_accurate(point, max(front, key=_accuracy)):
            continue
        # Those that are not really faster than a more accurate one are pointless.
        front = [each for each in front if _is_faster(each, point)]
        front.append(point)
    return [
        dataclasses.replace(point, dominated_by=_dominator(point, front))
        if point.accuracy is not None and point not in front
        else point
        for point in ordered
    ]


def _dominator(point: FrontPoint, front: Sequence[FrontPoint]) -> str:
    """Return the most accurate variant of the front that is not significantly slower."""
    as_fast = [other for other in front if not _is_faster(point, other)]
    return max(as_fast or front[:1], key=_accuracy).variant


def _is_faster(one: FrontPoint, other: FrontPoint) -> bool:
    difference = math.log(one.qps / other.qps)
    return difference > math.hypot(one.qps_error, other.qps_error)


def _is_more_accurate(one: FrontPoint, other: FrontPoint) -> bool:
    error = math.hypot(one.accuracy_error or 0, other.accuracy_error or 0)
    return _accuracy(one) - _accuracy(other) > error


def _accuracy(point: FrontPoint) -> float:
    return point.accuracy or 0.0
