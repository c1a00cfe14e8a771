"""``synergai journal``: check, back up and restore a gateway's journal."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from synergai.cli.options import AsJson
from synergai.cli.output import format_count, print_facts, print_json, to_jsonable
from synergai.errors import InvalidInput
from synergai.runtime.paths import gateway_state
from synergai.runtime.text import counted

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
_SCHEME: Final = "postgresql://"
_END: Final = "State directory, or URL of a database of PostgreSQL."


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


@app.command(epilog="Example: [bold]synergai journal copy STATE postgresql://me@db/jobs[/bold]")
def copy(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help=_END)],
    target: Annotated[str, typer.Argument(metavar="TARGET", help="The other of the two.")],
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Accept a connection that is not encrypted.")
    ] = False,
) -> None:
    """Copy the journal to PostgreSQL, or back, while all its gateways are stopped.

    Run it again if it was interrupted: it continues. The copy is compared with the source before
    gateways can use it.
    """
    from gateway.journal.copying import copy_journal

    back = source.startswith(_SCHEME)
    if back == target.startswith(_SCHEME):
        raise InvalidInput("name a state directory and the URL of a database of PostgreSQL")
    url, directory = (source, target) if back else (target, source)
    jobs = copy_journal(url, Path(directory), back=back, insecure=insecure)
    print_facts([("copied", counted(jobs, "job")), ("state", "equal to the source")])


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
