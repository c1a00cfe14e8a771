"""``synergai gateway``."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import typer

from gateway.gateway_settings import GatewaySettings
from gateway.journal.files import DATABASE
from synergai.cli.commands import require, settings_command
from synergai.cli.options import AsJson
from synergai.cli.output import print_facts, print_json, print_table
from synergai.cli.process import serve_instead
from synergai.errors import InvalidInput, NotFound, SynergaiError
from synergai.runtime.addresses import check_free
from synergai.runtime.files import StateDamaged, write_atomic
from synergai.runtime.installation import read_shipped
from synergai.runtime.paths import dictionary_path, gateway_state

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gateway.backup import Backup

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
    """Check the journal, the version policies and the dictionary.

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
    from gateway.fleet.versions import POLICY_FILE, PolicyFile
    from gateway.journal.archive import check as check_journal

    with suppress(NotFound):
        yield _Checked(state / DATABASE, check_journal(state))
    if (state / POLICY_FILE).exists():
        yield _Checked(state / POLICY_FILE, _fault(PolicyFile(state).read))
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
    the dictionary and version policies, and with --settings the settings. Secrets are among them:
    only its owner can read it. A journal in PostgreSQL needs a backup of its own.
    """
    from gateway.backup import back_up

    _print_backup(target, back_up(state or gateway_state(), target, settings))


def restore(
    source: Annotated[Path, typer.Argument(metavar="FOLDER", help="A backup.")],
    state: State = None,
    settings: Settings = None,
) -> None:
    """Replace what the gateway keeps by a backup, while it is stopped.

    What happened since the backup is lost: jobs are submitted again, and engines and policies made
    again. Jobs that were running then continue from there. The files before move to a folder
    replaced-… in the state directory.
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


def _format_time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")


app = typer.Typer(rich_markup_mode="rich", pretty_exceptions_enable=False, add_completion=False)
app.callback(invoke_without_command=True)(settings_command(GatewaySettings, run))
app.command(epilog="Example: [bold]synergai gateway check[/bold]")(check)
app.command(epilog="Example: [bold]synergai gateway backup /backups/today[/bold]")(backup)
app.command(epilog="Example: [bold]synergai gateway restore /backups/today[/bold]")(restore)
app.command(epilog="Example: [bold]synergai gateway monitoring monitoring/[/bold]")(monitoring)
