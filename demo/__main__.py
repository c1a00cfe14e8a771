"""``make demo``: build, profile, serve and measure real engines on this machine."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from demo import fleet as demo_fleet
from demo import report, traffic
from demo.engines import provide
from demo.local_fleet import LocalFleet
from demo.plan import plan
from demo.steps import console, run_steps, step
from profiler.dictionary.files import load_dictionary
from synergai import Client
from synergai.domain import EngineName
from synergai.errors import SynergaiError
from synergai.models.directory import ModelDirectory

if TYPE_CHECKING:
    from synergai.domain import WorkerClass

PHOTOGRAPHS_ENGINE: Final = EngineName("onnx_mobilenet_op11")
DIGITS_ENGINE: Final = EngineName("onnx_digits")
ENGINES: Final = [PHOTOGRAPHS_ENGINE, DIGITS_ENGINE]
REQUEST_DEADLINE_S: Final = 0.25
DEFAULT_POLICY: Final = "malleable"
THESIS_POLICY: Final = "synergai"


def profile(
    models: Path,
    dictionary: Path,
    run: Path,
    worker_class: WorkerClass,
    throttle: demo_fleet.Throttle = demo_fleet.NONE,
) -> None:
    """Profile the engines on this machine as `worker_class`."""
    command = [
        *throttle.prefix,
        *(sys.executable, "-m", "synergai", "profile", "--models", str(models)),
        *("--engines", ",".join(ENGINES), *demo_fleet.engine_options(worker_class)),
        *("--worker-class", worker_class, "--queries", "64", "--min-duration", "3"),
        *throttle.power("--modes"),
        *("--dictionary", str(dictionary), "--output", str(run / "profile" / worker_class)),
    ]
    if subprocess.run(command, check=False).returncode != 0:
        raise SynergaiError(f"profiling as {worker_class} failed; see its messages above")


async def serve(fleet: LocalFleet, models: Path, dictionary: Path, run: Path) -> None:
    """Run the steps that need the fleet and print the report."""
    definition = ModelDirectory(models).get(DIGITS_ENGINE)
    profiles = load_dictionary(dictionary)
    jobs = plan(profiles, ENGINES, demo_fleet.FAST)
    async with Client(fleet.address) as client:
        with step("4. Photographs, the digits test set and a dozen jobs"):
            requests = await traffic.send_photographs(
                client, PHOTOGRAPHS_ENGINE, 40, REQUEST_DEADLINE_S
            )
            correct, total = await traffic.digits_accuracy(client, definition)
            results = await traffic.run_jobs(client, jobs)
    with step(f"5. The same jobs under the thesis's policy, {THESIS_POLICY}"):
        demo_fleet.restart_gateway(fleet, dictionary, THESIS_POLICY)
        async with Client(fleet.address) as client:
            thesis_results = await traffic.run_jobs(client, jobs)
    with step("6. MLPerf LoadGen Single Stream through the gateway"):
        loadgen = await asyncio.to_thread(
            traffic.run_loadgen,
            PHOTOGRAPHS_ENGINE,
            fleet.address,
            models,
            run / "loadgen",
            REQUEST_DEADLINE_S * 1e3,
        )
    console.print()
    console.print(report.jobs_table(jobs, {DEFAULT_POLICY: results, THESIS_POLICY: thesis_results}))
    console.print(
        "[dim]Placement, estimated and actual time: under the default policy; from the first "
        "dispatch to completion, as estimated then. QoS: from acceptance.[/]"
    )
    good, per_second = report.goodput(results)
    for policy, statuses in ((DEFAULT_POLICY, results), (THESIS_POLICY, thesis_results)):
        violated = sum(status.violated for status in statuses)
        error = report.estimate_error(statuses)
        console.print(
            f"{policy}: {violated} of {len(statuses)} jobs violated, "
            f"estimates off by {error:.1%} at the median"
        )
    console.print(
        f"Goodput, {DEFAULT_POLICY}: {good:,} queries of jobs that met their QoS, "
        f"{per_second:,.0f} per second"
    )
    for each in requests:
        console.print(f"Photographs, {report.requests_line(each)}")
    console.print(f"Digits: {correct} of {total} correct, accuracy {correct / total:.2%}")
    figures = loadgen["loadgen"]
    console.print(
        f"LoadGen: Result is : {figures['result_validity']}, "
        f"{figures['result_qps_without_loadgen_overhead']:.1f} queries per second, "
        f"{loadgen['violations']} of {loadgen['queries']} beyond {loadgen['qos_ms']:g} ms"
    )
    if disturbance := report.disturbance(profiles):
        console.print(f"[yellow]{disturbance}[/]")
    console.print(f"Files: {run}")


def main() -> None:
    """Run the demo.

    Raises:
        SynergaiError: a step failed.
    """
    run = Path("runs") / time.strftime("demo-%Y%m%d-%H%M%S")
    run.mkdir(parents=True)
    models = run / "models"  # the user's own engines would be inspected, too
    dictionary = run / "dictionary.db"
    with step("1. Engines"):
        provide(ENGINES, Path("models"), models)
    throttle = demo_fleet.slowdown()
    with step(f"2. Profiles; the slow worker is throttled by {throttle.description}"):
        profile(models, dictionary, run, demo_fleet.FAST)
        profile(models, dictionary, run, demo_fleet.SLOW, throttle)
    with LocalFleet(run / "fleet") as fleet:
        with step("3. A gateway and two agents"):
            demo_fleet.start(fleet, models, dictionary, throttle)
        asyncio.run(serve(fleet, models, dictionary, run))


if __name__ == "__main__":
    sys.exit(run_steps(main))
