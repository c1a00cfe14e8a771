"""``synergai journal``: check, back up and restore a gateway's journal."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from synergai.cli.options import AsJson
from synergai.cli.output import format_count, print_facts, print_json, to_jsonable
from synergai.runtime.paths import gateway_state

if TYPE_CHECKING:
    from gateway.journal.archive import JournalReport

app: Final = typer.Typer(
    help="Check, back up and restore a gateway's journal.",
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


@app.command(epilog="Example: [bold]synergai journal check[/bold]")
def check(state: State = DEFAULT_STATE, as_json: AsJson = False) -> None:
    """Read the whole journal, and check it against its checksums and its marker.

    Changes nothing; the gateway may be running. Exits with 1 if the journal is damaged.
    """
    from gateway.journal.archive import check as check_journal

    report = check_journal(state)
    _print(report, as_json=as_json)
    if report.fault:
        raise typer.Exit(1)


@app.command(epilog="Example: [bold]synergai journal backup /backups/journal.db[/bold]")
def backup(
    target: Annotated[Path, typer.Argument(metavar="FILE", help="The new file.")],
    state: State = DEFAULT_STATE,
) -> None:
    """Copy the journal, as of one commit, to a new file. The gateway may be running."""
    from gateway.journal.archive import back_up

    _print(back_up(state, target))


@app.command(epilog="Example: [bold]synergai journal restore /backups/journal.db[/bold]")
def restore(
    source: Annotated[Path, typer.Argument(metavar="FILE", help="A backup.")],
    state: State = DEFAULT_STATE,
) -> None:
    """Replace the journal by a backup, while the gateway is stopped.

    Jobs that were accepted since the backup are lost, and those that were running then run again.
    The files before move to a folder replaced-… in the state directory.
    """
    from gateway.journal.archive import restore as restore_journal

    _print(restore_journal(state, source))


def _print(report: JournalReport, *, as_json: bool = False) -> None:
    content = report.content
    if as_json:
        facts = {"path": str(report.path), "ok": not report.fault, "fault": report.fault}
        print_json({**facts, "running": report.running, **(to_jsonable(content) or {})})
        return
    rows = [
        ("journal" if report.copy_of is None else "backup", str(report.path)),
        ("state", f"damaged: {report.fault}" if report.fault else "intact"),
    ]
    if report.copy_of is not None:
        rows.insert(1, ("copy of", str(report.copy_of)))
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
