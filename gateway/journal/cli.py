"""``synergai journal``: check a gateway's journal, and copy it to PostgreSQL and back."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from synergai.cli.options import AsJson
from synergai.cli.output import format_count, print_facts, print_json, to_jsonable
from synergai.errors import InvalidInput
from synergai.runtime.paths import gateway_state
from synergai.runtime.text import counted

app: Final = typer.Typer(
    help="Check a gateway's journal, and copy it to PostgreSQL and back.",
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
