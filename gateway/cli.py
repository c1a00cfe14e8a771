"""``synergai gateway``."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import typer

from gateway.gateway_settings import GatewaySettings
from gateway.journal.files import check_leads, is_running
from synergai.cli.commands import require, settings_command
from synergai.cli.install import DryRun, Programs, print_or_execute
from synergai.cli.options import AsJson
from synergai.cli.output import print_json, print_table
from synergai.errors import InvalidInput, NotFound, SynergaiError
from synergai.names import validate_name
from synergai.runtime.durations import parse_duration
from synergai.runtime.installation import (
    SETTINGS,
    UNITS,
    RemovePath,
    RunCommand,
    WriteFile,
    check_programs,
    read_unit,
)
from synergai.runtime.paths import dictionary_path, gateway_state
from synergai.runtime.ports import check_free
from synergai.runtime.reexec import run_instead
from synergai.runtime.setting_types import validate_address

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gateway.entry.access.enrolments import EnrolledWorker, EnrolmentStore
    from synergai.runtime.installation import Step

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


class _Checked(NamedTuple):
    """State of a file: its path, and its fault, empty if it has none."""

    path: Path
    fault: str


def check(state: State = None, as_json: AsJson = False) -> None:
    """Check the journal, the enrolments, the version policies and the dictionary.

    The gateway may be running. Exits with 1 if one of them is damaged. The command
    [bold]synergai dictionary check[/bold] checks a dictionary elsewhere.
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
            [
                (str(each.path), f"damaged: {each.fault}" if each.fault else "intact")
                for each in checked
            ],
        )
    if any(each.fault for each in checked):
        raise typer.Exit(1)


def _check(state: Path) -> Iterator[_Checked]:
    from gateway.entry.access.enrolments import FILE, EnrolmentStore
    from gateway.fleet.version_policy import POLICY_FILE, PolicyFile
    from gateway.journal.archive import check as check_journal
    from synergai.profiles.files import check_dictionary

    try:
        journal = check_journal(state)
    except NotFound:
        pass
    else:
        yield _Checked(journal.path, journal.fault)
    for name, read in (
        (FILE, EnrolmentStore(state).workers),
        (POLICY_FILE, PolicyFile(state).read),
    ):
        if (state / name).exists():
            yield _Checked(state / name, _fault(read))
    dictionary = dictionary_path(state)
    if dictionary.exists():
        yield _Checked(dictionary, check_dictionary(dictionary).fault)


def _fault(read: Callable[[], object]) -> str:
    """Return why a state file cannot be read; empty if it can."""
    from synergai.runtime.state_file import StateDamaged

    try:
        read()
    except StateDamaged as error:
        return error.fault
    except SynergaiError as error:
        return str(error)
    return ""


