"""The thesis's results beside those of a study."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from synergai.reports import printed
from synergai.reports.evaluation.factors import Factors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from synergai.reports.evaluation.study import Study
    from synergai.reports.printed import Cell
    from synergai.simulator.results import Result

REFERENCE: Final = "synergai"
METRICS: Final[tuple[tuple[str, Callable[[Result], float], Callable[[Cell], float]], ...]] = (
    ("violations", lambda result: result.violations, lambda cell: cell.violations),
    ("mean wait (s)", lambda result: result.mean_wait_s, lambda cell: cell.wait_s),
    ("mean excess (s)", lambda result: result.mean_excess_s, lambda cell: cell.excess_s),
)
"""Printed metrics: name, value of an outcome, value of a printed cell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CellComparison:
    """A printed value, which is of one run, and the same over the seeds of a study.

    Attributes:
        metric: its name and unit.
        printed: the printed value.
        mean: mean over seeds.
        low: smallest over seeds.
        high: largest over seeds.
    """

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A statement of the thesis, and whether the study supports it.

    Attributes:
        text: the statement.
        here: what the study has instead, as text.
        held: whether it holds in the study.
    """

    text: str
    here: str
    held: bool


def check_claims(study: Study) -> list[Claim]:
    """Check the thesis's statements on policies, as far as the study has them.

    Only experiments of the thesis count; policies that it does not know are left out.
    """
    known = [p for p in (*printed.BASELINES, "slo_mael", REFERENCE) if p in study.policies]
    experiments = [e for e in printed.EXPERIMENTS if e in study.experiments]
    if REFERENCE not in known or len(known) < 2 or not experiments:
        return []
    claims = [
        _ranking(study, known, experiments, f"SynergAI has {what}", metric)
        for what, metric in (
            ("the fewest violations in every experiment", lambda result: result.violations),
            ("the shortest mean wait in every experiment", lambda result: result.mean_wait_s),
            ("the least mean excess in every experiment", lambda result: result.mean_excess_s),
        )
    ]
    if baselines := [policy for policy in known if policy in printed.BASELINES]:
        text = "SynergAI has a lower p99 of the end-to-end time than the baselines"
        rivals = [*baselines, REFERENCE]
        claims.append(_ranking(study, rivals, experiments, text, lambda result: result.e2e_p99_s))
    if "srr" in known:
        claims.append(_most_violations(study, known, experiments))
    if {"DL-FL", "DH-FH"} <= set(experiments):
        easy = study.mean(REFERENCE, "DL-FL", lambda result: result.violations) or 0.0
        hard = study.mean(REFERENCE, "DH-FH", lambda result: result.violations) or 0.0
        claims.append(
            Claim(
                text="SynergAI has more violations in DH-FH than in DL-FL",
                here=f"{hard:.2f} and {easy:.2f}",
                held=hard > easy,
            )
        )
    return claims


def _ranking(
    study: Study,
    policies: Sequence[str],
    experiments: Sequence[str],
    text: str,
    metric: Callable[[Result], float],
) -> Claim:
    """Check that SynergAI has the lowest mean of a metric in every experiment."""
    first = []
    for experiment in experiments:
        values = [study.mean(policy, experiment, metric) for policy in policies]
        known = [value for value in values if value is not None]
        if study.mean(REFERENCE, experiment, metric) == min(known, default=None):
            first.append(experiment)
    return Claim(
        text=text,
        here=f"in {len(first)} of {len(experiments)}" + (f": {', '.join(first)}" if first else ""),
        held=len(first) == len(experiments),
    )


def _most_violations(study: Study, policies: Sequence[str], experiments: Sequence[str]) -> Claim:
    worst = []
    for experiment in experiments:
        values = {
            p: study.mean(p, experiment, lambda result: result.violations) or 0.0 for p in policies
        }
        if values["srr"] == max(values.values()):
            worst.append(experiment)
    return Claim(
        text="Strict round robin has the most violations in every experiment",
        here=f"in {len(worst)} of {len(experiments)}",
        held=len(worst) == len(experiments),
    )


def printed_factors(others: tuple[str, ...], value: Callable[[Cell], float]) -> Factors:
    """Return the factors of policies over SynergAI that follow from the printed cells."""
    cells = [(policy, experiment) for policy in others for experiment in printed.EXPERIMENTS]
    return Factors.of(
        [value(printed.CELLS[cell]) for cell in cells],
        [value(printed.CELLS[REFERENCE, experiment]) for _, experiment in cells],
    )


def factors_over(
    study: Study, policy: str, reference: str, metric: Callable[[Result], float]
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
