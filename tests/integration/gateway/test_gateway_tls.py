"""TLS of the gateway, with client certificates for agents."""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path

import grpc
import numpy as np
import pytest
import uvloop
from msgspec.structs import replace

import synergai
from demo.local_fleet import LocalFleet
from gateway.gateway_settings import GatewaySettings
from gateway.server import Gateway
from synergai.errors import Unavailable
from synergai.oip.inference_pb2_grpc import GRPCInferenceServiceStub
from synergai.wire import rpc, work_socket
from synergai.wire.credentials import (
    ClientTls,
    Identity,
    channel_credentials,
    open_channel,
    server_context,
)
from synergai.wire.work_socket import WorkSocket, WorkSocketServer
from tests.calls import raw_stream
from tests.http1 import connected, get
from tests.integration.conftest import both_servers
from tests.integration.gateway.conftest import Connect, FakeAgent, infer_request
from tests.tiny_tflite import save_sum
from worker_agent.hub_client.remote import open_work_socket

FILES = Path(__file__).parents[1] / "tls"
CA = FILES / "ca.pem"
AGENT = ClientTls.read(CA, FILES / "agent.pem", FILES / "agent.key")


@pytest.fixture
async def encrypted(config: GatewaySettings) -> AsyncIterator[Gateway]:
    tls = {
        "tls_cert": FILES / "server.pem",
        "tls_key": FILES / "server.key",
        "tls_client_ca": CA,
    }
    async with Gateway(replace(config, **tls)) as running:
        yield running


@pytest.fixture
async def agent_over_tls(encrypted: Gateway, connect: Connect) -> FakeAgent:
    _, agent = await connect(encrypted, AGENT)
    return agent


async def joined(client: synergai.Client) -> list[str]:
    while not (workers := await client.workers()):  # noqa: ASYNC110 - seen from outside
        await asyncio.sleep(0.02)
    return [worker.id for worker in workers]


@both_servers
@pytest.mark.usefixtures("agent_over_tls")
@pytest.mark.parametrize("values", [1, 1_000_000])
async def test_requests_of_any_size_run_over_an_encrypted_work_socket(
    encrypted: Gateway, values: int
) -> None:
    request = infer_request(values)
    async with open_channel(encrypted.address, rpc.channel_options(), AGENT.channel) as channel:
        stub = GRPCInferenceServiceStub(channel)
        response = await stub.ModelInfer(request, timeout=30)
    assert response.raw_output_contents[0] == request.raw_input_contents[0]


async def test_work_socket_reveals_neither_connection_id_nor_tensors(
    encrypted: Gateway, connect: Connect
) -> None:
    seen = bytearray()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            seen.extend(data)
            writer.write(data)
        writer.close()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        onward, backward = await asyncio.open_connection("127.0.0.1", work_port)
        await asyncio.gather(relay(reader, backward), relay(onward, writer))

    caller, agent = await connect(encrypted, AGENT)
    work_port = agent.work_port
    eavesdropper = await asyncio.start_server(accept, "127.0.0.1", 0)
    async with eavesdropper:
        agent.work_port = eavesdropper.sockets[0].getsockname()[1]
        await agent.reopen_work()
        request = infer_request(raw_input_contents=[b"\x11\x22\x33\x44"])
        response = await caller.oip.ModelInfer(request, timeout=30)
        assert response.raw_output_contents == request.raw_input_contents
        await agent.disconnect()
    assert len(seen) > 1000
    assert request.raw_input_contents[0] not in seen
    assert agent.connection_id.encode() not in seen


async def test_plaintext_work_socket_is_refused(encrypted: Gateway, connect: Connect) -> None:
    caller, agent = await connect(encrypted, AGENT)
    loop = asyncio.get_running_loop()
    _, socket = await loop.create_connection(
        lambda: WorkSocket(lambda _: None, 1 << 20), "127.0.0.1", agent.work_port
    )
    socket.send((agent.connection_id.encode(),))
    await asyncio.wait_for(asyncio.wait([socket.closed]), 30)
    assert len(await caller.workers(1)) == 1
    assert not agent.work_closed.is_set()


