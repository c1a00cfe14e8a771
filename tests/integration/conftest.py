"""Journals of the gateways in the integration tests.

With SYNERGAI_TEST_JOURNAL=postgresql, each gateway keeps its journal in a database of its own on a
server that the tests start, unless the test says where.
"""

import itertools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from demo.local_fleet import LocalFleet
from gateway.gateway_settings import GatewaySettings
from gateway.server import Gateway
from synergai import SyncClient
from tests.grpc_servers import SERVERS
from tests.postgresql import PostgresqlServer, find_programs, running_server

_IN_POSTGRESQL = os.environ.get("SYNERGAI_TEST_JOURNAL") == "postgresql"

journal_in_a_file = pytest.mark.skipif(
    _IN_POSTGRESQL,
    reason="it is about a journal in a file of the state directory",
)


both_servers = pytest.mark.parametrize("grpc_server", SERVERS, indirect=True)
"""Runs tests with either gRPC server of the gateways that they start.

Tests of what grpcio does not do run with the native server only. It neither disconnects clients
that do not read, nor limits frames and incomplete requests, nor outlives a path that is not UTF-8.
It says nothing of responses that wait, may log calls that end while they are answered, may cancel
some that arrive while it stops, and keeps the request of a failed call until the garbage is
collected.
"""


@pytest.fixture(autouse=True)
def grpc_server(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The gRPC server of a test that runs with `both_servers`, else the default."""
    server: str = getattr(request, "param", "native")
    if server != "native":
        monkeypatch.setenv("SYNERGAI_GATEWAY_GRPC_SERVER", server)
        monkeypatch.setenv("SYNERGAI_SERVE_GRPC_SERVER", server)
    return server


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[PostgresqlServer]:
    programs = find_programs()
    if programs is None:
        pytest.skip("PostgreSQL is not installed: neither pg_ctl nor /usr/lib/postgresql")
    with running_server(programs) as server:
        yield server


@pytest.fixture
def client(fleet: LocalFleet) -> Iterator[SyncClient]:
    """A client of the fleet that a module's tests share."""
    with SyncClient(fleet.address) as client:
        yield client


class Databases:
    """A database for each state directory; those of tests that have ended are used again."""

    def __init__(self, server: PostgresqlServer) -> None:
        self._server = server
        self._used: dict[Path, str] = {}
        self._free: list[str] = []
        self._names = map("journal_{}".format, itertools.count())

    def of(self, state: Path) -> str:
        if state not in self._used:
            self._used[state] = self._free.pop() if self._free else self._create()
        return self._server.url_of(self._used[state])

    def free(self, folder: Path) -> None:
        """Clear the databases of the directories in a folder."""
        for state in [each for each in self._used if each.is_relative_to(folder)]:
            name = self._used.pop(state)
            self._server.clear(name)
            self._free.append(name)

    def _create(self) -> str:
        name = next(self._names)
        self._server.execute(f"CREATE DATABASE {name}")
        return name


@pytest.fixture(autouse=_IN_POSTGRESQL)
def _freed_databases(journals_in_postgresql: Databases, tmp_path: Path) -> Iterator[None]:
    yield
    journals_in_postgresql.free(tmp_path)


@pytest.fixture(scope="session", autouse=_IN_POSTGRESQL)
def journals_in_postgresql(postgresql_server: PostgresqlServer) -> Iterator[Databases]:
    """Give each state directory a database, also those of fixtures that several tests share."""
    databases = Databases(postgresql_server)
    started, created = LocalFleet.start_gateway, Gateway.__init__

    def start(
        fleet: LocalFleet,
        options: Sequence[str] = (),
        prefix: Sequence[str] = (),
        *,
        models: Path | None = None,
    ) -> None:
        if "--journal" not in options:
            options = ["--journal", databases.of(fleet.directory / "gateway"), *options]
        started(fleet, options, prefix, models=models)

    def create(gateway: Gateway, config: GatewaySettings) -> None:
        if not config.journal:
            config = replace(config, journal=databases.of(config.state))
        created(gateway, config)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalFleet, "start_gateway", start)
        patch.setattr(Gateway, "__init__", create)
        yield databases
