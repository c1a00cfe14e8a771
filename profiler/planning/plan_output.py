"""The answer of ``synergai plan``: a sentence, tables and JSON."""

from __future__ import annotations

import math
from collections import defaultdict
from itertools import pairwise, zip_longest
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import typer
from rich.filesize import decimal

from profiler.planning.options import choose, split_options
from synergai.cli.output import format_seconds, print_table
from synergai.runtime.text import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from profiler.cutting.cuts import Cut
    from profiler.planning.plan import RoutePlan, Share
    from profiler.planning.plan_case import Case
    from synergai.core.routes.deployment import Objective

_SHOWN_GAIN: Final = 0.005
_SPLITS_SHOWN: Final = 12
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
        """Say in one sentence what to do, and why."""
        case, choice, doing = self.case, self.choice, self._doing()
        others = [option for option in self.options if option.is_split != choice.is_split]
        if others:
            other = _fastest(others)
            gain = 1 - choice.seconds / other.seconds
            done = "answers" if case.problem.queries == 1 else "ends"
            what = "the best route of stages, on" if other.is_split else "whole on"
            than = f"{gain:.0%} earlier than" if gain >= _SHOWN_GAIN else "about as early as"
            return f"{doing}, which {done} {than} {what} {_workers(other.shares)}"
        if choice.is_split:
            return f"{doing}, since no worker has the memory for the whole engine"
        lone = len(case.problem.workers) == 1
        return f"{doing}, {'the only worker' if lone else 'since no route of stages was found'}"

    def _doing(self) -> str:
        engine = self.case.problem.chain.engine
        chains: defaultdict[tuple[str, ...], list[Share]] = defaultdict(list)
        for share in self.choice.shares:
            cuts = (self.case.cuts[leg.first - 1].tensor for leg in share.route.legs[1:])
            chains[tuple(cuts)].append(share)
        whole = chains.pop((), [])
        doing = [
            f"split {engine} at {_joined(cuts)} over {_workers(shares)}"
            for cuts, shares in chains.items()
        ]
        if whole:
            doing.append(f"run it whole on {_workers(whole)}")
        said = ", and ".join(doing)
        return said if self.choice.is_split else f"do not split {engine}: {said}"


def print_answer(answer: PlanAnswer, *, explain: bool) -> None:
    """Print the choice, and with `explain` all that was considered."""
    case = answer.case
    typer.echo(answer.reason())
    if answer.deadline_s is not None:
        verdict = _verdict(answer.deadline_s, answer.choice)
        typer.echo(f"deadline of {format_seconds(answer.deadline_s)}: {verdict}")
    typer.echo()
    print_table(
        ("step", "runs", "configuration", "time", "tensors", "memory", "queries"),
        (row for share in answer.choice.shares for row in _steps(case, share)),
        optional=("queries", "configuration"),
    )
    if explain:
        typer.echo()
        _print_options(answer)
        _print_splits(case)
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
        "splits": [{"cut": cut, **_record(case, option)} for cut, option in _splits(case)],
        "notes": [*case.notes, *case.predicted_notes()],
    }


def _splits(case: Case) -> list[tuple[Cut, RoutePlan]]:
    return [(case.cuts[end - 1], option) for end, option in split_options(case.problem)]


def _fastest(options: Sequence[RoutePlan]) -> RoutePlan:
    return min(options, key=lambda option: option.seconds)


def _workers(shares: Iterable[Share]) -> str:
    """Return the workers of some routes, those of the first stages first."""
    legs = sorted((leg for share in shares for leg in share.route.legs), key=lambda leg: leg.first)
    return _joined([*{leg.worker: None for leg in legs}])


def _joined(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]


def _figures(option: RoutePlan) -> tuple[str, ...]:
    seconds = (option.latency_s, option.interval_s, option.seconds)
    return _workers(option.shares), *map(format_seconds, seconds)


