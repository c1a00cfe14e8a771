"""Checks that a run could have happened: from the spans alone, and knowing nothing of the core."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from synergai.domain import Session, WorkerClass
from synergai.errors import InternalFault

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from synergai.domain import Job, WorkerId
    from synergai.simulator.simulation import Run
    from synergai.simulator.virtual_worker import Span

_TOLERANCE_S: Final = 1e-6


class AuditFailed(InternalFault):
    """A simulated run breaks a law that every real one keeps."""


def audit(run: Run) -> None:
    """Check a run.

    Raises:
        AuditFailed: a query was run twice or never, a worker did two things at once, a job ran
            before it arrived or finished at another time than its last query, or a setup or
            query took less than it takes.
    """
    complaint = next(_complaints(run), None)
    if complaint is not None:
        workload = run.workload
        where = f"{run.policy} in {workload.experiment}, seed {workload.seed}"
        raise AuditFailed(f"{where}: {complaint}")


def _complaints(run: Run) -> Iterator[str]:
    by_job: dict[str, list[Span]] = {job.id: [] for job in run.workload.jobs}
    by_worker: dict[WorkerId, list[Span]] = {}
    for span in run.spans:
        by_job[span.job_id].append(span)
        by_worker.setdefault(span.worker_id, []).append(span)
    for job in run.workload.jobs:
        yield from _job_complaints(job, by_job[job.id], run.finished.get(job.id))
    jobs = {job.id: job for job in run.workload.jobs}
    for spans in by_worker.values():
        spans.sort(key=lambda span: (span.began, span.ended))
        for before, after in pairwise(spans):
            if after.began < before.ended - _TOLERANCE_S:
                yield f"{after.worker_id} runs {before.job_id} and {after.job_id} at once"
        for span, session_is_warm in _with_warmth(run, spans):
            yield from _time_complaints(run, jobs[span.job_id], span, session_is_warm)


def _job_complaints(job: Job, spans: Iterable[Span], finished: float | None) -> Iterator[str]:
    spans = sorted(spans, key=lambda span: (span.first, span.done))
    if any(span.began < job.arrival - _TOLERANCE_S for span in spans):
        yield f"job {job.id} runs before it arrives"
    if finished is None:
        return
    position = 0
    for span in spans:
        if span.done and span.first != position:
            what = "run twice" if span.first < position else "never run"
            yield f"queries of job {job.id} near {min(position, span.first)} are {what}"
        position = span.first + span.done if span.done else position
    if position != job.queries:
        yield f"job {job.id} finished after {position} queries, not {job.queries}"
    last = max((span.ended for span in spans if span.done), default=math.nan)
    if not abs(finished - last) <= _TOLERANCE_S:
        yield f"job {job.id} finished at {finished}, its last query at {last}"


def _with_warmth(run: Run, spans: list[Span]) -> Iterator[tuple[Span, bool]]:
    """Each of a worker's spans, and whether its engine was set up when the worker turned to it."""
    loaded: set[Session] = set()
    before: Span | None = None
    for span in spans:
        session = Session(span.engine, span.configuration)
        match run.workload.sessions:
            case "prewarmed":
                yield span, True
            case "warm":
                yield span, session in loaded
                if span.done:
                    loaded.add(session)
            case "cold":
                yield span, before is not None and _continues(before, span)
        before = span


def _continues(before: Span, span: Span) -> bool:
    same = (before.job_id, before.configuration) == (span.job_id, span.configuration)
    return same and before.done > 0 and span.began - before.ended <= _TOLERANCE_S


def _time_complaints(run: Run, job: Job, span: Span, session_is_warm: bool) -> Iterator[str]:
    workload, name = run.workload, WorkerClass(span.worker_id)
    queries_s = span.done * workload.per_query_s(job, name, span.configuration)
    if span.ended - span.ready < queries_s - _TOLERANCE_S:
        yield f"{span.worker_id} runs {span.done} queries of job {job.id} faster than it can"
    if session_is_warm or not span.done:
        return
    # With a T_pre in proportion, at least what the queries that were run ask for.
    setup_s = workload.setup_s(job, name, span.configuration, span.done)
    if span.ready - span.began < setup_s - _TOLERANCE_S:
        yield f"{span.worker_id} did not pay the setup of job {job.id}"