ENVIRONMENT: Final = f"{SETTINGS}/gateway.env"
"""The settings that the options of an installation give."""
LOCAL_ENVIRONMENT: Final = f"{SETTINGS}/gateway.local.env"
"""Further settings, which installations leave alone."""
_PREFIX: Final = "SYNERGAI_GATEWAY_"
_HEADER: Final = f"# Written by synergai gateway install. Further settings: {LOCAL_ENVIRONMENT}\n"
SERVICE: Final = "synergai-gateway.service"
STATE_DIRECTORIES: Final = ("/var/lib/synergai-gateway", "/var/lib/private/synergai-gateway")
"""State directory of the service's dynamic user: a link, and where it leads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayInstallation:
    """Options of an installation. Without any, the settings of an earlier one stay.

    Attributes:
        listen: address for clients; empty for the gateway's default, as for the others.
    """

    listen: str = ""
    hub: str = ""
    work_port: int = 0
    http: str = ""
    insecure: bool = False
    programs: str

    def __post_init__(self) -> None:
        for address in filter(None, (self.listen, self.hub, self.http)):
            validate_address(address)

    def steps(self, root: Path) -> Iterator[Step]:
        """Yield the steps that install the gateway."""
        yield from check_programs(self.programs, ("synergai",), root)
        settings = self._settings()
        yield WriteFile(ENVIRONMENT, _HEADER + "".join(settings), mode=0o640, keep=not settings)
        yield WriteFile(f"{UNITS}/{SERVICE}", read_unit(SERVICE, self.programs))
        yield RunCommand(("systemctl", "daemon-reload"))
        yield RunCommand(("systemctl", "enable", SERVICE))
        # Not `enable --now`: a service that is already running still uses the previous files.
        yield RunCommand(("systemctl", "restart", SERVICE))

    def refusal(self, root: Path) -> str:
        """Return why the gateway will refuse to start once it is installed, or nothing."""
        # Imported here: they are slow to import.
        from gateway.entry.access.exposure import check_before_start
        from gateway.gateway_settings import GatewaySettings
        from synergai.runtime.settings import options_of

        try:
            written = self._settings() or _lines(root / ENVIRONMENT.lstrip("/"))
            written += _lines(root / LOCAL_ENVIRONMENT.lstrip("/"))
            pairs = dict(line.strip().split("=", 1) for line in written if "=" in line)
            given = {
                name: value
                for name in options_of(GatewaySettings)
                if (value := pairs.get(GatewaySettings.env_var(name)))
            }
            settings = GatewaySettings.load(given)
            check_before_start(settings)
        except InvalidInput as error:
            return str(error)
        return ""

    def _settings(self) -> list[str]:
        values = {
            "LISTEN": self.listen,
            "HUB": self.hub,
            "WORK_PORT": self.work_port,
            "HTTP": self.http,
            "INSECURE": "true" if self.insecure else "",
        }
        return [f"{_PREFIX}{key}={value}\n" for key, value in values.items() if value]


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{file} cannot be read: {error}") from None


def removal_steps(*, purge: bool = False) -> Iterator[Step]:
    """Yield the steps that remove the gateway; with `purge`, also its settings and data."""
    yield RunCommand(("systemctl", "disable", "--now", SERVICE), may_fail=True)
    yield RemovePath(f"{UNITS}/{SERVICE}")
    yield RunCommand(("systemctl", "daemon-reload"))
    if purge:
        yield RemovePath(ENVIRONMENT)
        yield RemovePath(LOCAL_ENVIRONMENT)
        yield from map(RemovePath, STATE_DIRECTORIES)


def run(settings: GatewaySettings) -> None:
    """Run the gateway: clients and agents connect to it.

    Any Open Inference Protocol (KServe V2) client can send requests, with deadlines: gRPC to port
    8001, REST to port 8002. Jobs are submitted with [bold]synergai submit[/bold]. Agents connect
    with [bold]synergai agent[/bold].
    Ctrl-C drains requests in flight; accepted jobs resume after the next start.
    """
    require("prometheus_client")
    check_free(settings.addresses)  # now, as the gateway's start takes seconds
    run_instead("gateway.process", settings)


def install(
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Address for clients. Default: loopback.")
    ] = "",
    hub: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Address for agents. Default: loopback.")
    ] = "",
    work_port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port of work sockets; 0 picks a free port.")
    ] = 0,
    http: Annotated[
        str,
        typer.Option(metavar="HOST:PORT", help="Address for REST and /metrics. Default: loopback."),
    ] = "",
    insecure: Annotated[
        bool,
        typer.Option(
            "--insecure",
            help="Listen beyond loopback although encryption or authentication is missing.",
        ),
    ] = False,
    programs: Programs = None,
    dry_run: DryRun = False,
) -> None:
    """Install the gateway as a systemd service and start it. Run it again to update.

    Without addresses and port, an update keeps the previous ones. Addresses that
    other machines can reach need certificates and an access table, whose settings belong in
    /etc/synergai/gateway.local.env, or --insecure.
    """
    installation = GatewayInstallation(
        listen=listen,
        hub=hub,
        work_port=work_port,
        http=http,
        insecure=insecure,
        programs=str(programs or Path(sys.executable).parent),
    )
    done = f"done; see systemctl status {SERVICE}"
    print_or_execute(installation.steps(Path("/")), done, dry_run=dry_run)
    if refusal := installation.refusal(Path("/")):
        will = "will refuse" if dry_run else "refuses"
        typer.echo(f"the gateway {will} to start: {refusal}", err=not dry_run)


def uninstall(
    purge: Annotated[
        bool, typer.Option("--purge", help="Also remove its settings, jobs and dictionary.")
    ] = False,
    dry_run: DryRun = False,
) -> None:
    """Stop and remove the gateway's service."""
    print_or_execute(removal_steps(purge=purge), f"removed {SERVICE}", dry_run=dry_run)


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
    from synergai.cli.output import print_json, print_table

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
    from gateway.entry.access.enrolments import EnrolmentStore

    is_running(directory)  # raises if it is no gateway's
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


app = typer.Typer(rich_markup_mode="rich", pretty_exceptions_enable=False, add_completion=False)
app.callback(invoke_without_command=True)(settings_command(GatewaySettings, run))
app.command(epilog="Example: [bold]synergai gateway install --hub 0.0.0.0:8010[/bold]")(install)
app.command(epilog="Example: [bold]synergai gateway uninstall --dry-run[/bold]")(uninstall)
app.command(epilog="Example: [bold]synergai gateway enroll --worker-id edge-3 --ttl 30m[/bold]")(
    enroll
)
app.command(epilog="Example: [bold]synergai gateway check[/bold]")(check)
app.add_typer(workers_app, name="workers")
