"""``synergai gateway``."""

from __future__ import annotations

import time
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import typer

from gateway.gateway_settings import GatewaySettings
from gateway.journal.files import DATABASE, check_leads, is_running
from synergai.cli.commands import require, settings_command
from synergai.cli.options import AsJson
from synergai.cli.output import print_facts, print_json, print_table
from synergai.cli.process import serve_instead
from synergai.errors import InvalidInput, NotFound, SynergaiError
from synergai.names import validate_name
from synergai.runtime.addresses import check_free
from synergai.runtime.files import StateDamaged, write_atomic
from synergai.runtime.installation import read_shipped
from synergai.runtime.paths import dictionary_path, gateway_state
from synergai.runtime.setting_types import parse_duration

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gateway.backup import Backup
    from gateway.entry.access.workers import EnrolledWorker, EnrolmentStore

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


def run(settings: GatewaySettings) -> None:
    """Run the gateway: clients and agents connect to it.

    Any Open Inference Protocol (KServe V2) client can send requests, with deadlines: gRPC to port
    8001, REST to port 8002. Jobs are submitted with [bold]synergai submit[/bold]. Agents connect
    with [bold]synergai agent[/bold].
    Ctrl-C drains requests in flight; accepted jobs resume after the next start.
    """
    require("prometheus_client")
    check_free(settings.addresses)  # now, as the gateway's start takes seconds
    serve_instead("gateway.server:GatewayProcess", settings)


class _Checked(NamedTuple):
    """State of a file: its path, and its fault, empty if it has none."""

    path: Path
    fault: str


def check(state: State = None, as_json: AsJson = False) -> None:
    """Check the journal, the enrolments, the version policies and the dictionary.

    The gateway may be running. Exits with 1 if one of them is damaged.
    """
    directory = state or gateway_state()
    checked = list(_check(directory))
    if not checked:
        raise NotFound(
            f"there are no files of a gateway in {directory}; name its directory with --state"
        )
    if as_json:
        print_json([{"path": str(each.path), "fault": each.fault} for each in checked])
    else:
        columns = ("file", "state")
        print_table(
            columns,
            [(str(each.path), each.fault or "intact") for each in checked],
        )
    if any(each.fault for each in checked):
        raise typer.Exit(1)


def _check(state: Path) -> Iterator[_Checked]:
    from gateway.entry.access.workers import ENROLMENTS_FILE, EnrolmentStore
    from gateway.fleet.versions import POLICY_FILE, PolicyFile
    from gateway.journal.archive import check as check_journal

    with suppress(NotFound):
        yield _Checked(state / DATABASE, check_journal(state))
    for name, read in (
        (ENROLMENTS_FILE, EnrolmentStore(state).workers),
        (POLICY_FILE, PolicyFile(state).read),
    ):
        if (state / name).exists():
            yield _Checked(state / name, _fault(read))
    dictionary = dictionary_path(state)
    if dictionary.exists():
        yield _Checked(dictionary, _fault(partial(_read_dictionary, dictionary)))


def _read_dictionary(path: Path) -> None:
    from synergai.profiles.store import DictionaryStore

    with DictionaryStore(path) as store:
        store.check(thorough=True)
        store.load()


Settings = Annotated[
    Path | None, typer.Option("--settings", metavar="DIR", help="Settings, such as /etc/synergai.")
]


def backup(
    target: Annotated[Path, typer.Argument(metavar="FOLDER", help="The new folder.")],
    state: State = None,
    settings: Settings = None,
) -> None:
    """Copy all that the gateway keeps to a new folder. It may be running.

    The folder has the journal, inputs and results of jobs, the store of engines with placements,
    the dictionary, version policies and enrolments, and with --settings the settings. Secrets are
    among them: only its owner can read it. A journal in PostgreSQL needs a backup of its own.
    """
    from gateway.backup import back_up

    _print_backup(target, back_up(state or gateway_state(), target, settings))


def restore(
    source: Annotated[Path, typer.Argument(metavar="FOLDER", help="A backup.")],
    state: State = None,
    settings: Settings = None,
) -> None:
    """Replace what the gateway keeps by a backup, while it is stopped.

    What happened since the backup is lost: jobs are submitted again, and engines, policies,
    enrolments and revocations made again. Jobs that were running then continue from there.
    The files before move to a folder replaced-… in the state directory.
    """
    from gateway.backup import restore as restore_backup

    _print_backup(source, restore_backup(state or gateway_state(), source, settings))


def _print_backup(folder: Path, made: Backup) -> None:
    print_facts(
        [
            ("backup", str(folder)),
            ("of", made.state),
            ("made at", _format_time(made.made_at)),
            ("journal", "included" if made.has_journal else "in PostgreSQL, not included"),
            ("files", f"{len(made.files):,}"),
            ("size", f"{made.bytes / 1e6:,.1f} MB"),
        ]
    )


def _fault(read: Callable[[], object]) -> str:
    """Return why a state file cannot be read; empty if it can."""
    from synergai.profiles.store import DictionaryDamaged

    try:
        read()
    except (StateDamaged, DictionaryDamaged) as error:
        return f"damaged: {error.fault}"
    except SynergaiError as error:
        return str(error)
    return ""


_MONITORING: Final = (
    "deploy/prometheus/synergai.rules.yml",
    "deploy/grafana/synergai.json",
    "docs/guide/alerts.md",
)


def monitoring(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where to write the files.")],
) -> None:
    """Write alerts for Prometheus, a dashboard for Grafana, and what to do at each alert."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for shipped in _MONITORING:
            path = folder / Path(shipped).name
            write_atomic(path, read_shipped(shipped))
            typer.echo(path)
    except OSError as error:
        raise InvalidInput(f"cannot write {error.filename}: {error.strerror}") from None


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
    directory = state or gateway_state()
    enrolments = _enrolments(directory)
    stopped = "" if is_running(directory) else ", which is not running"
    typer.echo(enrolments.issue(worker_id, worker_class, expires_at, now))
    until = _format_time(expires_at)
    typer.echo(
        f"It can be used once, until {until}, at the gateway of {directory}{stopped}.", err=True
    )


@workers_app.command("list", epilog="Example: [bold]synergai gateway workers list[/bold]")
def list_workers(as_json: AsJson = False, state: State = None) -> None:
    """List the enrolled workers, connected or not."""
    workers = _enrolments(state or gateway_state()).workers()
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
    _enrolments(state or gateway_state()).revoke(worker_id, time.time())
    typer.echo(f"{worker_id} is revoked")


def _enrolments(directory: Path) -> EnrolmentStore:
    from gateway.entry.access.workers import EnrolmentStore

    is_running(directory)  # raises if it is no gateway's
    check_leads(directory)
    return EnrolmentStore(directory)


def parse_time(text: str) -> float:
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


app = typer.Typer(rich_markup_mode="rich", pretty_exceptions_enable=False, add_completion=False)
app.callback(invoke_without_command=True)(settings_command(GatewaySettings, run))
app.command(epilog="Example: [bold]synergai gateway enroll --worker-id edge-3 --ttl 30m[/bold]")(
    enroll
)
app.command(epilog="Example: [bold]synergai gateway check[/bold]")(check)
app.command(epilog="Example: [bold]synergai gateway backup /backups/today[/bold]")(backup)
app.command(epilog="Example: [bold]synergai gateway restore /backups/today[/bold]")(restore)
app.command(epilog="Example: [bold]synergai gateway monitoring monitoring/[/bold]")(monitoring)
app.add_typer(workers_app, name="workers")
