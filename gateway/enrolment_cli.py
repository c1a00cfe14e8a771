"""``synergai gateway enroll`` and ``synergai gateway workers``: enrolment of workers.

They change the gateway's state directory, so they run on its host, as root or as its user.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from synergai.cli.options import AsJson
from synergai.errors import InvalidInput
from synergai.names import validate_name
from synergai.runtime.durations import parse_duration
from synergai.runtime.paths import gateway_state

if TYPE_CHECKING:
    from gateway.entry.access.enrolments import EnrolledWorker, EnrolmentStore

_LONGEST_S: Final = 30 * 366 * 86_400.0

State = Annotated[
    Path | None,
    typer.Option(
        "--state",
        metavar="DIR",
        envvar="SYNERGAI_GATEWAY_STATE",
        help="State directory of the gateway; of a service, /var/lib/synergai-gateway.",
    ),
]

workers_app: Final = typer.Typer(
    help="List and revoke enrolled workers.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)


def enroll(
    worker_id: Annotated[
        str, typer.Option(metavar="ID", help="The only worker that may use the token.")
    ] = "",
    worker_class: Annotated[
        str, typer.Option(metavar="CLASS", help="The only worker class that may use it.")
    ] = "",
    ttl: Annotated[
        str, typer.Option(metavar="DURATION", help="Validity, such as 30m, 1h or 2d.")
    ] = "1h",
    state: State = None,
) -> None:
    """Print a new enrolment token, with which one worker can join once.

    Give it to the agent in a file (--enrolment-token-file) or in the environment variable
    SYNERGAI_AGENT_ENROLMENT_TOKEN. Without --worker-id, any worker can use it that was never
    enrolled and that the access table admits.
    """
    if worker_id:
        validate_name(worker_id, "worker id")
    if worker_class:
        validate_name(worker_class, "worker class")
    now = time.time()
    expires_at = now + parse_time(ttl)
    token = _enrolments(state).issue(worker_id, worker_class, expires_at, now)
    typer.echo(token)
    typer.echo(f"It can be used once, until {_format_time(expires_at)}.", err=True)


@workers_app.command("list", epilog="Example: [bold]synergai gateway workers list[/bold]")
def list_workers(as_json: AsJson = False, state: State = None) -> None:
    """List the enrolled workers, connected or not."""
    from synergai.cli.output import print_json, print_table

    workers = _enrolments(state).workers()
    if as_json:
        print_json([_describe(worker) for worker in workers])
    elif workers:
        columns = ("worker", "class", "enrolled", "revoked")
        print_table(columns, [tuple(_describe(worker).values()) for worker in workers])
    else:
        typer.echo("no worker is enrolled; create a token with 'synergai gateway enroll'")


@workers_app.command(epilog="Example: [bold]synergai gateway workers revoke edge-3[/bold]")
def revoke(worker_id: Annotated[str, typer.Argument(metavar="ID")], state: State = None) -> None:
    """Revoke a worker's secret. A running gateway disconnects it within a second.

    It can enrol again with a token for its id: synergai gateway enroll --worker-id ID.
    """
    _enrolments(state).revoke(worker_id, time.time())
    typer.echo(f"{worker_id} is revoked")


def _enrolments(state: Path | None) -> EnrolmentStore:
    from gateway.entry.access.enrolments import EnrolmentStore
    from gateway.journal.files import check_leads

    directory = state or gateway_state()
    check_leads(directory)
    return EnrolmentStore(directory)


def parse_time(text: str) -> float:
    """Return the seconds of a positive duration such as ``30m``."""
    seconds = parse_duration(text)
    if not 0.0 < seconds <= _LONGEST_S:
        raise InvalidInput(f"{text!r} is not a validity: write one such as 30m, 1h or 2d")
    return seconds


def _describe(worker: EnrolledWorker) -> dict[str, str]:
    return {
        "id": worker.id,
        "worker_class": worker.worker_class,
        "enrolled_at": _format_time(worker.enrolled_at),
        "revoked_at": "" if worker.revoked_at is None else _format_time(worker.revoked_at),
    }


def _format_time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")
