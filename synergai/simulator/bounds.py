"""How few violations a clairvoyant could have: a mixed-integer linear program, solved by HiGHS.

Time is cut at every arrival and deadline. In each interval a worker has so many seconds, which
it divides among jobs that have arrived and are not yet due, at their real rates; a job that is
to be in time needs all of its queries. Jobs may be divided and moved at will and for nothing,
except that a worker pays the real setup of a job that it touches at all once (cold), or of an
engine once (warm). No schedule can do better, whatever it knows.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import highspy
import numpy as np

from synergai.errors import InternalFault

if TYPE_CHECKING:
    from synergai.domain import EngineName, Job, WorkerClass
    from synergai.simulator.workload import Workload

_TIME_LIMIT_S: Final = 20.0
_TOLERANCE: Final = 1e-6


class _Program:
    """Rows and columns of a program that maximises, collected before they are solved."""

    def __init__(self) -> None:
        self.highs = highspy.Highs()  # type: ignore[no-untyped-call]  # ships partial types
        self.highs.setOptionValue("output_flag", False)
        self.highs.setOptionValue("threads", 1)
        self.highs.setOptionValue("time_limit", _TIME_LIMIT_S)
        self.highs.changeObjectiveSense(highspy.ObjSense.kMaximize)
        self.columns = 0

    def column(self, value: float, upper: float, *, whole: bool = False) -> int:
        self.highs.addCol(value, 0.0, upper, 0, [], [])
        if whole:
            self.highs.changeColIntegrality(self.columns, highspy.HighsVarType.kInteger)
        self.columns += 1
        return self.columns - 1

    def at_most(self, upper: float, terms: dict[int, float]) -> None:
        self.highs.addRow(
            -highspy.kHighsInf,
            upper,
            len(terms),
            np.array(list(terms)),
            np.array([*terms.values()]),
        )

    def bound(self) -> float:
        """The best value that any solution could have."""
        self.highs.run()
        status = self.highs.getModelStatus()
        if status not in (highspy.HighsModelStatus.kOptimal, highspy.HighsModelStatus.kTimeLimit):
            raise InternalFault(f"the bound's program has no solution: {status}")
        return float(self.highs.getInfo().mip_dual_bound)


def violations_at_least(workload: Workload) -> int:
    """The least number of violations that any schedule of the workload can have."""
    program = _Program()
    met = {job.id: program.column(1.0, 1.0, whole=True) for job in workload.jobs}
    instants = sorted(
        {job.arrival for job in workload.jobs} | {job.deadline for job in workload.jobs}
    )
    intervals = list(pairwise(instants))
    used: dict[tuple[WorkerClass, int], dict[int, float]] = {}
    sessions: dict[tuple[EngineName, WorkerClass], int] = {}
    for job in workload.jobs:
        needs = {met[job.id]: float(job.queries)}
        for name in workload.profile.classes:
            rate, setup_s = _real(workload, job, name)
            parts = {}
            for number, (begins, ends) in enumerate(intervals):
                if job.arrival <= begins and ends <= job.deadline:
                    part = program.column(0.0, ends - begins)
                    parts[part] = 1.0
                    used.setdefault((name, number), {})[part] = 1.0
                    needs[part] = -rate
            if setup_s > 0:
                _pay(program, workload, job, name, parts, setup_s, used, intervals, sessions)
        program.at_most(0.0, needs)
    for (_, number), terms in used.items():
        begins, ends = intervals[number]
        program.at_most(ends - begins, terms)
    return len(workload.jobs) - math.floor(program.bound() + _TOLERANCE)


def _real(workload: Workload, job: Job, name: WorkerClass) -> tuple[float, float]:
    """The best real rate of the job on a class, and the least setup that it can have there."""
    entries = workload.profile.entries(job.engine, name)
    configurations = [entry.configuration for entry in entries]
    rate = max(1.0 / workload.per_query_s(job, name, c) for c in configurations)
    if workload.t_pre == "proportional" and workload.sessions == "cold":
        # Every query brings its own part of T_pre.
        seconds = [
            workload.per_query_s(job, name, c)
            + workload.setup_s(job, name, c, job.queries) / job.queries
            for c in configurations
        ]
        return 1.0 / min(seconds), 0.0
    if workload.sessions == "prewarmed" or workload.t_pre == "proportional":
        return rate, 0.0
    return rate, min(workload.setup_s(job, name, c, job.queries) for c in configurations)


def _pay(
    program: _Program,
    workload: Workload,
    job: Job,
    name: WorkerClass,
    parts: dict[int, float],
    setup_s: float,
    used: dict[tuple[WorkerClass, int], dict[int, float]],
    intervals: list[tuple[float, float]],
    sessions: dict[tuple[EngineName, WorkerClass], int],
) -> None:
    """Let the worker run the job only if it pays the setup, out of its time before the deadline."""
    window_s = job.deadline - job.arrival
    if workload.sessions == "cold":
        touched = program.column(0.0, 1.0, whole=True)
        owners = [job]
        least_s = setup_s
    else:
        owners = [other for other in workload.jobs if other.engine == job.engine]
        least_s = min(_real(workload, other, name)[1] for other in owners)
        if (job.engine, name) in sessions:
            program.at_most(0.0, {**parts, sessions[job.engine, name]: -window_s})
            return
        touched = sessions[job.engine, name] = program.column(0.0, 1.0, whole=True)
    if workload.sessions == "cold":
        # What the setup takes of the job's window is not there for its queries.
        program.at_most(0.0, {**parts, touched: -max(0.0, window_s - setup_s)})
    else:
        program.at_most(0.0, {**parts, touched: -window_s})
    begins = min(owner.arrival for owner in owners)
    ends = max(owner.deadline for owner in owners)
    paid = {}
    for number, (begin, end) in enumerate(intervals):
        if begins <= begin and end <= ends:
            part = program.column(0.0, end - begin)
            paid[part] = -1.0
            used.setdefault((name, number), {})[part] = 1.0
    program.at_most(0.0, {**paid, touched: least_s})
