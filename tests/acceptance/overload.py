"""Overload a gateway; check that it answers nearly as many requests in time as can be.

    python tests/acceptance/overload.py --seconds 10 --policy edf

An emulated engine serves 40 queries per second, so that neither client nor servers are the
bottleneck. Poisson arrivals at 1.1, 1.5, 3 and 10 times the capacity of the workers. At each load,
few more requests may miss their deadlines than must, rejections must be immediate, and the
scheduler's event log must have no request that was dispatched after its deadline.
"""

import argparse
import heapq
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from demo.local_fleet import LocalFleet
from profiler.loadgen.traces.arrivals import arrivals, constant
from profiler.simulator.recording import replay
from synergai.core.scheduling.events import AssignmentEnded, Dispatch, Expire, JobArrived
from synergai.domain import EngineName
from tests.acceptance.scripts import verdict
from tests.emulated_engines import write_emulated_engines

ENGINE = EngineName("slow")
QUERY_S = 0.025
DEADLINE_MS = 500.0
FACTORS = (1.1, 1.5, 3.0, 10.0)

ATTEMPTS = 3
"""Per load: on a busy machine, the load generator may send late."""
AVOIDABLE = 0.03
"""Share of the requests that may be late, rejected or expired although they need not be."""
REJECTION_S = 0.05


class LoadReport(TypedDict, total=False):
    """Report of ``synergai load --json``, as far as it is used here; rates are per second."""

    requests: int
    met: int
    offered: float
    goodput: float
    rejected: int
    expired: int
    late: int
    failed: int
    first_failure: str
    rejection_s: dict[str, float]
    latency_s: dict[str, float]
    send_delay: dict[str, float]
    valid: bool


@dataclass(frozen=True, slots=True)
class LoadPoint:
    """One load, as a multiple of the capacity, and the report of ``synergai load``."""

    factor: float
    report: LoadReport
    unavoidable: float

    @property
    def missed(self) -> float:
        # Not by the goodput: the last answers come after the last requests.
        return 1.0 - self.report["met"] / self.report["requests"]

    @property
    def rejection_s(self) -> float:
        """99th percentile of the time to a rejection; 0 without any."""
        return float(self.report["rejection_s"].get("99.0", 0.0))

    def row(self) -> str:
        report = self.report
        latency_ms = 1e3 * report["latency_s"].get("99.0", float("nan"))
        return (
            f"{self.factor:>4g}x {report['offered']:>8.1f} {report['goodput']:>8.1f} "
            f"{self.missed:>7.1%} {self.unavoidable:>7.1%} "
            f"{report['rejected']:>8,} {1e3 * self.rejection_s:>8.1f} {report['expired']:>8,} "
            f"{report['late']:>6,} {report['failed']:>6,} {latency_ms:>8.0f} "
            f"{1e3 * report['send_delay']['max_s']:>8.1f}"
        )


HEADING = (
    "load  offered  goodput  missed  must be rejected  p99, ms  expired   late failed  p99, ms "
    "sent late, ms at most"
)


def find_errors(points: list[LoadPoint], log: Path) -> list[str]:
    """Return the errors at these loads and in the gateway's event log."""
    found = []
    for point in points:
        name = f"at {point.factor:g} times the capacity"
        if point.missed > point.unavoidable + AVOIDABLE:
            found.append(
                f"{name} {point.missed:.1%} of the requests were not answered in time, although "
                f"{point.unavoidable:.1%} had to be"
            )
        if point.rejection_s > REJECTION_S:
            found.append(f"{name} rejections take {point.rejection_s:.3f} s at the 99th percentile")
        if point.report["failed"]:
            found.append(f"{name} requests failed: {point.report['first_failure']}")
        if not point.report["valid"]:
            found.append(f"{name} requests were sent late: the run is invalid")
    return found + dispatched_expired(log)


def dispatched_expired(log: Path) -> list[str]:
    """Return errors for requests dispatched after their deadline or expiry."""
    found = []
    deadlines: dict[str, float] = {}
    expired: set[str] = set()
    for step in replay(log, time.thread_time):
        if isinstance(step.event, JobArrived):
            deadlines[step.event.job.id] = step.event.job.deadline
        for command in step.recorded:
            match command:
                case Expire(job_id):
                    expired.add(job_id)
                case Dispatch(assignment):
                    job_id = assignment.job_id
                    if job_id in expired or step.at >= deadlines[job_id]:
                        found.append(f"{job_id} was dispatched after its deadline")
    if not deadlines:
        found.append(f"{log} has no request")
    return found


def start(fleet: LocalFleet, directory: Path, log: Path, workers: int, policy: str) -> None:
    dictionary = str(directory / "dictionary.db")
    options = ["--dictionary", dictionary, "--event-log", str(log), "--policy", policy]
    fleet.start_gateway(options)
    for number in range(workers):
        name = f"worker-{number}"
        fleet.start_agent(name, models=directory / "models", options=["--threads", "1"])
    fleet.wait_for_workers(workers)


def load(address: str, *options: str) -> LoadReport:
    command = [
        *(sys.executable, "-m", "synergai", "load", ENGINE, "--target", address),
        *("--deadline-ms", str(DEADLINE_MS), "--late-ms", "25", "--json", *options),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    report: LoadReport = json.loads(done.stdout)
    return report


def engine_s(log: Path) -> float:
    """Return how long the engine took for a query: a busy machine wakes it up late."""
    steps = (step.event for step in replay(log, time.thread_time))
    ended = [each for each in steps if isinstance(each, AssignmentEnded) and each.done]
    return sum(each.compute_s for each in ended) / len(ended)


def unavoidable(rate: float, seconds: float, workers: int, query_s: float) -> float:
    """Return the share of the requests of ``synergai load`` that must miss their deadlines.

    All take equally long and have equal deadlines, so to take each one that can be in time, in
    order of arrival, is best.
    """
    free_at = [0.0] * workers
    total = late = 0
    for at in arrivals(constant(rate, seconds), seed=0):
        total += 1
        ends_at = max(at, free_at[0]) + query_s
        if ends_at > at + DEADLINE_MS / 1e3:
            late += 1
        else:
            heapq.heapreplace(free_at, ends_at)
    return late / total


def measure(address: str, rate: float, seconds: float) -> LoadReport:
    """Measure one load; repeat if requests were sent late."""
    for _ in range(ATTEMPTS):
        report = load(address, "--rate", str(rate), "--duration", str(seconds))
        if report["valid"]:
            break
    return report


def run(seconds: float, directory: Path, workers: int, policy: str) -> list[str]:
    write_emulated_engines(directory, {ENGINE: QUERY_S})
    log = directory / "events.jsonl"
    with LocalFleet(directory / "run") as fleet:
        start(fleet, directory, log, workers, policy)
        rates = {factor: factor * workers / QUERY_S for factor in FACTORS}
        reports = {each: measure(fleet.address, rates[each], seconds) for each in FACTORS}
    query_s = engine_s(log)
    print(f"{workers / query_s:.1f} requests/s at most, deadline {DEADLINE_MS:g} ms")
    print(HEADING)
    points = []
    for factor, report in reports.items():
        must = unavoidable(rates[factor], seconds, workers, query_s)
        points.append(LoadPoint(factor, report, must))
        print(points[-1].row())
    return find_errors(points, log)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=10.0, help="for each load")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--policy", default="malleable")
    parser.add_argument("--directory", type=Path, help="keep logs in this directory")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        directory = arguments.directory or Path(temporary)
        found = run(arguments.seconds, directory, arguments.workers, arguments.policy)
    return verdict(found)


if __name__ == "__main__":
    sys.exit(main())
