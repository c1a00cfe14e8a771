"""The thesis's results compared with a study's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from profiler.reports import printed
from profiler.reports.evaluation.factors import Factors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from profiler.reports.evaluation.study import Study
    from profiler.reports.printed import PrintedCell
    from profiler.simulator.results import SimulationResult

REFERENCE: Final = "synergai"
METRICS: Final[
    tuple[tuple[str, Callable[[SimulationResult], float], Callable[[PrintedCell], float]], ...]
] = (
    ("violations", lambda result: result.violations, lambda cell: cell.violations),
    ("mean wait (s)", lambda result: result.mean_wait_s, lambda cell: cell.wait_s),
    ("mean excess (s)", lambda result: result.mean_excess_s, lambda cell: cell.excess_s),
)
"""Printed metrics: name, value of an outcome, value of a printed cell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CellComparison:
    """A printed value, which is of one run, and the same over the seeds of a study."""

    policy: str
    experiment: str
    metric: str
    printed: float
    mean: float
    low: float
    high: float

    @property
    def within(self) -> bool:
        """Whether the printed value lies within the range over seeds."""
        return self.low <= self.printed <= self.high


def compare_cells(study: Study) -> list[CellComparison]:
    """Compare every printed cell that the study has a policy and experiment for."""
    return list(_cells(study))


def _cells(study: Study) -> Iterator[CellComparison]:
    for (policy, experiment), cell in printed.CELLS.items():
        outcomes = study.of(policy, experiment)
        if not outcomes:
            continue
        for metric, value, printed_value in METRICS:
            values = [value(outcome.result) for outcome in outcomes]
            yield CellComparison(
                policy=policy,
                experiment=experiment,
                metric=metric,
                printed=printed_value(cell),
                mean=sum(values) / len(values),
                low=min(values),
                high=max(values),
            )


def factors_over(
    study: Study, policy: str, reference: str, metric: Callable[[SimulationResult], float]
) -> Factors:
    """Return the factors of a policy over a reference, from the means over seeds."""
    ours, theirs = [], []
    for experiment in study.experiments:
        value = study.mean(policy, experiment, metric)
        base = study.mean(reference, experiment, metric)
        if value is not None and base is not None:
            ours.append(value)
            theirs.append(base)
    return Factors.of(ours, theirs)
