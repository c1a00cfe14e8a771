"""``synergai journal``: check a gateway's journal."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from synergai.cli.options import AsJson
from synergai.cli.output import format_count, print_facts, print_json, to_jsonable
from synergai.runtime.paths import gateway_state

app: Final = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
)

State = Annotated[
    Path,
    typer.Option(
        "--state",
        metavar="PATH",
        envvar="SYNERGAI_GATEWAY_STATE",
        help="The gateway's state directory.",
    ),
]
DEFAULT_STATE: Final = gateway_state()


@app.callback()
def _journal() -> None:
    """Check a gateway's journal."""


@app.command(epilog="Example: [bold]synergai journal check[/bold]")
def check(state: State = DEFAULT_STATE, as_json: AsJson = False) -> None:
    """Read the whole journal, and check it against its checksums and its marker.

    Changes nothing; the gateway may be running. Exits with 1 if the journal cannot be used.
    """
    from gateway.journal.archive import check as check_journal

    report = check_journal(state)
    content = report.content
    if as_json:
        facts = {"path": str(report.path), "ok": not report.fault, "fault": report.fault}
        print_json({**facts, "running": report.running, **(to_jsonable(content) or {})})
    else:
        rows = [("journal", str(report.path)), ("state", report.fault or "intact")]
        if content is not None:
            rows += [
                ("epoch", format_count(content.epoch)),
                ("commits", format_count(content.commits)),
                ("unfinished jobs", format_count(content.unfinished)),
                ("ended jobs", format_count(content.ended)),
            ]
        if report.running:
            rows.append(("gateway", "running"))
        print_facts(rows)
    if report.fault:
        raise typer.Exit(1)
