"""Consistency checks of a run from its spans alone, independent of the core."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from synergai.domain import Session

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from profiler.simulator.simulation import SimulationRun
    from profiler.simulator.virtual_worker import BusySpan
    from synergai.domain import Job, WorkerId

_TOLERANCE_S: Final = 1e-6


class AuditFailed(AssertionError):
    """A simulated run violates a physical constraint."""


def audit(run: SimulationRun) -> None:
    """Check that no query is lost or run twice, and that each worker could have done its part.

    It runs one assignment at once, none before it arrives, and takes as long as it must.
    """
    finding = next(_findings(run), None)
    if finding is not None:
        workload = run.workload
        where = f"{run.policy} in {workload.experiment}, seed {workload.seed}"
        raise AuditFailed(f"{where}: {finding}")


def _findings(run: SimulationRun) -> Iterator[str]:
    by_job: dict[str, list[BusySpan]] = {job.id: [] for job in run.workload.jobs}
    by_worker: dict[WorkerId, list[BusySpan]] = {}
    for span in run.spans:
        by_job[span.job_id].append(span)
        by_worker.setdefault(span.worker_id, []).append(span)
    for job in run.workload.jobs:
        yield from _job_findings(job, by_job[job.id], run.finished.get(job.id))
    yield from _load_findings(run, by_worker)
    jobs = {job.id: job for job in run.workload.jobs}
    for spans in by_worker.values():
        spans.sort(key=lambda span: (span.started, span.ended))
        for before, after in pairwise(spans):
            if after.started < before.ended - _TOLERANCE_S:
                yield f"{after.worker_id} ran {before.job_id} and {after.job_id} at once"
        for span, is_resident in _with_session_state(run, spans):
            yield from _time_findings(run, jobs[span.job_id], span, is_resident)


def _job_findings(job: Job, spans: Iterable[BusySpan], finished: float | None) -> Iterator[str]:
    spans = sorted(spans, key=lambda span: (span.first, span.done))
    if any(span.started < job.arrival - _TOLERANCE_S for span in spans):
        yield f"job {job.id} ran before it arrived"
    if finished is None:
        return
    position = 0
    for span in spans:
        if span.done and span.first != position:
            what = "run twice" if span.first < position else "never run"
            yield f"queries of job {job.id} near {min(position, span.first)} were {what}"
        position = span.first + span.done if span.done else position
    if position != job.queries:
        yield f"job {job.id} finished after {position} queries, not {job.queries}"
    last = max((span.ended for span in spans if span.done), default=math.nan)
    if not abs(finished - last) <= _TOLERANCE_S:
        yield f"job {job.id} finished at {finished}, its last query at {last}"


def _with_session_state(
    run: SimulationRun, spans: list[BusySpan]
) -> Iterator[tuple[BusySpan, bool]]:
    """Yield each of a worker's spans, and whether its session was ready when it started."""
    loaded: set[Session] = set()
    before: BusySpan | None = None
    changes = [each for each in run.changes if spans and each.worker_id == spans[0].worker_id]
    for span in spans:
        session = Session(span.engine, span.configuration)
        while changes and changes[0].at <= span.started:
            change = changes.pop(0)
            if not change.resident:
                loaded.discard(change.session)
            elif change.load is not None:
                loaded.add(change.session)
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


def _load_findings(
    run: SimulationRun, by_worker: Mapping[WorkerId, Sequence[BusySpan]]
) -> Iterator[str]:
    classes = run.workload.workers
    for change in run.changes:
        load = change.load
        if load is None:
            continue
        session = load.session
        name = classes[load.worker_id]
        least_s = run.workload.load_s(session.engine, name, session.configuration)
        if load.spent_s < least_s - _TOLERANCE_S:
            yield f"{load.worker_id} preloaded {session.engine} faster than possible"
    for load in run.loads:
        for began, ended in load.parts:
            for span in by_worker.get(load.worker_id, ()):
                if span.started < ended - _TOLERANCE_S and began < span.ended - _TOLERANCE_S:
                    yield f"{load.worker_id} preloaded while it ran {span.job_id}"


def _continues(before: BusySpan, span: BusySpan) -> bool:
    same = (before.job_id, before.configuration) == (span.job_id, span.configuration)
    return same and before.done > 0 and span.started - before.ended <= _TOLERANCE_S


def _time_findings(
    run: SimulationRun, job: Job, span: BusySpan, is_resident: bool
) -> Iterator[str]:
    workload, name = run.workload, run.workload.workers[span.worker_id]
    queries_s = span.done * workload.per_query_s(job, name, span.configuration)
    if span.ended - span.ready < queries_s - _TOLERANCE_S:
        yield f"{span.worker_id} ran {span.done} queries of job {job.id} faster than possible"
    if is_resident or not span.done:
        return
    # With a proportional T_pre, at least the part for the queries that ran.
    setup_s = workload.setup_s(job, name, span.configuration, span.done)
    session = Session(span.engine, span.configuration)
    # A preload that had not ended was continued.
    setup_s -= sum(
        load.spent_s
        for load in run.loads
        if load.worker_id == span.worker_id and load.session == session
    )
    if span.ready - span.started < setup_s - _TOLERANCE_S:
        yield f"{span.worker_id} did not pay the setup of job {job.id}"