@pytest.mark.parametrize("name", [None, "other", "expired"])
async def test_work_socket_without_a_valid_certificate_is_refused(
    encrypted: Gateway, connect: Connect, name: str | None
) -> None:
    caller, agent = await connect(encrypted, AGENT)
    files = (FILES / f"{name}.pem", FILES / f"{name}.key") if name else ()
    loop = asyncio.get_running_loop()
    # TLS 1.3 tells the client only after its own handshake.
    with contextlib.suppress(OSError):
        _, socket = await loop.create_connection(
            lambda: WorkSocket(lambda _: None, 1 << 20),
            "127.0.0.1",
            agent.work_port,
            ssl=ClientTls.read(CA, *files).socket,
        )
        socket.send((agent.connection_id.encode(),))
        await asyncio.wait_for(asyncio.wait([socket.closed]), 30)
    assert len(await caller.workers(1)) == 1
    assert not agent.work_closed.is_set()


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_evicted_socket_is_closed_before_its_handshake_is_complete(
    run: Callable[[Coroutine[None, None, None]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work_socket, "MAX_UNAUTHENTICATED", 2)
    monkeypatch.setattr(work_socket, "_AUTHENTICATE_WITHIN_S", 600.0)

    async def evict() -> None:
        tls = server_context(FILES / "server.pem", FILES / "server.key", CA)
        server = WorkSocketServer(lambda _id, _socket: None, tls)
        port = await server.start("127.0.0.1", 0)
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(4)]
        for reader, _ in silent[:2]:
            with contextlib.suppress(ConnectionResetError):
                assert await asyncio.wait_for(reader.read(), 30) == b""
        assert not silent[3][0].at_eof()
        for _, writer in silent:
            writer.close()
        await server.close()

    run(evict())


@pytest.mark.parametrize(
    ("files", "authority", "reason"),
    [
        ("server", FILES / "other.pem", "unable to get local issuer certificate"),
        ("expired", FILES / "expired_ca.pem", "certificate has expired"),
    ],
)
async def test_agent_refuses_a_gateway_without_a_valid_certificate(
    files: str, authority: Path, reason: str
) -> None:
    context = server_context(FILES / f"{files}.pem", FILES / f"{files}.key")
    presented: list[object] = []
    server = WorkSocketServer(lambda *socket: presented.append(socket), context)
    port = await server.start("127.0.0.1", 0)
    try:
        with pytest.raises(Unavailable, match=rf"127\.0\.0\.1:{port}: {reason}"):
            await open_work_socket(
                "127.0.0.1",
                port,
                "secret",
                lambda _: None,
                tls=ClientTls.read(authority).socket,
                max_message_bytes=1 << 20,
                timeout_s=5.0,
                lost_after_s=5.0,
            )
    finally:
        await server.close()
    assert presented == []


@both_servers
def test_processes_work_and_stop_over_tls(tmp_path: Path) -> None:
    (tmp_path / "models" / "plus").mkdir(parents=True)
    save_sum(tmp_path / "models" / "plus" / "model.tflite")
    server = ("--tls-cert", str(FILES / "server.pem"), "--tls-key", str(FILES / "server.key"))
    agent = ("--tls-cert", str(FILES / "agent.pem"), "--tls-key", str(FILES / "agent.key"))
    with LocalFleet(tmp_path / "fleet") as fleet:
        fleet.start_gateway([*server, "--tls-client-ca", str(CA)])
        fleet.start_agent("w1", models=tmp_path / "models", options=[*agent, "--tls-ca", str(CA)])

        async def infer() -> list[float]:
            x = np.array([[1.0, 2.0]], np.float32)
            async with (
                asyncio.timeout(60),
                synergai.Client(fleet.address, tls_ca=CA) as client,
            ):
                await joined(client)
                outputs = await client.infer("plus", {"x": x})
                return [float(value) for value in outputs["y"].ravel()]

        assert asyncio.run(infer()) == [2.0, 4.0]
    assert "did not receive the last reports" not in fleet.log("w1").read_text()
    assert "Traceback" not in fleet.log("w1").read_text() + fleet.log("gateway").read_text()


@both_servers
@pytest.mark.parametrize("name", [None, "other"])
async def test_agent_without_a_certificate_of_the_authority_gets_nowhere(
    encrypted: Gateway, name: str | None
) -> None:
    identity = name and Identity.read(FILES / f"{name}.pem", FILES / f"{name}.key")
    credentials = channel_credentials(CA, identity or None)
    async with open_channel(encrypted.hub_address, rpc.channel_options(), credentials) as channel:
        call = raw_stream(channel, "/synergai.v1.Hub/Control")(timeout=30)
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


@both_servers
async def test_renewed_certificate_is_shown_to_whoever_connects_from_then_on(
    config: GatewaySettings, renewable: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = FILES / "other.pem"
    tls = {"tls_cert": renewable / "gateway.pem", "tls_key": renewable / "gateway.key"}
    async with (
        Gateway(replace(config, **tls)) as gateway,
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
        *(
            sys.executable,
            "-m",
            "synergai",
            "jobs",
            "list",
            "--json",
            "--target",
            encrypted.address,
        ),
        env={**os.environ, "SYNERGAI_TLS_CA": str(CA)},
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await process.communicate()
    assert (process.returncode, output.strip()) == (0, b"[]")


async def test_http_port_is_encrypted_as_well(config: GatewaySettings) -> None:
    tls = {"tls_cert": FILES / "server.pem", "tls_key": FILES / "server.key"}
    async with Gateway(replace(config, **tls)) as gateway:
        trusted = ssl.create_default_context(cafile=CA)
        assert (await get(gateway.http_address, "/healthz", trusted)).body == b"serving\n"
        async with connected(gateway.http_address) as connection:
            connection.send_head("/healthz", method="GET")
            with contextlib.suppress(ConnectionError):
                assert await connection.closed() == b""
