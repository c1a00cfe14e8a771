"""``python -m examples.heterogeneous_fleet``: run the example."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from demo import report
from demo.engines import provide
from demo.local_fleet import LocalFleet
from demo.steps import console, run_steps, step
from examples.heterogeneous_fleet import rounds, workers
from profiler.dictionary.files import load_dictionary
from synergai import Client
from synergai.cli.output import format_joules, format_rate, format_seconds

if TYPE_CHECKING:
    from examples.heterogeneous_fleet.rounds import Round


def run(built: Path, directory: Path) -> list[Round]:
    """Profile and serve an engine in `built` with files in `directory`; return the rounds of jobs.

    Raises:
        SynergaiError: the machine lacks a prerequisite, or a step failed.
    """
    workers.check_cgroups()
    models = directory / "models"
    with step(f"1. Profiles of {len(workers.WORKERS)} workers in two power modes each"):
        provide([workers.ENGINE], built, models)
        dictionary = workers.profile(models, directory)
    with LocalFleet(directory / "fleet") as fleet:
        with step("2. A gateway and three agents"):
            workers.start(fleet, models, dictionary)
        with step("3. Jobs"):
            return asyncio.run(_serve(fleet.address, dictionary))


async def _serve(address: str, dictionary: Path) -> list[Round]:
    async with Client(address) as client:
        return [
            await rounds.run(client, jobs) for jobs in rounds.planned(load_dictionary(dictionary))
        ]


def _show_profiles(dictionary: Path) -> None:
    console.print()
    for entry in sorted(load_dictionary(dictionary), key=lambda entry: -entry.qps):
        console.print(
            f"  {entry.worker_class} in {entry.configuration.power_mode}: "
            f"{format_rate(entry.qps)} queries per second, {format_joules(entry.joules)} each, "
            f"loaded in {format_seconds(entry.t_pre_s)}"
        )
    console.print("[dim]The energy is derived from a declared power of each mode, not measured.[/]")


def _show(finished: list[Round]) -> None:
    for number, each in enumerate(finished, 1):
        console.print(f"\n[bold]Round {number}[/]")
        console.print(report.jobs_table(each.jobs, {"result": each.results}))
        for worker in each.workers:
            switched = (
                f"its last switch took {format_seconds(worker.switch_s)}"
                if worker.switch_s
                else "it has not been switched"
            )
            console.print(f"  {worker.id} is in {worker.power_mode}; {switched}")
    results = [result for each in finished for result in each.results]
    met = sum(not result.violated for result in results)
    console.print(f"\nDeadlines met: {met} of {len(results)}")


def main() -> None:
    """Run the example and print its results.

    Raises:
        SynergaiError: a step failed.
    """
    directory = Path("runs") / time.strftime("heterogeneous-fleet-%Y%m%d-%H%M%S")
    directory.mkdir(parents=True)
    finished = run(Path("models"), directory)
    _show_profiles(directory / "dictionary.db")
    _show(finished)
    console.print(f"Files: {directory}")


if __name__ == "__main__":
    sys.exit(run_steps(main))
