"""``synergai access``: tokens, and the access table."""

from __future__ import annotations

import hashlib
import secrets
from datetime import UTC, datetime
from pathlib import Path  # noqa: TC003 - typer reads the annotations of commands
from typing import TYPE_CHECKING, Annotated, Final

import typer

from gateway.entry.access.caller import ANONYMOUS, ANY, Grant
from gateway.entry.access.table import AccessTable, AllowedClient, read_access_table
from synergai.cli.output import print_table
from synergai.errors import InvalidInput
from synergai.names import validate_name

if TYPE_CHECKING:
    from collections.abc import Iterator

app: Final = typer.Typer(rich_markup_mode="rich", no_args_is_help=True)
_TOKEN_BYTES: Final = 32


@app.callback()
def _access() -> None:
    """Make tokens for clients and workers, and check the access table of a gateway."""


@app.command(epilog="Example: [bold]synergai access token ada > ada.token 2>> access.toml[/bold]")
def token(
    name: Annotated[str, typer.Argument(help="Name of the client, or id of the worker.")],
    tenant: Annotated[str, typer.Option(help="Tenant of the client. Default: its name.")] = "",
    worker: Annotated[bool, typer.Option("--worker", help="Make it for a worker.")] = False,
    worker_class: Annotated[
        str, typer.Option(help="Class of the worker, which may join as no other. Default: any.")
    ] = "",
) -> None:
    """Print a new random token, and the rows for the access table on standard error.

    The table has only the hash of the token, so that the token cannot be shown again.
    """
    if worker and tenant:
        raise InvalidInput("workers have no tenant: leave out --tenant or --worker")
    if worker_class and not worker:
        raise InvalidInput("clients have no class: leave out --worker-class, or add --worker")
    made = secrets.token_urlsafe(_TOKEN_BYTES)
    digest = hashlib.sha256(made.encode()).hexdigest()
    rows = (
        _worker_rows(name, digest, worker_class) if worker else _client_rows(name, digest, tenant)
    )
    # All of it may be appended to the table: 2>>access.toml.
    typer.echo("\n".join(rows), err=True)
    typer.echo("\n# The token is shown only once.\n", err=True)
    typer.echo(made)


def _client_rows(name: str, digest: str, tenant: str) -> list[str]:
    try:
        AllowedClient(name=name, tenant=tenant, token_sha256=digest)
    except ValueError as error:
        raise InvalidInput(str(error)) from None
    return [
        "# Rows for the access table; give the client the roles that it needs.\n",
        "[[clients]]",
        f'name = "{name}"',
        *([f'tenant = "{tenant}"'] if tenant else ()),
        f'token_sha256 = "{digest}"',
        "",
        "[[grants]]",
        f'to = ["{name}"]',
        'roles = ["infer"]',
    ]


def _worker_rows(name: str, digest: str, worker_class: str) -> list[str]:
    validate_name(name, "worker id")
    if worker_class:
        validate_name(worker_class, "worker class")
    return [
        "# Row for the access table; limit the engines of the worker if it must not serve all.\n",
        "[[workers]]",
        f'id = "{name}"',
        *([f'worker_class = "{worker_class}"'] if worker_class else ()),
        f'token_sha256 = "{digest}"',
    ]


@app.command(epilog="Example: [bold]synergai access check access.toml[/bold]")
def check(file: Annotated[Path, typer.Argument(help="The access table.")]) -> None:
    """Validate an access table, and print who may do what, and which workers may join."""
    table = read_access_table(file)
    columns = ("client", "credential", "tenant", "roles", "engines", "tenants in scope")
    print_table(columns, list(_rows(table)))
    if table.workers is not None:
        typer.echo()
        print_table(("worker", "class", "credential", "engines"), list(_rows_of_workers(table)))
    for warning in _warnings(table):
        typer.echo(warning, err=True)


def _rows(table: AccessTable) -> Iterator[tuple[str, ...]]:
    """Yield a row for each grant of each client, then those of unlisted callers."""
    for client in table.clients:
        credential = "token" if client.certificate is None else f"certificate {client.certificate}"
        if client.expires is not None:
            credential += f" until {client.expires:%Y-%m-%d %H:%M %Z}"
        tenant = client.tenant or client.name
        grants = table.grants_of(client.name, client.groups)
        for grant in grants:
            yield (client.name, credential, tenant, *_scope(grant, tenant))
        if not grants:
            yield (client.name, credential, tenant, "-", "-", "-")
    for grant in table.grants_of(ANONYMOUS):
        yield (ANONYMOUS, "none", "", *_scope(grant, ""))
    if table.jwt:
        for grant in table.grants:
            if to := grant.to_subjects():
                yield (f"jwt: {', '.join(to)}", "JSON web token", "by claim", *_scope(grant, ""))


def _rows_of_workers(table: AccessTable) -> Iterator[tuple[str, ...]]:
    for row in table.workers or ():
        credential = "token" if row.certificate is None else f"certificate {row.certificate}"
        yield row.id, row.worker_class, credential, ", ".join(row.engines)


def _scope(grant: Grant, own: str) -> tuple[str, str, str]:
    tenants = ", ".join(filter(None, (own, *grant.tenants))) or "its own"
    return ", ".join(sorted(grant.roles)), ", ".join(grant.engines), tenants


def _warnings(table: AccessTable) -> Iterator[str]:
    now = datetime.now(UTC)
    for client in table.clients:
        if client.expires is not None and client.expires <= now:
            yield f"the credentials of {client.name!r} have expired"
        if not table.grants_of(client.name, client.groups):
            yield f"client {client.name!r} may do nothing: no grant is for it"
    for number, grant in enumerate(table.grants, 1):
        known = any(grant.is_for(client.name, client.groups) for client in table.clients)
        unlisted = ANONYMOUS in grant.to or (table.jwt and grant.to_subjects())
        if not known and not unlisted:
            yield f"grant {number} is for no client: {', '.join(grant.to)}"
    for row in table.workers or ():
        if row.shares_token:
            yield f"workers {row.id!r} share a token: each may join as any other"
        if row.token_sha256 is not None and row.worker_class == ANY:
            yield f"worker {row.id!r} may join as any class: its row has no worker_class"
