"""``synergai gateway``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from gateway.check_cli import check
from gateway.enrolment_cli import enroll, workers_app
from gateway.gateway_settings import GatewaySettings
from synergai.cli.commands import require, settings_command
from synergai.cli.install import DryRun, Programs, print_or_execute
from synergai.runtime.ports import check_free
from synergai.runtime.reexec import run_instead


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
    from gateway.installer import SERVICE, GatewayInstallation

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
    from gateway.installer import SERVICE, removal_steps

    print_or_execute(removal_steps(purge=purge), f"removed {SERVICE}", dry_run=dry_run)


app = typer.Typer(rich_markup_mode="rich", pretty_exceptions_enable=False, add_completion=False)
app.callback(invoke_without_command=True)(settings_command(GatewaySettings, run))
app.command(epilog="Example: [bold]synergai gateway install --hub 0.0.0.0:8010[/bold]")(install)
app.command(epilog="Example: [bold]synergai gateway uninstall --dry-run[/bold]")(uninstall)
app.command(epilog="Example: [bold]synergai gateway enroll --worker-id edge-3 --ttl 30m[/bold]")(
    enroll
)
app.command(epilog="Example: [bold]synergai gateway check[/bold]")(check)
app.add_typer(workers_app, name="workers")
