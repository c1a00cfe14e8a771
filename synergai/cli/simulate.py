"""``synergai simulate``: the gateway's schedulers on the thesis's experiments in virtual time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import typer

from synergai.cli.commands import require, settings_command
from synergai.cli.output import print_json, print_table
from synergai.simulator.simulator_settings import SimulatorSettings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from synergai.simulator.results import SimulationResult
    from synergai.simulator.workload import Profile


def simulate(settings: SimulatorSettings) -> None:
    """Compare scheduling policies on the thesis's experiments in virtual time.

    The decisions are made by the gateway's own scheduler. Every run is audited: queries are
    conserved, no worker runs two assignments at once, nothing runs before it arrives, and every
    setup is paid.
    """
    require("numpy")
    if settings.bounds:
        require("highspy")
    from synergai.simulator.sweep import load_profile

    results = _simulate_all(settings, load_profile(settings))
    if settings.as_json:
        print_json([result.record() for result in results])
    else:
        _print_tables(settings, results)


app: Final = typer.Typer(rich_markup_mode="rich")
app.command(
    epilog="Example: [bold]synergai simulate --policies synergai,malleable --seeds 0-9 "
    "--sessions warm[/bold]",
)(settings_command(SimulatorSettings, simulate))


def _simulate_all(settings: SimulatorSettings, profile: Profile) -> list[SimulationResult]:
    from rich.console import Console
    from rich.progress import track

    from synergai.simulator.sweep import run_count, sweep

    results = track(
        sweep(settings, profile),
        "simulating",
        total=run_count(settings),
        console=Console(stderr=True),
        transient=True,
    )
    return list(results)


def _print_tables(settings: SimulatorSettings, results: Sequence[SimulationResult]) -> None:
    from synergai.simulator.tables import METRICS, rows, title

    for metric in METRICS:
        columns = (title(metric, results), *settings.simulated, "sum")
        print_table(columns, rows(results, metric, settings.policies, settings.simulated))
    if any(result.loads for result in results):
        columns = ("preloads, per run", "number", "unused (s)", "unused (kJ)")
        print_table(columns, [_loads(results, policy) for policy in settings.policies])


def _loads(results: Sequence[SimulationResult], policy: str) -> list[str]:
    runs = [each for each in results if each.policy == policy]
    loads = sum(each.loads or 0 for each in runs) / len(runs)
    seconds = sum(each.useless_loads_s or 0.0 for each in runs) / len(runs)
    joules = sum(each.useless_joules or 0.0 for each in runs) / len(runs)
    return [policy, f"{loads:.1f}", f"{seconds:.0f}", f"{joules / 1000:.1f}"]
