"""Verdicts: whether a worker was acceptable for a request or job, and otherwise why not."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from synergai.explanations.facts import Verdict
from synergai.versions import split_version

if TYPE_CHECKING:
    from collections.abc import Sequence

    from synergai.domain import Job
    from synergai.explanations.facts import Ahead, Obstacle
    from synergai.scheduling.policy import View
    from synergai.scheduling.state.estimate import Estimate
    from synergai.scheduling.state.jobs import JobRecord
    from synergai.scheduling.state.workers import WorkerRecord


class _Cost(NamedTuple):
    """What all of a job costs on an idle worker."""

    needed_s: float
    setup_s: float
    estimate: Estimate


def verdict_so_far(
    view: View, record: JobRecord, worker: WorkerRecord, ahead: Sequence[Ahead]
) -> Verdict:
    """Return whether a worker would have been acceptable for a job that has ended."""
    found = _when_idle(view, record, worker)
    if found.obstacle or found.needed_s is None:
        return found
    busy_s = sum(each.seconds for each in ahead if each.worker == worker.id)
    return replace(found, obstacle="busy", seconds=busy_s) if busy_s else found


def verdict_from_now(view: View, record: JobRecord, worker: WorkerRecord) -> Verdict:
    """Return whether a worker is acceptable for a job that waits."""
    found = _when_idle(view, record, worker)
    if found.obstacle or found.needed_s is None:
        return found
    busy_s = worker.free_at(view.now) - view.now
    too_many_s = view.now + busy_s + found.needed_s - record.job.deadline
    if not busy_s or -math.inf < too_many_s <= 0:
        return found
    found = replace(found, obstacle="busy", seconds=busy_s)
    return replace(found, too_many_s=too_many_s) if too_many_s > 0 else found


def _when_idle(view: View, record: JobRecord, worker: WorkerRecord) -> Verdict:
    """Return whether a worker is acceptable without regard to its other work."""
    job, found = record.job, Verdict(worker=worker.id)
    if job.engine not in worker.engines:
        return _without(worker, job, found)
    if worker.draining:
        return replace(found, obstacle="draining")
    if worker.ejected_until is not None:
        return replace(found, obstacle="ejected", seconds=worker.ejected_until - view.now)
    profiled = view.estimator.current(job.engine, worker)
    usable = [each for each in profiled if record.limit is None or record.limit.allows(each)]
    if not usable:
        return replace(found, obstacle="variant" if profiled else "unprofiled")
    costs = [_cost(view, record, worker, each) for each in usable]
    cost = min(costs, key=lambda each: (each.needed_s, each.setup_s))
    budget_s = job.deadline - job.arrival
    found = replace(found, needed_s=cost.needed_s, setup_s=cost.setup_s)
    if cost.needed_s <= budget_s:
        return found
    found = replace(found, too_many_s=cost.needed_s - budget_s)
    paused = [at for session, at in worker.paused.items() if session.engine == job.engine]
    if paused:
        return replace(found, obstacle="paused", seconds=max(paused) - view.now)
    return replace(found, obstacle=_slowness(worker, cost, budget_s))


def _cost(view: View, record: JobRecord, worker: WorkerRecord, estimate: Estimate) -> _Cost:
    setup_s = view.setup_s(record, worker, estimate)
    compute_s = record.job.queries * view.per_query_s(record, worker, estimate)
    return _Cost(setup_s + compute_s, setup_s, estimate)


def _slowness(worker: WorkerRecord, cost: _Cost, budget_s: float) -> Obstacle:
    """Return why an idle worker takes longer than the budget."""
    if cost.needed_s - cost.setup_s > budget_s:
        return "slow"
    mode = cost.estimate.configuration.power_mode
    switches = mode and worker.power_mode not in (None, mode)
    return "mode switch" if switches and cost.estimate.session in worker.sessions else "loading"


def _without(worker: WorkerRecord, job: Job, found: Verdict) -> Verdict:
    """Return the verdict on a worker without the engine, or with other versions of it."""
    name = split_version(job.engine)[0]
    others = sorted(each for each in worker.engines if split_version(each)[0] == name)
    if others:
        return replace(found, obstacle="version", detail=", ".join(others))
    return replace(found, obstacle="engine")
