"""Clients and commands with tokens and certificates."""

import hashlib
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest

from gateway.server import Gateway
from synergai.client.client import Client
from synergai.errors import PermissionDenied, Unauthenticated, Unavailable
from tests.authorities import Authority
from tests.integration.conftest import both_servers
from tests.integration.gateway.conftest import ECHO, FakeAgent, config_in

pytestmark = both_servers

TABLE = f"""
[[clients]]
name = "user"
token_sha256 = "{hashlib.sha256(b"secret").hexdigest()}"

[[clients]]
name = "board"
certificate = "board.example.org"

[[grants]]
to = ["user"]
roles = ["infer", "submit"]

[[grants]]
to = ["board"]
roles = ["observe"]
"""


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "access.toml"
    path.write_text(TABLE)
    return path


@pytest.fixture
async def gateway(tmp_path: Path, table: Path) -> AsyncIterator[Gateway]:
    settings = config_in(tmp_path, access=table)
    async with Gateway(settings) as running, FakeAgent(running.hub_address):
        yield running


async def test_client_with_a_token_runs_jobs_and_requests(gateway: Gateway) -> None:
    async with Client(gateway.address, token="secret") as client:
        result = await client.infer(ECHO, {"x": np.ones(1, np.float32)}, deadline=30)
        assert result["y"].tolist() == [1.0]
        submitted = await client.submit(ECHO, queries=3)
        assert (await submitted.wait()).spec.tenant == "user"
        with pytest.raises(PermissionDenied, match="'user' does not have the role 'observe'"):
            await client.workers()
        with pytest.raises(PermissionDenied, match="the role 'operate'"):
            await client.unload(ECHO)


async def test_client_with_a_wrong_token_gets_the_reason(gateway: Gateway) -> None:
    async with Client(gateway.address, token="wrong") as client:
        for _ in range(20):
            with pytest.raises(Unauthenticated, match="the token is unknown"):
                await client.infer(ECHO, {"x": np.ones(1, np.float32)})
            with pytest.raises(Unauthenticated, match="the token is unknown"):
                await client.submit(ECHO, queries=1)


async def test_client_with_a_certificate_is_known_by_its_name(tmp_path: Path, table: Path) -> None:
    authority = Authority(tmp_path)
    server = authority.issue("server", server=True)
    options = {
        "tls_cert": server[0],
        "tls_key": server[1],
        "tls_clients_ca": authority.file,
    }
    certificate, key = authority.issue("board.example.org")
    async with Gateway(config_in(tmp_path, access=table, **options)) as gateway:
        async with Client(
            gateway.address, tls_ca=authority.file, tls_cert=str(certificate), tls_key=str(key)
        ) as client:
            assert await client.workers() == []
            with pytest.raises(PermissionDenied, match="'board'"):
                await client.submit(ECHO, queries=1)
        async with Client(gateway.address, tls_ca=authority.file, attempts=1) as client:
            with pytest.raises(Unavailable):
                await client.workers()
