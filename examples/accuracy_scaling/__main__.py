"""``python -m examples.accuracy_scaling``: run the example."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from demo.local_fleet import LocalFleet
from demo.steps import console, run_steps, step
from examples.accuracy_scaling import fleet, loads
from examples.accuracy_scaling.plot import plot_run
from examples.training import families
from profiler.zoo.recipes import is_built
from synergai.client.client import Client

if TYPE_CHECKING:
    from collections.abc import Sequence

    from examples.accuracy_scaling.loads import Run
    from synergai.profiles.dictionary import ProfileEntry


def run(models: Path, directory: Path) -> None:
    """Build, profile, serve and load an engine with variants, with files in `directory`.

    Raises:
        SynergaiError: a step failed.
    """
    engine = fleet.LARGER if is_built(fleet.LARGER, models) else fleet.ENGINE
    if not is_built(engine, models):
        with step("1. Train, prune and quantise a network"):
            families.build(fleet.FAMILY, models)
    with step(f"2. Measure the variants of {engine}"):
        measured = fleet.profile(models, engine, directory)
    entries = fleet.emulate(models, engine, measured, directory)
    _show_variants(entries)
    arrivals = loads.draw(entries)
    rate = len(arrivals) / loads.SECONDS
    with LocalFleet(directory / "fleet") as local:
        with step(f"3. A gateway and {fleet.WORKERS} emulated workers"):
            fleet.start(local, directory)
        title = f"4. {rate:.0f} requests/s within {loads.DEADLINE_S * 1e3:.0f} ms, three times"
        with step(f"{title} for {loads.SECONDS} s"):
            runs = asyncio.run(_serve(local.address, directory / "models", entries, arrivals))
    _show_runs(runs, loads.bound(entries, arrivals))
    plot = directory / "load.png"
    plot_run(runs[0].log, "accuracy as load allows", plot)
    console.print(f"Rate, variants and latency over time: {plot}")


async def _serve(
    address: str, models: Path, entries: Sequence[ProfileEntry], arrivals: Sequence[float]
) -> list[Run]:
    best = fleet.most_accurate(entries).configuration.variant
    fastest = max(entries, key=lambda entry: entry.qps).configuration.variant
    versions = {
        "the gateway's choice": "",
        f"always {best}": f"1.{best}",
        f"always {fastest}": f"1.{fastest}",
    }
    async with Client(address, attempts=1) as client:
        return [
            await loads.run(client, models, entries[0].engine, name, version, arrivals)
            for name, version in versions.items()
        ]


def _show_variants(entries: Sequence[ProfileEntry]) -> None:
    table = Table("variant", "emulated time", "accuracy", box=None, padding=(0, 2))
    for entry in entries:
        accuracy = f"{entry.accuracy:.2%} ± {entry.accuracy_error:.2%}"
        table.add_row(entry.configuration.variant, f"{1e3 / entry.qps:.1f} ms", accuracy)
    console.print(table)


def _show_runs(runs: Sequence[Run], bound: float) -> None:
    columns = ("variants", "effective accuracy", "right answers", "violations", "shares")
    table = Table(*columns, box=None, padding=(0, 2))
    for each in runs:
        shares = ", ".join(f"{name} {share:.0%}" for name, share in each.shares.items() if share)
        table.add_row(
            each.name,
            f"{each.effective_accuracy:.2%}",
            f"{each.right:.2%}",
            f"{each.violations:.2%}",
            shares,
        )
    table.add_row("bound, knowing all arrivals", f"{bound:.2%}", "", "", "")
    console.print(table)
    console.print(
        "Effective accuracy: by the profile, 0 for requests without an answer in time. "
        "Right answers: by the labels."
    )


def main() -> None:
    """Run the example and print its results.

    Raises:
        SynergaiError: a step failed.
    """
    directory = Path("runs") / time.strftime("accuracy-scaling-%Y%m%d-%H%M%S")
    directory.mkdir(parents=True)
    run(Path("models"), directory)
    console.print(f"Files: {directory}")


if __name__ == "__main__":
    sys.exit(run_steps(main))