def _verdict(deadline_s: float, option: RoutePlan) -> str:
    slack_s = deadline_s - option.seconds
    return f"{'met' if slack_s >= 0 else 'missed'} by {format_seconds(abs(slack_s))}"


def _steps(case: Case, share: Share) -> Iterator[tuple[str, ...]]:
    """Yield the rows of hops and legs in turn."""
    count = f"{share.queries:,}"
    for hop, leg in zip_longest(_hops(case, share), _legs(case, share)):
        if hop["seconds"]:
            size = decimal(hop["size_bytes"])
            yield f"to {hop['to']}", "", "", format_seconds(hop["seconds"]), size, "", count
        if leg:
            memory = _memory(leg["memory_bytes"], leg["budget_bytes"])
            what = (leg["worker"], leg["runs"], leg["configuration"])
            yield *what, format_seconds(leg["seconds"]), "", memory, count


def _memory(needed: float, budget: float) -> str:
    limit = "" if budget == math.inf else f" of {decimal(int(budget))}"
    return f"{decimal(int(needed))}{limit}"


def _print_options(answer: PlanAnswer) -> None:
    """Print the options, and the workers that have not the memory for the whole engine."""
    problem, deadline_s = answer.case.problem, answer.deadline_s
    needed = problem.memory_bytes(0, problem.chain.end)
    rows = [
        (each.name, *_figures(each), "" if deadline_s is None else _verdict(deadline_s, each))
        for each in answer.options
    ] + [
        (f"whole on {each.name}", f"needs {_memory(needed, each.budget_bytes)}", *[""] * 4)
        for each in problem.workers
        if needed > each.budget_bytes
    ]
    columns = ("option", "workers", "latency", "interval", "end", "deadline")
    shown = len(columns) - (deadline_s is None)
    print_table(columns[:shown], (row[:shown] for row in rows))


def _print_splits(case: Case) -> None:
    """Print the fastest splits in two, in the order of their cuts."""
    splits = _splits(case)
    shown = sorted(splits, key=lambda split: split[1].seconds)[:_SPLITS_SHOWN]
    if not shown:
        return
    typer.echo()
    print_table(
        ("split at", "size", "hop", "workers", "latency", "interval", "end"),
        (
            (
                cut.tensor,
                decimal(cut.size_bytes),
                format_seconds(option.shares[0].times.hops[1].seconds),
                *_figures(option),
            )
            for cut, option in sorted(shown, key=lambda split: split[0].position)
        ),
    )
    if more := len(splits) - len(shown):
        typer.echo(f"{counted(more, 'slower split')} not shown (see --json)")


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
                "end_s": share.seconds,
                "legs": _legs(case, share),
                "hops": _hops(case, share),
            }
            for share in option.shares
        ],
    }


def _legs(case: Case, share: Share) -> list[dict[str, Any]]:
    budgets = {worker.name: worker.budget_bytes for worker in case.problem.workers}
    return [
        {
            "worker": leg.worker,
            "runs": case.runs(leg),
            "configuration": case.configuration(leg),
            "seconds": seconds,
            "predicted": case.classes[leg.worker] in case.predicted,
            "error": case.error(leg),
            "memory_bytes": case.problem.memory_bytes(leg.first, leg.last),
            "budget_bytes": budgets[leg.worker],
        }
        for leg, seconds in zip(share.route.legs, share.times.stages, strict=True)
    ]


def _hops(case: Case, share: Share) -> list[dict[str, Any]]:
    source, legs = case.problem.source, share.route.legs
    pairs = pairwise([source, *(leg.worker for leg in legs), source])
    positions = [0, *(leg.last for leg in legs)]
    return [
        {
            "from": start,
            "to": end,
            "size_bytes": case.problem.chain.sizes[position],
            "seconds": hop.seconds,
            "interval_s": hop.interval_s,
        }
        for (start, end), position, hop in zip(pairs, positions, share.times.hops, strict=True)
    ]
