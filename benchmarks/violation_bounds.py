"""Lower bound on violations: a mixed-integer linear program, solved by HiGHS.

Time is cut at every arrival and deadline. In each interval a worker divides its time among jobs
that have arrived and are not yet due, at their actual rates; a job in time needs all of its
queries. Jobs may be split and moved freely at no cost, but a worker pays the actual setup once
per job it runs (cold) or once per engine (warm). No schedule can have fewer violations, even
with perfect knowledge. Workers of one class count as one that is as many times as fast, of which a
job uses at most as many as it has queries; several of them need resident sessions.
"""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import highspy
import numpy as np

from synergai.errors import InternalError

if TYPE_CHECKING:
    from profiler.simulator.workload import Workload
    from synergai.domain import EngineName, Job, WorkerClass

_TIME_LIMIT_S: Final = 20.0
_TOLERANCE: Final = 1e-6


class Program:
    """A maximisation program under construction."""

    def __init__(self) -> None:
        self.highs = highspy.Highs()  # type: ignore[no-untyped-call]  # ships partial types
        self.highs.setOptionValue("output_flag", False)
        self.highs.setOptionValue("threads", 1)
        self.highs.setOptionValue("time_limit", _TIME_LIMIT_S)
        self.highs.changeObjectiveSense(highspy.ObjSense.kMaximize)
        self.columns = 0

    def column(self, value: float, upper: float, *, whole: bool = False) -> int:
        """Add a variable from 0 to `upper` with objective coefficient `value`; return its index."""
        self.highs.addCol(value, 0.0, upper, 0, [], [])
        if whole:
            self.highs.changeColIntegrality(self.columns, highspy.HighsVarType.kInteger)
        self.columns += 1
        return self.columns - 1

    def at_most(self, upper: float, terms: dict[int, float]) -> None:
        """Add the constraint that the weighted sum of columns is at most `upper`."""
        self.highs.addRow(
            -highspy.kHighsInf,
            upper,
            len(terms),
            np.array(list(terms)),
            np.array([*terms.values()]),
        )

    def bound(self) -> float:
        """Solve the program and return the upper bound on its objective."""
        self.highs.run()
        status = self.highs.getModelStatus()
        if status not in (highspy.HighsModelStatus.kOptimal, highspy.HighsModelStatus.kTimeLimit):
            raise InternalError(f"HiGHS found no bound: {status}")
        return float(self.highs.getInfo().mip_dual_bound)


def violations_at_least(workload: Workload) -> int:
    """Return the least number of violations that any schedule of the workload can have."""
    program = Program()
    in_time = {job.id: program.column(1.0, 1.0, whole=True) for job in workload.jobs}
    instants = sorted(
        {job.arrival for job in workload.jobs} | {job.deadline for job in workload.jobs}
    )
    intervals = list(pairwise(instants))
    load: dict[tuple[WorkerClass, int], dict[int, float]] = {}
    sessions: dict[tuple[EngineName, WorkerClass], int] = {}
    workers = Counter(workload.workers.values())
    for job in workload.jobs:
        needs = {in_time[job.id]: float(job.queries)}
        for name in workload.profile.classes:
            rate, setup_s = rate_and_setup_s(workload, job, name)
            parts = {}
            for number, (begins, ends) in enumerate(intervals):
                if job.arrival <= begins and ends <= job.deadline:
                    part = program.column(0.0, (ends - begins) * min(workers[name], job.queries))
                    parts[part] = 1.0
                    load.setdefault((name, number), {})[part] = 1.0
                    needs[part] = -rate
            if setup_s > 0:
                _charge_setup(
                    program, workload, job, name, parts, setup_s, load, intervals, sessions
                )
        program.at_most(0.0, needs)
    for (name, number), terms in load.items():
        begins, ends = intervals[number]
        program.at_most((ends - begins) * workers[name], terms)
    return len(workload.jobs) - math.floor(program.bound() + _TOLERANCE)


def rate_and_setup_s(workload: Workload, job: Job, name: WorkerClass) -> tuple[float, float]:
    """Return the job's best actual rate on a class, and its least actual setup there."""
    entries = workload.profile.entries(job.engine, name)
    configurations = [entry.configuration for entry in entries]
    rate = max(1.0 / workload.per_query_s(job, name, c) for c in configurations)
    if workload.t_pre == "proportional" and workload.sessions == "cold":
        # Every query pays its own part of T_pre.
        seconds = [
            workload.per_query_s(job, name, c)
            + workload.setup_s(job, name, c, job.queries) / job.queries
            for c in configurations
        ]
        return 1.0 / min(seconds), 0.0
    if workload.sessions == "prewarmed" or workload.t_pre != "fixed":
        return rate, 0.0
    return rate, min(workload.setup_s(job, name, c, job.queries) for c in configurations)


def _charge_setup(
    program: Program,
    workload: Workload,
    job: Job,
    name: WorkerClass,
    parts: dict[int, float],
    setup_s: float,
    load: dict[tuple[WorkerClass, int], dict[int, float]],
    intervals: list[tuple[float, float]],
    sessions: dict[tuple[EngineName, WorkerClass], int],
) -> None:
    """Make running the job on the class cost its setup, out of worker time before the deadline."""
    window_s = job.deadline - job.arrival
    if workload.sessions == "cold":
        used_at_all = program.column(0.0, 1.0, whole=True)
        owners = [job]
        least_s = setup_s
    else:
        owners = [other for other in workload.jobs if other.engine == job.engine]
        least_s = min(rate_and_setup_s(workload, other, name)[1] for other in owners)
        if (job.engine, name) in sessions:
            program.at_most(0.0, {**parts, sessions[job.engine, name]: -window_s})
            return
        used_at_all = sessions[job.engine, name] = program.column(0.0, 1.0, whole=True)
    if workload.sessions == "cold":
        # Setup reduces the time in the job's window that is left for queries.
        program.at_most(0.0, {**parts, used_at_all: -max(0.0, window_s - setup_s)})
    else:
        program.at_most(0.0, {**parts, used_at_all: -window_s})
    begins = min(owner.arrival for owner in owners)
    ends = max(owner.deadline for owner in owners)
    paid = {}
    for number, (begin, end) in enumerate(intervals):
        if begins <= begin and end <= ends:
            part = program.column(0.0, end - begin)
            paid[part] = -1.0
            load.setdefault((name, number), {})[part] = 1.0
    program.at_most(0.0, {**paid, used_at_all: least_s})
