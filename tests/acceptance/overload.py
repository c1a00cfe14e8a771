"""Ask a gateway for more than its workers can do, and show that what it does do stays useful.

    python tests/acceptance/overload.py --seconds 10

An emulated engine answers 40 queries per second, so that neither the asking nor the answering
processes are the limit. Requests come at random instants at 1, 2, 5 and 10 times of what the
workers can do. At each load the goodput has to stay near its peak, refusals have to come at once,
and the scheduler's event log must show no request that was dispatched after its deadline.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from synergai.domain import Configuration, EngineName, WorkerClass
from synergai.profiles.dictionary import ProfileEntry
from synergai.profiles.store import DictionaryStore
from synergai.scheduling.event_log import replay
from synergai.scheduling.events import Dispatch, Expire, JobArrived
from synergai.testing import LocalFleet

ENGINE = "slow"
QUERY_S = 0.025
DEADLINE_MS = 500.0
TIMES = (1, 2, 5, 10)

ATTEMPTS = 3
"""At a load: this machine may have other things to do, and then sends late."""
GOODPUT_SHARE = 0.9
REJECTION_S = 0.05


@dataclass(frozen=True, slots=True)
class Point:
    """One load, as a multiple of the capacity, and the report of ``synergai load``."""

    times: float
    report: dict[str, Any]

    @property
    def goodput(self) -> float:
        """Answers in time per second."""
        return float(self.report["goodput"])

    @property
    def rejection_s(self) -> float:
        """What 99 % of the refusals took at most; 0 without any."""
        return float(self.report["rejection_s"].get("99.0", 0.0))

    def row(self) -> str:
        """The point as a line of a table."""
        report = self.report
        latency_ms = 1e3 * report["latency_s"].get("99.0", float("nan"))
        return (
            f"{self.times:>4g}x {report['offered']:>8.1f} {self.goodput:>8.1f} "
            f"{report['rejected']:>8,} {1e3 * self.rejection_s:>8.1f} {report['expired']:>8,} "
            f"{report['late']:>6,} {report['failed']:>6,} {latency_ms:>8.0f} "
            f"{1e3 * report['send_delay']['max_s']:>8.1f}"
        )


HEADING = (
    "load  offered  goodput rejected  p99, ms  expired   late failed  p99, ms sent late, ms at most"
)


def faults(points: list[Point], log: Path) -> list[str]:
    """What is wrong with the answers at these loads, and with the gateway's event log."""
    found = []
    peak = max(point.goodput for point in points)
    for point in points:
        name = f"at {point.times:g} times the capacity"
        # Random arrivals at the capacity are now and then fewer than it.
        reachable = min(peak, float(point.report["offered"]))
        if point.goodput < GOODPUT_SHARE * reachable:
            found.append(
                f"{name} the goodput is {point.goodput:.1f}/s, "
                f"{point.goodput / reachable:.1%} of the {reachable:.1f}/s that it can be"
            )
        if point.rejection_s > REJECTION_S:
            found.append(f"{name} refusals take {point.rejection_s:.3f} s at the 99th percentile")
        if point.report["failed"]:
            found.append(f"{name} requests failed: {point.report['first_failure']}")
        if not point.report["valid"]:
            found.append(f"{name} requests were sent late: the run says nothing")
    return found + dispatched_expired(log)


def dispatched_expired(log: Path) -> list[str]:
    """The requests that were dispatched although their deadline was over or they had expired."""
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


def write_engine(directory: Path) -> None:
    """A model directory with the emulated engine, and a dictionary that knows it."""
    folder = directory / "models" / ENGINE
    folder.mkdir(parents=True)
    (folder / "engine.toml").write_text('backend = "emulated"\nfile = "model.toml"\n')
    (folder / "model.toml").write_text(
        f"[[configurations]]\nthreads = 1\nquery_s = {QUERY_S}\nsetup_s = 0.1\n"
    )
    entry = ProfileEntry(
        engine=EngineName(ENGINE),
        worker_class=WorkerClass("local"),
        configuration=Configuration(1),
        qps=1 / QUERY_S,
        model_load_s=0.1,
    )
    with DictionaryStore(directory / "dictionary.db") as store:
        store.put_all([entry])


def start(fleet: LocalFleet, directory: Path, log: Path, workers: int) -> None:
    """Start a gateway and agents for what `write_engine` wrote."""
    dictionary = str(directory / "dictionary.db")
    fleet.start_gateway(["--dictionary", dictionary, "--event-log", str(log)])
    for number in range(workers):
        name = f"worker-{number}"
        fleet.start_agent(name, models=directory / "models", options=["--threads", "1"])
    fleet.wait_for_workers(workers)


def load(address: str, *options: str) -> dict[str, Any]:
    """What ``synergai load`` reports."""
    command = [
        *(sys.executable, "-m", "synergai", "load", ENGINE, "--target", address),
        *("--deadline-ms", str(DEADLINE_MS), "--late-ms", "25", "--json", *options),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def measure(address: str, times: float, capacity: float, seconds: float) -> Point:
    """One load; once more if the requests were sent late."""
    options = ("--rate", str(times * capacity), "--duration", str(seconds))
    for _ in range(ATTEMPTS):
        point = Point(times, load(address, *options))
        if point.report["valid"]:
            break
    return point


def run(seconds: float, directory: Path, workers: int = 1) -> list[str]:
    """Do it; return what was found wrong."""
    write_engine(directory)
    log = directory / "events.jsonl"
    with LocalFleet(directory / "run") as fleet:
        start(fleet, directory, log, workers)
        capacity = workers / QUERY_S
        print(f"capacity: {capacity:g} requests/s, to be answered within {DEADLINE_MS:g} ms")
        print(HEADING, flush=True)
        points = []
        for times in TIMES:
            points.append(measure(fleet.address, times, capacity, seconds))
            print(points[-1].row(), flush=True)
    return faults(points, log)


def main() -> int:
    """Run it from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=10.0, help="for each load")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--directory", type=Path, help="keep logs here instead of a temporary one")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        directory = arguments.directory or Path(temporary)
        found = run(arguments.seconds, directory, arguments.workers)
    for line in found:
        print(line)
    print("nothing is wrong" if not found else f"{len(found)} faults")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
