"""``synergai report``: the offline phase's results as pages that people read."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from typing import TYPE_CHECKING, Final

import typer

from profiler.reports.report_settings import (
    CharacterisationSettings,
    EvaluationSettings,
    RunSettings,
)
from synergai.cli.commands import require, settings_command
from synergai.cli.output import print_json
from synergai.errors import InvalidInput

if TYPE_CHECKING:
    from pathlib import Path

    from profiler.reports.document import Report
    from profiler.reports.evaluation.report import StudyOrigin
    from profiler.reports.evaluation.study import Study


def characterisation(settings: CharacterisationSettings) -> None:
    """Report what determines the speed of the engines of a dictionary.

    Answers five questions about workers, threads and power modes, with figures, and shows the
    front of throughput against efficiency where power was measured.
    """
    _require_drawing()
    from profiler.reports.characterisation.fleet_profile import FleetProfile
    from profiler.reports.characterisation.report import characterise
    from profiler.simulator.simulator_settings import RECONSTRUCTED_PROFILE
    from synergai.profiles.files import load_dictionary

    path = RECONSTRUCTED_PROFILE if settings.reconstructed else settings.dictionary
    space = FleetProfile(load_dictionary(path), settings.queries)
    source = "reconstructed from the thesis" if settings.reconstructed else str(path)
    report = characterise(space, source=source, made=_colophon("characterisation"))
    _write(report, settings.output, as_json=settings.as_json)


def evaluation(settings: EvaluationSettings) -> None:
    """Report how scheduling policies perform, simulated or in a gateway's event logs.

    Has the figures of the thesis's chapter 7, with distributions and break-downs. Simulated by
    default, on all four experiments.
    """
    _require_drawing()
    if settings.bounds:
        require("highspy")
    from profiler.reports.evaluation.report import evaluate

    made = _colophon("evaluation")
    study, origin = _recorded(settings, made) if settings.recordings else _simulated(settings, made)
    report = evaluate(study, origin)
    if settings.pipelines:
        from profiler.reports.evaluation.pipelines import simulate_pipelines

        report = replace(report, sections=(*report.sections, simulate_pipelines()))
    _write(report, settings.output, as_json=settings.as_json)


def _recorded(settings: EvaluationSettings, made: str) -> tuple[Study, StudyOrigin]:
    from profiler.reports.evaluation.outcomes import outcomes_of_logs
    from profiler.reports.evaluation.report import StudyOrigin
    from profiler.reports.evaluation.study import Study

    facts = (("Event logs", ", ".join(map(str, settings.recordings))),)
    study = Study(outcomes_of_logs(settings.recordings))
    return study, StudyOrigin(facts=facts, profile=None, is_reconstructed=False, made=made)


def _simulated(settings: EvaluationSettings, made: str) -> tuple[Study, StudyOrigin]:
    from rich.console import Console
    from rich.progress import track

    from profiler.reports.characterisation.fleet_profile import RECONSTRUCTED
    from profiler.reports.evaluation.outcomes import outcome_of_run
    from profiler.reports.evaluation.report import StudyOrigin
    from profiler.reports.evaluation.study import Study
    from profiler.simulator.sweep import run_count, simulate_all
    from profiler.simulator.workload import Profile
    from synergai.profiles.files import load_dictionary

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
    study = Study(outcome_of_run(run, bound) for run, bound in runs)
    is_reconstructed = all(entry.label == RECONSTRUCTED for entry in entries)
    source = "reconstructed from the thesis" if is_reconstructed else str(sweep.profile)
    facts = (
        ("Profile", source),
        ("Seeds", settings.seeds),
        ("Sessions", sweep.sessions),
        ("Estimates off by", f"{sweep.estimate_error * 100:.0f} %"),
    )
    origin = StudyOrigin(
        facts=facts,
        profile=profile,
        is_reconstructed=is_reconstructed,
        made=made,
    )
    return study, origin


def run(settings: RunSettings) -> None:
    """Write the fleet page of a recorded run: its timeline, queue, errors and events, to replay."""
    from synergai.fleet_page.files import render_recording
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
app.command(epilog="Example: [bold]synergai report characterisation --output fleet[/bold]")(
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
    require("numpy")
    require("matplotlib")


def _colophon(command: str) -> str:
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return f"Made by synergai {version('synergai')}, synergai report {command}, on {now}."


def _write(report: Report, folder: Path, *, as_json: bool) -> None:
    from profiler.reports.writing import write_report

    page, *files = write_report(report, folder)
    if as_json:
        findings = {finding.question: finding.text for finding in report.findings}
        print_json({"page": str(page), "files": list(map(str, files)), "findings": findings})
        return
    for finding in report.findings:
        typer.echo(f"{finding.question}\n  {finding.text}")
    figures = len(report.figures())
    typer.echo(f"{page}, with {figures} figures and {len(report.tables())} tables")
