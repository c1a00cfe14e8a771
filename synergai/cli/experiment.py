"""``synergai experiment``: one of the thesis's experiments, live and simulated."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer

from synergai.cli.commands import require, settings_command
from synergai.cli.output import print_json, print_table
from synergai.errors import InternalError, InvalidInput
from synergai.simulator.experiment_settings import ExperimentSettings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from synergai.simulator.recording import Recording
    from synergai.simulator.workload import Workload

_METRICS: Final = (
    ("violations", "violations", 0),
    ("mean_wait_s", "mean wait (s)", 2),
    ("mean_excess_s", "mean excess (s)", 2),
    ("e2e_mean_s", "mean end-to-end (s)", 2),
    ("e2e_p99_s", "p99 end-to-end (s)", 2),
    ("decisions", "decisions", 0),
    ("decision_p99_us", "p99 decision (µs)", 0),
)


def experiment(settings: ExperimentSettings) -> None:
    """Run one of the thesis's experiments and compare a live run with the simulation.

    The jobs run through a real gateway and agent processes whose emulated engines take the
    profile's times divided by --time-scale; the gateway's event log is then replayed. All figures
    are in the profile's time.
    """
    require("numpy")
    from synergai.profiles.files import load_dictionary
    from synergai.simulator.audit import audit
    from synergai.simulator.emulation import number_configurations, predefined_configurations
    from synergai.simulator.results import summarize
    from synergai.simulator.simulation import scheduling_settings, simulate
    from synergai.simulator.sweep import PROFILE_AGNOSTIC
    from synergai.simulator.workload import EXPERIMENTS, Profile, draw

    profile = Profile(load_dictionary(settings.profile))
    options = {}
    if settings.policy in PROFILE_AGNOSTIC:
        options = predefined_configurations(profile, settings.predefined)
    workload = draw(
        number_configurations(profile),
        EXPERIMENTS[settings.experiment],
        settings.seed,
        sessions=settings.sessions,
        estimate_error=settings.estimate_error,
    )
    simulated = simulate(workload, scheduling_settings(settings.policy, options))
    audit(simulated)
    recording = _run_live(settings, workload, options)
    results = {"simulated": summarize(simulated), "live": summarize(recording.run)}
    records = {name: result.record() for name, result in results.items()}
    if settings.as_json:
        print_json(records)
    else:
        _print_records(records)
    if settings.plot is not None:
        require("matplotlib")
        from synergai.simulator.timeline import plot_timeline

        plot_timeline(recording.run, settings.plot)
    _check_replay(recording)
    if not settings.as_json:
        typer.echo(f"replay: all {recording.events} events reproduce the recorded commands")


app: Final = typer.Typer(rich_markup_mode="rich")
app.command(
    epilog="Example: [bold]synergai experiment --policy malleable --experiment DH-FH "
    "--seed 3 --time-scale 60[/bold]"
)(settings_command(ExperimentSettings, experiment))


def _run_live(
    settings: ExperimentSettings, workload: Workload, options: dict[str, str]
) -> Recording:
    from rich.console import Console

    from synergai.simulator.live import run_live

    if settings.directory is not None and settings.directory.exists():
        raise InvalidInput(f"--directory {settings.directory} already exists; choose a new one")
    duration_s = (workload.jobs[-1].deadline - workload.jobs[0].arrival) / settings.time_scale
    status = f"running live: about {duration_s:.0f} s after a startup of half a minute"
    directory = settings.directory
    if directory is None:
        directory = Path(tempfile.mkdtemp(prefix="synergai-experiment-"))
    with Console(stderr=True).status(status):
        recording = run_live(workload, settings.policy, settings.time_scale, directory, options)
    if settings.directory is None:  # kept after a failure, for its logs
        shutil.rmtree(directory)
    return recording


def _print_records(records: Mapping[str, Mapping[str, Any]]) -> None:
    rows = [
        [title, *(f"{record[name]:,.{digits}f}" for record in records.values())]
        for name, title, digits in _METRICS
    ]
    print_table(("", *records), rows)


def _check_replay(recording: Recording) -> None:
    """Check that the replay reproduced the recorded commands."""
    if recording.mismatches:
        raise InternalError(
            f"replaying the event log, {recording.mismatches} of {recording.events} events gave "
            "commands other than the recorded ones"
        )
