"""``synergai report``: the offline phase's results as pages that people read."""

from __future__ import annotations

from datetime import UTC, datetime
from importlib.metadata import version
from typing import TYPE_CHECKING, Final

import typer

from synergai.cli.commands import require, settings_command
from synergai.cli.output import print_json
from synergai.reports.settings import CharacterisationSettings

if TYPE_CHECKING:
    from pathlib import Path

    from synergai.reports.document import Report


def characterisation(settings: CharacterisationSettings) -> None:
    """Report what determines the speed of the engines of a dictionary.

    Answers five questions about workers, threads and power modes, with figures, and shows the
    front of throughput against efficiency where power was measured.
    """
    _require_drawing()
    from synergai.profiles.files import load_dictionary
    from synergai.reports.characterisation.report import characterise
    from synergai.reports.characterisation.space import Space
    from synergai.simulator.settings import RECONSTRUCTED_PROFILE

    path = RECONSTRUCTED_PROFILE if settings.reconstructed else settings.dictionary
    space = Space(load_dictionary(path), settings.queries)
    source = "reconstructed from the thesis" if settings.reconstructed else str(path)
    report = characterise(space, source=source, made=_colophon("characterisation"))
    _write(report, settings.output, as_json=settings.as_json)


app: Final = typer.Typer(
    help="Report on profiles and on scheduling policies, as pages with figures and tables.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)
app.command(epilog="Example: [bold]synergai report characterisation --output fleet[/bold]")(
    settings_command(CharacterisationSettings, characterisation)
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
    from synergai.reports.writing import write_report

    page, *files = write_report(report, folder)
    if as_json:
        findings = {finding.question: finding.text for finding in report.findings}
        print_json({"page": str(page), "files": list(map(str, files)), "findings": findings})
        return
    for finding in report.findings:
        typer.echo(f"{finding.question}\n  {finding.text}")
    figures = len(report.figures())
    typer.echo(f"{page}, with {figures} figures and {len(report.tables())} tables beside it")
