"""``synergai simulate`` and ``synergai capacity``: the gateway's schedulers in virtual time."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

import typer

from profiler.simulator.simulation import Spread
from profiler.simulator.simulator_settings import (
    AccordionSettings,
    BurstSettings,
    CapacitySettings,
    InterferenceSettings,
    SimulatorSettings,
    parse_seeds,
)
from synergai.cli.commands import require, settings_command
from synergai.cli.output import print_json, print_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from profiler.simulator.capacity import CapacityPlanner, Fleet, FleetOption
    from profiler.simulator.simulation import SimulationResult
    from profiler.simulator.workload import Profile


Result = TypeVar("Result")


def simulate(settings: SimulatorSettings) -> None:
    """Compare scheduling policies on the thesis's experiments in virtual time.

    The decisions are made by the gateway's own scheduler.
    """
    require("numpy")
    from profiler.dictionary.files import load_dictionary
    from profiler.simulator.workload import Profile

    results = _simulate_all(settings, Profile(load_dictionary(settings.profile)))
    if settings.as_json:
        print_json(results)
    else:
        _print_tables(settings, results)


def accordion(settings: AccordionSettings) -> None:
    """Compare Accordion and its baselines with the malleable policy.

    Queries with batches arrive at eight execution places, in six streams, each under strict,
    moderate and relaxed SLOs. Accordion and its baselines run pipelines over places; the malleable
    policy spreads a batch over places that hold whole engines.
    """
    require("numpy")
    from profiler.simulator.pipelines.comparison import compare, run_count, tables

    seeds = settings.drawn
    _show(compare(seeds), run_count(seeds), tables)


def burst(settings: BurstSettings) -> None:
    """Raise a burst of one engine among eight until 1 % of all queries are late.

    Four workers have just the memory for the stages of all engines, but hold only some of them
    whole. Whole engines stay where they are, or are loaded on demand.
    """
    require("numpy")
    from profiler.simulator.pipelines.burst import compare, run_count, tables

    seeds = settings.drawn
    _show(compare(seeds), run_count(seeds), tables)


def interference(settings: InterferenceSettings) -> None:
    """Slow workers of a pipeline down, and compare who balances it.

    ResNet50 runs over four workers, which other work slows down now and then. ODIN and least-loaded
    scheduling search by trials, our planning plans by what it has seen; a clairvoyant knows what
    will come.
    """
    require("numpy")
    from profiler.simulator.pipelines.interference import compare, run_count, tables

    seeds = settings.drawn
    _show(compare(seeds), run_count(seeds), tables)


def _show(
    results: Iterator[Result],
    total: int,
    tables: Callable[[Sequence[Result]], Iterable[tuple[Sequence[str], list[list[str]]]]],
) -> None:
    for columns, rows in tables(_progress(results, total)):
        print_table(columns, rows)


app: Final = typer.Typer(rich_markup_mode="rich")
app.callback(
    invoke_without_command=True,
    epilog="Example: [bold]synergai simulate --policies synergai,malleable --seeds 0-9 "
    "--sessions warm[/bold]",
)(settings_command(SimulatorSettings, simulate))
_pipelines: Final = typer.Typer(
    help="Compare schedulers of pipelines in virtual time.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)
_pipelines.command(
    epilog="Example: [bold]synergai simulate pipelines accordion --seeds 0-4[/bold]",
)(settings_command(AccordionSettings, accordion))
_pipelines.command(
    epilog="Example: [bold]synergai simulate pipelines burst --seeds 0-4[/bold]",
)(settings_command(BurstSettings, burst))
_pipelines.command(
    epilog="Example: [bold]synergai simulate pipelines interference --seeds 0-11[/bold]",
)(settings_command(InterferenceSettings, interference))
app.add_typer(_pipelines, name="pipelines")


def _simulate_all(settings: SimulatorSettings, profile: Profile) -> list[SimulationResult]:
    from profiler.simulator.sweep import run_count, sweep

    return _progress(sweep(settings, profile), run_count(settings))


def _progress(results: Iterator[Result], total: int) -> list[Result]:
    """Return all results, with a progress bar until the last."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    return list(track(results, "simulating", total=total, console=console, transient=True))


def _print_tables(settings: SimulatorSettings, results: Sequence[SimulationResult]) -> None:
    for metric in METRICS:
        columns = (title(metric, results), *settings.simulated, "sum")
        print_table(columns, rows(results, metric, settings.policies, settings.simulated))


@dataclass(frozen=True, slots=True)
class Metric:
    """A figure by which policies are compared.

    Attributes:
        title: name and unit.
        of: reads the figure from a result.
    """

    title: str
    of: Callable[[SimulationResult], float]
    digits: int


