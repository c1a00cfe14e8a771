"""``synergai report``: the offline phase's results as pages that people read."""

from __future__ import annotations

from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import typer

from profiler.simulator.simulator_settings import (
    DEFAULT_POLICIES,
    RECONSTRUCTED_PROFILE,
    PolicyNames,
    SimulatorSettings,
    checked_seeds,
)
from synergai.cli.commands import require, settings_command
from synergai.errors import InvalidInput
from synergai.runtime.paths import default_dictionary
from synergai.runtime.setting_types import Checked, Positional
from synergai.runtime.settings import Settings

if TYPE_CHECKING:
    from profiler.reports.evaluation.report import StudyOrigin
    from profiler.reports.evaluation.study import Study
    from profiler.reports.page import Report


QUERIES: Final = 3900
"""Queries per measurement of the thesis's chapter 5. Not printed; the only number that agrees with
the QPS and times printed for Figure 5.1."""


class CharacterisationSettings(Settings, frozen=True, kw_only=True):
    """Settings of ``synergai report characterisation``."""

    env_prefix = "SYNERGAI_REPORT_"

    dictionary: Annotated[Path, "The dictionary: a .db or .csv file."] = msgspec.field(
        default_factory=default_dictionary
    )
    reconstructed: Annotated[
        bool, "Report on the profile that was reconstructed from the thesis instead."
    ] = False
    output: Annotated[Path, "The page to write, one HTML file that needs nothing else."] = Path(
        "characterisation.html"
    )


class EvaluationSettings(Settings, frozen=True, kw_only=True):
    """Settings of ``synergai report evaluation``."""

    env_prefix = "SYNERGAI_REPORT_"

    dictionary: Annotated[
        Path,
        "The dictionary: a .db or .csv file. The default is reconstructed from "
        "the figures printed in the thesis.",
    ] = RECONSTRUCTED_PROFILE
    policies: Annotated[PolicyNames, "Scheduling policies to compare."] = DEFAULT_POLICIES
    seeds: Annotated[
        str, Checked(checked_seeds), "One run per seed; all policies get the same jobs."
    ] = "0-29"
    output: Annotated[Path, "The page to write, one HTML file that needs nothing else."] = Path(
        "evaluation.html"
    )

    def sweep(self) -> SimulatorSettings:
        return SimulatorSettings(
            profile=self.dictionary,
            policies=self.policies,
            seeds=self.seeds,
        )


class RunSettings(Settings, frozen=True, kw_only=True):
    """Settings of ``synergai report run``."""

    env_prefix = "SYNERGAI_REPORT_"

    log: Annotated[Path, Positional(), "Event log of a gateway (--event-log)."]
    output: Annotated[Path, "The page to write, one HTML file that needs nothing else."] = Path(
        "run.html"
    )


def characterisation(settings: CharacterisationSettings) -> None:
    """Report what determines the speed of the engines of a dictionary.

    Answers five questions about workers, threads and power modes, with figures, and shows the
    front of throughput against efficiency where power was measured.
    """
    _require_drawing()
    from profiler.dictionary.files import load_dictionary
    from profiler.reports.characterisation.fleet_profile import FleetProfile
    from profiler.reports.characterisation.report import characterise
    from profiler.simulator.simulator_settings import RECONSTRUCTED_PROFILE

    path = RECONSTRUCTED_PROFILE if settings.reconstructed else settings.dictionary
    space = FleetProfile(load_dictionary(path), QUERIES)
    source = "reconstructed from the thesis" if settings.reconstructed else str(path)
    report = characterise(space, source=source, made=_colophon("characterisation"))
    _write(report, settings.output)


def evaluation(settings: EvaluationSettings) -> None:
    """Report how scheduling policies perform, simulated on the thesis's four experiments.

    Has the figures of its chapter 7, with distributions and break-downs.
    """
    _require_drawing()
    from profiler.reports.evaluation.report import evaluate

    _write(evaluate(*_simulated(settings)), settings.output)


def _simulated(settings: EvaluationSettings) -> tuple[Study, StudyOrigin]:
    from rich.console import Console
    from rich.progress import track

    from profiler.dictionary.files import load_dictionary
    from profiler.reports.characterisation.fleet_profile import RECONSTRUCTED
    from profiler.reports.evaluation.report import StudyOrigin
    from profiler.reports.evaluation.study import Study, outcome_of_run
    from profiler.simulator.sweep import run_count, simulate_all
    from profiler.simulator.workload import Profile

    sweep = settings.sweep()
    entries = list(load_dictionary(sweep.profile))
    profile = Profile(entries)
    runs = track(
        simulate_all(sweep, profile),
        "simulating",
        total=run_count(sweep),
        console=Console(stderr=True),
        transient=True,
    )
    study = Study(map(outcome_of_run, runs))
    is_reconstructed = all(entry.label == RECONSTRUCTED for entry in entries)
    source = "reconstructed from the thesis" if is_reconstructed else str(sweep.profile)
    facts = {
        "Profile": source,
        "Seeds": settings.seeds,
        "Sessions": sweep.sessions,
        "Estimates off by": f"{sweep.estimate_error * 100:.0f} %",
    }
    origin = StudyOrigin(
        facts=facts,
        profile=profile,
        is_reconstructed=is_reconstructed,
        made=_colophon("evaluation"),
    )
    return study, origin


def run(settings: RunSettings) -> None:
    """Write the fleet page of a recorded run: its timeline, queue, errors and events, to replay."""
    from profiler.reports.recorded_page import render_recording
    from synergai.runtime.files import write_atomic

    page = render_recording(settings.log)
    try:
        write_atomic(settings.output, page)
    except OSError as error:
        raise InvalidInput(f"cannot write {settings.output}: {error.strerror}") from error
    typer.echo(settings.output)


app: Final = typer.Typer(
    help="Report on profiles and on scheduling policies, as pages with figures and tables.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)
app.command(epilog="Example: [bold]synergai report characterisation --output fleet.html[/bold]")(
    settings_command(CharacterisationSettings, characterisation)
)
app.command(
    epilog="Example: [bold]synergai report evaluation --policies synergai,malleable --seeds 0-9"
    "[/bold]"
)(settings_command(EvaluationSettings, evaluation))
app.command(epilog="Example: [bold]synergai report run events.jsonl --output run.html[/bold]")(
    settings_command(RunSettings, run)
)


@app.callback()
def _report() -> None:
    """Report on profiles and on scheduling policies, as pages with figures and tables."""


def _require_drawing() -> None:
    for library in ("numpy", "matplotlib", "jinja2"):
        require(library)


def _colophon(command: str) -> str:
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return f"Made by synergai {version('synergai')}, synergai report {command}, on {now}."


def _write(report: Report, path: Path) -> None:
    from profiler.reports.page import write_report

    write_report(report, path)
    for question, answer in report.findings.items():
        typer.echo(f"{question}\n  {answer}")
    typer.echo(path)
