"""``synergai capacity``: the workers that a demand needs, by class."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any, Final

import typer

from profiler.simulator.simulator_settings import WATTS, CapacitySettings, parse_seeds
from synergai.cli.commands import require, settings_command
from synergai.cli.output import print_json, print_table

if TYPE_CHECKING:
    from profiler.simulator.capacity import CapacityPlanner, Fleet, FleetOption
    from profiler.simulator.workload import Profile, Workload
    from synergai.domain import WorkerClass

_JOBS_PER_LOAD: Final = 24
"""Jobs of an experiment. Fewer would be a short burst, which needs fewer workers than a demand that
lasts."""
_LEAST_JOBS: Final = 48


def capacity(settings: CapacitySettings) -> None:
    """Find the workers that keep violations below a limit, by simulation.

    Prints the least number of workers of each class alone, and the best mix of classes: the
    cheapest one with --cost, otherwise the one with the fewest workers.
    """
    require("numpy")
    from profiler.dictionary.files import load_dictionary
    from profiler.simulator.workload import Profile

    profile = Profile(load_dictionary(settings.profile))
    options = _plan(_make_planner(settings, profile))
    if settings.as_json:
        print_json([_record(each) for each in options])
    else:
        _print(settings, profile, options)
    if not options:
        raise typer.Exit(1)


def _plan(planner: CapacityPlanner) -> list[FleetOption]:
    from rich.console import Console

    from profiler.simulator.capacity import plan

    fleets = itertools.count(1)
    with Console(stderr=True).status("simulating fleets") as status:

        def show(fleet: Fleet) -> None:
            status.update(f"simulating fleet {next(fleets)}: {_name(fleet)}")

        planner.on_fleet = show
        return plan(planner)


app: Final = typer.Typer(rich_markup_mode="rich")
app.command(
    epilog="Example: [bold]synergai capacity --load 16 --violations 5 "
    "--cost x86=0.8,agx=0.15,nx=0.08[/bold]",
)(settings_command(CapacitySettings, capacity))


def _make_planner(settings: CapacitySettings, profile: Profile) -> CapacityPlanner:
    from profiler.simulator.capacity import CapacityPlanner
    from profiler.simulator.simulation import scheduling_settings
    from profiler.simulator.sweep import PREDEFINED, PROFILE_AGNOSTIC, arrivals_of, by_class
    from profiler.simulator.workload import EXPERIMENTS, draw
    from synergai.errors import InvalidInput

    costs = by_class(settings.cost, profile)
    if costs and (missing := [name for name in profile.classes if name not in costs]):
        raise InvalidInput(
            f"--cost lacks {', '.join(missing)}: it has to name each worker class of the profile"
        )
    usual = max(_LEAST_JOBS, math.ceil(_JOBS_PER_LOAD * settings.load_factor))
    given, count = arrivals_of(settings.arrivals, settings.jobs, usual)
    options = {name: text for name, text in PREDEFINED.items() if name in profile.classes}
    agnostic = settings.policy in PROFILE_AGNOSTIC
    seeds = parse_seeds(settings.seeds)

    def demand(seed: int) -> Workload:
        return draw(
            profile,
            EXPERIMENTS[settings.experiment],
            seed,
            sessions=settings.sessions,
            estimate_error=settings.estimate_error,
            count=count,
            rate=settings.load_factor,
            given=given,
        )

    return CapacityPlanner(
        workloads=[demand(seed) for seed in seeds],
        fresh=[demand(max(seeds) + number) for number in range(1, len(seeds) + 1)],
        settings=scheduling_settings(settings.policy, options if agnostic else None),
        violations=settings.violations / 100,
        max_workers=settings.max_workers,
        costs=costs,
        watts=_watts(profile),
    )


def _watts(profile: Profile) -> dict[WorkerClass, float]:
    """Return the nominal power of the thesis's machines that the profile has."""
    from profiler.simulator.sweep import by_class

    return by_class({name: WATTS[name] for name in profile.classes if name in WATTS}, profile)


def _print(settings: CapacitySettings, profile: Profile, options: list[FleetOption]) -> None:
    if not options:
        typer.echo(
            f"no fleet of up to {settings.max_workers:,} workers of each class keeps violations "
            f"within {settings.violations:g} %; --max-workers allows more"
        )
        return
    columns = ("fleet", "workers", "violations", "sure", "busy", "J/query", "cost/h")
    print_table(columns, [_row(option) for option in options])
    typer.echo(
        "the first fleet is the best found; the others are of one class; violations on fresh seeds "
        "with the standard error, and how sure it is that they stay within the limit"
    )
    alone = {next(iter(each.fleet)) for each in options if len(each.fleet) == 1}
    for name in profile.classes:
        if name not in alone:
            typer.echo(
                f"{name} alone: up to {settings.max_workers:,} workers do not keep violations "
                f"within {settings.violations:g} %"
            )


def _name(fleet: Fleet) -> str:
    return ",".join(f"{name}={count}" for name, count in fleet.items())


def _row(option: FleetOption) -> list[str]:
    return [
        _name(option.fleet),
        f"{sum(option.fleet.values()):,}",
        f"{option.violations * 100:.1f} ± {option.error * 100:.1f} %",
        f"{math.floor(option.sure * 1000) / 10:.1f} %",
        f"{option.busy * 100:.0f} %",
        "not measured" if option.joules is None else f"{option.joules:.3g}",
        "" if option.cost is None else f"{option.cost:,.2f}",
    ]


def _record(option: FleetOption) -> dict[str, Any]:
    return {
        "fleet": option.fleet,
        "violations": option.violations,
        "error": option.error,
        "sure": option.sure,
        "busy": option.busy,
        "joules_per_query": option.joules,
        "cost_per_hour": option.cost,
    }
