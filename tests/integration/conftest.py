"""Journals of the gateways in the integration tests.

With SYNERGAI_TEST_JOURNAL=postgresql, each gateway keeps its journal in a database of its own on a
server that the tests start, unless the test says where.
"""

import hashlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from gateway.gateway_settings import GatewaySettings
from gateway.server import Gateway
from synergai.testing import LocalFleet
from tests.postgresql import PostgresqlServer, find_programs, running_server

journal_in_a_file = pytest.mark.skipif(
    os.environ.get("SYNERGAI_TEST_JOURNAL") == "postgresql",
    reason="it is about a journal in a file of the state directory",
)


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[PostgresqlServer]:
    programs = find_programs()
    if programs is None:
        pytest.skip("PostgreSQL is not installed: neither pg_ctl nor /usr/lib/postgresql")
    with running_server(programs) as server:
        yield server


@pytest.fixture(scope="session", autouse=os.environ.get("SYNERGAI_TEST_JOURNAL") == "postgresql")
def journals_in_postgresql(postgresql_server: PostgresqlServer) -> Iterator[None]:
    """Give each state directory a database, also those of fixtures that several tests share."""
    databases: dict[Path, str] = {}

    def journal_of(state: Path) -> str:
        if state not in databases:
            name = "journal_" + hashlib.sha256(os.fsencode(state)).hexdigest()[:16]
            postgresql_server.execute(f"CREATE DATABASE {name}")
            databases[state] = postgresql_server.url_of(name)
        return databases[state]

    started, created = LocalFleet.start_gateway, Gateway.__init__

    def start(
        fleet: LocalFleet,
        options: Sequence[str] = (),
        prefix: Sequence[str] = (),
        *,
        models: Path | None = None,
    ) -> None:
        if "--journal" not in options:
            options = ["--journal", journal_of(fleet.directory / "gateway"), *options]
        started(fleet, options, prefix, models=models)

    def create(gateway: Gateway, config: GatewaySettings) -> None:
        if not config.journal:
            config = replace(config, journal=journal_of(config.state))
        created(gateway, config)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalFleet, "start_gateway", start)
        patch.setattr(Gateway, "__init__", create)
        yield
