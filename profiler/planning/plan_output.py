"""The answer of ``synergai plan``: the choice and why, where it runs, all options; or JSON."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import typer
from rich.filesize import decimal

from profiler.planning.options import choose
from synergai.cli.output import format_rate, format_seconds, print_table

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from profiler.planning.plan import RoutePlan, Share
    from profiler.planning.plan_case import Case
    from synergai.core.routes.deployment import Objective
    from synergai.core.routes.problem import Leg

_SHOWN_GAIN: Final = 0.005
_LEAST_GAIN: Final = 0.02
"""What a split has to save: predicted times of stages are not more exact."""


class PlanAnswer(NamedTuple):
    """The options of a case, those that do not split the engine first."""

    case: Case
    options: Sequence[RoutePlan]
    deadline_s: float | None
    objective: Objective = "throughput"

    @property
    def choice(self) -> RoutePlan:
        """The fastest option; one that does not split the engine, if a split hardly saves time."""
        return choose(
            self.case.problem,
            self.options,
            _LEAST_GAIN,
            deadline_s=math.inf if self.deadline_s is None else self.deadline_s,
            objective=self.objective,
        )

    @property
    def slack_s(self) -> float | None:
        """Time between the end of the queries and the deadline, negative if it is missed."""
        return None if self.deadline_s is None else self.deadline_s - self.choice.seconds

    def reason(self) -> str:
        """Say in one sentence what to do, what to expect of it, and why."""
        choice = self.choice
        rate = format_rate(1 / choice.interval_s)
        return f"{choice.name}, {rate} queries/s: {self._why(choice)}"

    def _why(self, choice: RoutePlan) -> str:
        others = [option for option in self.options if option.is_split != choice.is_split]
        if others:
            other = min(others, key=lambda option: option.seconds)
            gain = 1 - choice.seconds / other.seconds
            if gain >= _SHOWN_GAIN:
                return f"ends {gain:.0%} earlier than {other.name}"
            if other.seconds >= (1 - _LEAST_GAIN) * choice.seconds:
                return f"ends about as early as {other.name}"
            return f"ends {choice.seconds / other.seconds - 1:.0%} later than {other.name}"
        if choice.is_split:
            return "no worker has the memory for the whole engine"
        if len(self.case.problem.workers) == 1:
            return "the only worker"
        return "no route of stages was found"


def print_answer(answer: PlanAnswer) -> None:
    case = answer.case
    typer.echo(answer.reason())
    if answer.deadline_s is not None:
        verdict = _verdict(answer.deadline_s, answer.choice)
        typer.echo(f"deadline of {format_seconds(answer.deadline_s)}: {verdict}")
    typer.echo()
    print_table(
        ("worker", "runs", "ends at", "configuration", "time", "memory", "queries"),
        (row for share in answer.choice.shares for row in _steps(case, share)),
        optional=("queries", "configuration"),
    )
    typer.echo()
    _print_options(answer)
    for note in (*case.notes, *case.predicted_notes()):
        typer.echo(note)


def record(answer: PlanAnswer) -> dict[str, Any]:
    case = answer.case
    return {
        "engine": case.problem.chain.engine,
        "queries": case.problem.queries,
        "source": case.problem.source,
        "choice": answer.choice.name,
        "reason": answer.reason(),
        "deadline_s": answer.deadline_s,
        "slack_s": answer.slack_s,
        "options": [_record(case, option) for option in answer.options],
        "notes": [*case.notes, *case.predicted_notes()],
    }


def _workers(shares: Iterable[Share]) -> str:
    """Return the workers of some routes, those of the first stages first."""
    legs = sorted((leg for share in shares for leg in share.route.legs), key=lambda leg: leg.first)
    return ", ".join({leg.worker: None for leg in legs})


def _verdict(deadline_s: float, option: RoutePlan) -> str:
    slack_s = deadline_s - option.seconds
    return f"{'met' if slack_s >= 0 else 'missed'} by {format_seconds(abs(slack_s))}"


def _steps(case: Case, share: Share) -> Iterable[tuple[str, ...]]:
    budgets = {worker.name: worker.budget_bytes for worker in case.problem.workers}
    for leg, seconds in zip(share.route.legs, share.times.stages, strict=True):
        memory = _memory(case.problem.memory_bytes(leg.first, leg.last), budgets[leg.worker])
        runs = case.runs(leg), _end(case, leg), case.configuration(leg)
        yield leg.worker, *runs, format_seconds(seconds), memory, f"{share.queries:,}"


def _end(case: Case, leg: Leg) -> str:
    """Return the tensor at which a leg ends; empty for the outputs of the engine."""
    return case.cuts[leg.last - 1].tensor if leg.last < case.problem.chain.end else ""


def _memory(needed: float, budget: float) -> str:
    limit = "" if budget == math.inf else f" of {decimal(int(budget))}"
    return f"{decimal(int(needed))}{limit}"


def _print_options(answer: PlanAnswer) -> None:
    """Print the options, and the workers that have not the memory for the whole engine."""
    problem, deadline_s = answer.case.problem, answer.deadline_s
    needed = problem.memory_bytes(0, problem.chain.end)
    rows = [
        (
            each.name,
            _workers(each.shares),
            *map(format_seconds, (each.latency_s, each.interval_s, each.seconds)),
            "" if deadline_s is None else _verdict(deadline_s, each),
        )
        for each in answer.options
    ] + [
        (f"whole on {each.name}", f"needs {_memory(needed, each.budget_bytes)}", *[""] * 4)
        for each in problem.workers
        if needed > each.budget_bytes
    ]
    columns = ("option", "workers", "latency", "interval", "end", "deadline")
    shown = len(columns) - (deadline_s is None)
    print_table(columns[:shown], (row[:shown] for row in rows))


def _record(case: Case, option: RoutePlan) -> dict[str, Any]:
    return {
        "name": option.name,
        "split": option.is_split,
        "latency_s": option.latency_s,
        "interval_s": option.interval_s,
        "end_s": option.seconds,
        "routes": [
            {
                "queries": share.queries,
                "legs": [
                    {
                        "worker": leg.worker,
                        "runs": case.runs(leg),
                        "ends_at": _end(case, leg),
                        "configuration": case.configuration(leg),
                        "seconds": seconds,
                    }
                    for leg, seconds in zip(share.route.legs, share.times.stages, strict=True)
                ],
            }
            for share in option.shares
        ],
    }
