"""TLS of the gateway, with client certificates for agents."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import pytest

import synergai
from gateway.server import Gateway
from synergai.errors import NotFound, Unavailable
from synergai.loadgen.sync_client import SyncStreamClient
from synergai.protocol import rpc
from synergai.protocol.tls import Identity, channel_credentials, open_channel
from tests.calls import raw_stream

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from gateway.settings import GatewaySettings

FILES = Path(__file__).parents[1] / "tls"
CA = FILES / "ca.pem"


@pytest.fixture
async def encrypted(settings: GatewaySettings) -> AsyncIterator[Gateway]:
    tls = {
        "tls_cert": FILES / "server.pem",
        "tls_key": FILES / "server.key",
        "tls_client_ca": CA,
    }
    async with Gateway(settings.model_copy(update=tls)) as running:
        yield running


async def joined(client: synergai.Client) -> list[str]:
    while not (workers := await client.workers()):  # noqa: ASYNC110 - seen from outside
        await asyncio.sleep(0.02)
    return [worker.id for worker in workers]


async def test_client_and_agent_that_trust_the_authority_connect(
    encrypted: Gateway, tmp_path: Path
) -> None:
    (tmp_path / "models").mkdir()
    agent = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "synergai", "agent", "--gateway", encrypted.hub_address),
        *("--models", str(tmp_path / "models"), "--state", str(tmp_path / "agent")),
        *("--worker-id", "w1", "--power", "none", "--tls-ca", str(CA)),
        *("--tls-cert", str(FILES / "agent.pem"), "--tls-key", str(FILES / "agent.key")),
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with (
            asyncio.timeout(20),
            synergai.Client(encrypted.address, tls_ca=CA) as client,
        ):
            assert await joined(client) == ["w1"]
    finally:
        agent.kill()
        await agent.wait()


@pytest.mark.parametrize("authority", [None, FILES / "other.pem"])
async def test_client_that_does_not_trust_the_certificate_gets_nowhere(
    encrypted: Gateway, authority: Path | None
) -> None:
    async with synergai.Client(encrypted.address, tls_ca=authority, attempts=1) as client:
        with pytest.raises(Unavailable):
            await client.workers()


@pytest.mark.parametrize("name", [None, "other"])
async def test_agent_without_a_certificate_of_the_authority_gets_nowhere(
    encrypted: Gateway, name: str | None
) -> None:
    identity = name and Identity.read(FILES / f"{name}.pem", FILES / f"{name}.key")
    credentials = channel_credentials(CA, identity or None)
    async with open_channel(encrypted.hub_address, rpc.channel_options(), credentials) as channel:
        call = raw_stream(channel, "/synergai.v1.Hub/Control")(timeout=5)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        call.cancel()
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


@pytest.fixture
def renewable(tmp_path: Path) -> Path:
    """A folder with the gateway's certificate and key."""
    renew(tmp_path, "server")
    return tmp_path


def renew(folder: Path, name: str, kinds: tuple[str, ...] = ("pem", "key")) -> None:
    """Put another's certificate and key in the place of the gateway's."""
    for kind in kinds:
        new = folder / f"new.{kind}"
        new.write_bytes((FILES / f"{name}.{kind}").read_bytes())
        new.replace(folder / f"gateway.{kind}")


async def test_renewed_certificate_is_shown_to_whoever_connects_from_then_on(
    settings: GatewaySettings, renewable: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = FILES / "other.pem"
    tls = {"tls_cert": renewable / "gateway.pem", "tls_key": renewable / "gateway.key"}
    async with (
        Gateway(settings.model_copy(update=tls)) as gateway,
        synergai.Client(gateway.address, tls_ca=CA) as early,
    ):
        await early.workers()
        renew(renewable, "other", ("pem",))  # whose key is still to come
        async with synergai.Client(gateway.address, tls_ca=CA, attempts=1) as client:
            await client.workers()
        assert "keeping the previous certificate" in caplog.text
        renew(renewable, "other")
        async with synergai.Client(gateway.address, tls_ca=other, attempts=1) as client:
            await client.workers()
        await early.workers()


async def test_command_line_connects_with_the_authority_in_its_environment(
    encrypted: Gateway,
) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "synergai", "jobs", "--json", "--target", encrypted.address),
        env={**os.environ, "SYNERGAI_TLS_CA": str(CA)},
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await process.communicate()
    assert (process.returncode, output.strip()) == (0, b"[]")


async def test_the_load_generators_synchronous_line_is_encrypted_too(encrypted: Gateway) -> None:
    def ask() -> None:
        with SyncStreamClient(encrypted.address, CA) as line:
            line.engine("nothing")

    with pytest.raises(NotFound, match="no worker serves engine 'nothing'"):
        await asyncio.to_thread(ask)