METRICS: Final = (
    Metric("violations", lambda result: result.violations, 2),
    Metric("mean wait (s)", lambda result: result.mean_wait_s, 1),
    Metric("mean end-to-end (s)", lambda result: result.e2e_mean_s, 1),
    Metric("p99 end-to-end (s)", lambda result: result.e2e_p99_s, 1),
    Metric("mean excess (s)", lambda result: result.mean_excess_s, 1),
    Metric("p99 excess (s)", lambda result: result.excess_p99_s, 1),
)


def title(metric: Metric, results: Sequence[SimulationResult]) -> str:
    """Return the title of a metric, for violations with the number of jobs of a run."""
    if metric is not METRICS[0]:
        return metric.title
    return f"{metric.title} (of {results[0].jobs:,})"


def select(
    results: Sequence[SimulationResult], policy: str, experiment: str
) -> list[SimulationResult]:
    """Return the results of a policy in an experiment, by seed."""
    return [r for r in results if r.policy == policy and r.experiment == experiment]


def rows(
    results: Sequence[SimulationResult],
    metric: Metric,
    policies: Sequence[str],
    experiments: Sequence[str],
) -> list[list[str]]:
    """Return mean ± standard deviation over seeds, and the sum of the means over experiments."""
    table = []
    for policy in policies:
        spreads = [
            Spread.of(metric.of(result) for result in select(results, policy, experiment))
            for experiment in experiments
        ]
        cells = [f"{s.mean:.{metric.digits}f} ± {s.deviation:.{metric.digits}f}" for s in spreads]
        total = sum(spread.mean for spread in spreads)
        table.append([policy, *cells, f"{total:.{metric.digits}f}"])
    return table


_JOBS_PER_LOAD: Final = 24
"""Jobs of an experiment. Fewer would be a short burst, which needs fewer workers than a demand that
lasts."""
_LEAST_JOBS: Final = 48


def capacity(settings: CapacitySettings) -> None:
    """Find the workers that keep violations below a limit, by simulation.

    Prints the least number of workers of each class alone, and of all classes in equal numbers.
    """
    require("numpy")
    from profiler.dictionary.files import load_dictionary
    from profiler.simulator.workload import Profile

    profile = Profile(load_dictionary(settings.profile))
    options = _find_fleets(_make_planner(settings, profile))
    _print_fleets(settings, profile, options)
    if not options:
        raise typer.Exit(1)


def _find_fleets(planner: CapacityPlanner) -> list[FleetOption]:
    from rich.console import Console

    fleets = itertools.count(1)
    with Console(stderr=True).status("simulating fleets") as status:

        def show(fleet: Fleet) -> None:
            status.update(f"simulating fleet {next(fleets)}: {_fleet_text(fleet)}")

        planner.on_fleet = show
        return planner.plan()


capacity_app: Final = typer.Typer(rich_markup_mode="rich")
capacity_app.command(
    epilog="Example: [bold]synergai capacity --load 16 --violations 5[/bold]",
)(settings_command(CapacitySettings, capacity))


def _make_planner(settings: CapacitySettings, profile: Profile) -> CapacityPlanner:
    from profiler.simulator.capacity import CapacityPlanner
    from profiler.simulator.simulation import scheduling_settings
    from profiler.simulator.sweep import PREDEFINED, PROFILE_AGNOSTIC, arrivals_of
    from profiler.simulator.workload import EXPERIMENTS, draw

    usual = max(_LEAST_JOBS, math.ceil(_JOBS_PER_LOAD * settings.load_factor))
    given, count = arrivals_of(settings.arrivals, settings.jobs, usual)
    options = {name: text for name, text in PREDEFINED.items() if name in profile.classes}
    agnostic = settings.policy in PROFILE_AGNOSTIC
    return CapacityPlanner(
        workloads=[
            draw(
                profile,
                EXPERIMENTS[settings.experiment],
                seed,
                sessions=settings.sessions,
                estimate_error=settings.estimate_error,
                count=count,
                rate=settings.load_factor,
                given=given,
            )
            for seed in parse_seeds(settings.seeds)
        ],
        settings=scheduling_settings(settings.policy, options if agnostic else None),
        violations=settings.violations / 100,
    )


def _print_fleets(settings: CapacitySettings, profile: Profile, options: list[FleetOption]) -> None:
    from profiler.simulator.capacity import MAX_WORKERS

    if options:
        print_table(("fleet", "workers", "violations", "busy"), map(_fleet_row, options))
    alone = {next(iter(each.fleet)) for each in options if len(each.fleet) == 1}
    for name in profile.classes:
        if name not in alone:
            typer.echo(
                f"{name} alone: up to {MAX_WORKERS} workers do not keep violations within "
                f"{settings.violations:g} %"
            )


def _fleet_text(fleet: Fleet) -> str:
    return ",".join(f"{name}={count}" for name, count in fleet.items())


def _fleet_row(option: FleetOption) -> list[str]:
    return [
        _fleet_text(option.fleet),
        f"{sum(option.fleet.values()):,}",
        f"{option.violations * 100:.1f} ± {option.error * 100:.1f} %",
        f"{option.busy * 100:.0f} %",
    ]
