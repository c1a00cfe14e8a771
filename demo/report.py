"""Tables and figures of the demo's report."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Final, Literal

from rich.box import SIMPLE_HEAD
from rich.table import Table

from synergai.cli.output import format_seconds
from synergai.profiles.dictionary import DISTURBED

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from demo.plan import PlannedJob
    from demo.traffic import RequestResults
    from synergai.jobs import JobStatus
    from synergai.profiles.dictionary import ProfileEntry


_COLUMNS: Final = (
    "engine",
    "queries",
    "QoS",
    "kind",
    "workers",
    "estimated",
    "actual",
)
_NUMBERS: Final = frozenset({"queries", "QoS", "estimated", "actual"})


def jobs_table(
    jobs: Sequence[PlannedJob], results_by_policy: Mapping[str, Sequence[JobStatus]]
) -> Table:
    """Return a table of the jobs with the result under each policy.

    Placement, estimated and actual time are those of the first policy.
    """
    table = Table(box=SIMPLE_HEAD, header_style="bold", padding=(0, 1, 0, 0))
    for name in (*_COLUMNS, *results_by_policy):
        justify: Literal["right", "left"] = "right" if name in _NUMBERS else "left"
        table.add_column(name, justify=justify, no_wrap=name == "engine" or name in _NUMBERS)
    for job, result, *others in zip(jobs, *results_by_policy.values(), strict=True):
        table.add_row(
            job.engine,
            f"{job.queries:,}",
            f"{job.qos:.2f} s",
            job.kind,
            ", ".join(dict.fromkeys(e.worker_id for e in result.executions)),
            format_seconds(result.estimated_s) or "-",
            "-" if result.actual_s is None else f"{result.actual_s:.2f} s",
            *map(_verdict, (result, *others)),
        )
    return table


def _verdict(result: JobStatus) -> str:
    return f"[red]{result.excess_s:.2f} s late[/]" if result.violated else "[green]met[/]"


def estimate_error(results: Sequence[JobStatus]) -> float:
    """Return the median over the jobs of |estimated - actual| / actual."""
    return statistics.median(
        abs(r.estimated_s - r.actual_s) / r.actual_s
        for r in results
        if r.estimated_s is not None and r.actual_s
    )


def disturbance(entries: Iterable[ProfileEntry]) -> str:
    """Return which profiles other processes disturbed, and what that means; empty if none."""
    disturbed = [
        f"{entry.engine} on {entry.worker_class}" for entry in entries if entry.label == DISTURBED
    ]
    if not disturbed:
        return ""
    return (
        f"Other processes disturbed the profiling of {', '.join(disturbed)}, so estimates are less "
        "exact, and jobs may be late; run the demo again on an idle machine."
    )


def goodput(results: Sequence[JobStatus]) -> tuple[int, float]:
    """Return the queries of jobs that met their QoS, in total and per second."""
    good = sum(r.spec.queries for r in results if not r.violated)
    began = min(r.submitted_at for r in results)
    ended = max(r.finished_at for r in results if r.finished_at is not None)
    return good, good / (ended - began).total_seconds()


def requests_line(requests: RequestResults) -> str:
    """Return a summary line of single requests."""
    sent = len(requests.seconds) + requests.failed
    median_ms = statistics.median(requests.seconds) * 1e3 if requests.seconds else float("nan")
    return (
        f"{requests.label}: {requests.met} of {sent} within {requests.deadline * 1e3:.0f} ms, "
        f"one every {median_ms:.1f} ms at the median"
    )
