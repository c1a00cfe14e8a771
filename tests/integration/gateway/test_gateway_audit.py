from __future__ import annotations

import asyncio
import hashlib
import json
import os
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from demo.local_fleet import LocalFleet
from gateway.server import Gateway
from synergai.oip import inference_pb2 as oip
from synergai.oip import model_config_pb2, repository_pb2
from synergai.v1 import fleet_pb2, jobs_pb2, jobs_pb2_grpc
from tests.calls import raw_unary
from tests.http1 import fetch
from tests.integration.conftest import both_servers
from tests.integration.gateway.conftest import (
    Caller,
    FakeAgent,
    PendingCall,
    config_in,
    infer_request,
)
from tests.waiting import until

TABLE = """
[[clients]]
name = "boss"
token_sha256 = "{boss}"

[[clients]]
name = "camera"
tenant = "lab"
token_sha256 = "{camera}"

[[clients]]
name = "guest"
token_sha256 = "{guest}"

[[grants]]
to = ["guest"]
roles = ["infer"]
engines = ["other"]

[[grants]]
to = ["boss"]
roles = ["infer", "submit", "observe", "operate"]
tenants = ["*"]

[[grants]]
to = ["camera"]
roles = ["infer"]

[tenants.lab]
requests_per_s = 0.001
"""
TOKENS = {name: f"secret token of {name}" for name in ("boss", "camera", "guest")}
OIP = "/inference.GRPCInferenceService"


def bearer(name: str) -> grpc.aio.Metadata:
    return grpc.aio.Metadata(("authorization", f"Bearer {TOKENS.get(name, name)}"))


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "audit.log"


@pytest.fixture
async def gateway(tmp_path: Path, log: Path) -> AsyncIterator[Gateway]:
    table = tmp_path / "access.toml"
    hashes = {name: hashlib.sha256(token.encode()).hexdigest() for name, token in TOKENS.items()}
    table.write_text(TABLE.format(**hashes))
    async with Gateway(config_in(tmp_path, access=table, audit_log=log)) as running:
        yield running


@pytest.fixture
async def caller(gateway: Gateway) -> AsyncIterator[Caller]:
    caller = Caller(gateway.address)
    async with caller.channel, FakeAgent(gateway.hub_address):
        await until(lambda: list(gateway.app.fleet.catalogue.in_service()), 0.005)
        yield caller


def read_entries(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().splitlines()]


async def entries(
    log: Path, wanted: Callable[[dict[str, Any]], bool], count: int = 1
) -> list[dict[str, Any]]:
    """Wait until there are `count` entries of a kind, and return them."""
    async with asyncio.timeout(30):
        while True:
            found = [entry for entry in await asyncio.to_thread(read_entries, log) if wanted(entry)]
            if len(found) >= count:
                return found
            await asyncio.sleep(0.02)


def of_call(*names: str) -> Callable[[dict[str, Any]], bool]:
    return lambda entry: entry["call"] in names


def summary(entry: dict[str, Any]) -> tuple[str, ...]:
    keys = ("caller", "tenant", "credential", "object", "result")
    return tuple(entry[key] for key in keys)


def post(gateway: Gateway, path: str, name: str, body: bytes = b"{}") -> int:
    token = {"authorization": f"Bearer {TOKENS.get(name, name)}"}
    return fetch(gateway.http_address, path, body, token).status


@both_servers
async def test_changes_are_recorded_with_caller_and_object(
    gateway: Gateway, caller: Caller, log: Path
) -> None:
    boss = bearer("boss")
    spec = jobs_pb2.JobSpec(engine="echo", queries=10, tenant="lab")
    job = await caller.jobs.Submit(jobs_pb2.SubmitRequest(spec=spec), metadata=boss)
    await caller.jobs.Cancel(jobs_pb2.CancelRequest(job_id=job.id), metadata=boss)
    missing = caller.jobs.Cancel(jobs_pb2.CancelRequest(job_id="missing"), metadata=boss)
    await caller.failure(missing)
    inputs = [jobs_pb2.Input(name="a", request=b"")]
    upload = caller.jobs.Upload(metadata=boss)
    for first in range(2):
        message = jobs_pb2.UploadRequest(upload_id="photos", first=first, inputs=inputs)
        await upload.write(message)
        receipt = await upload.read()
        assert isinstance(receipt, jobs_pb2.UploadReceipt)
        assert receipt.stored == first + 1
    await upload.done_writing()
    for method in ("Unload", "Load"):
        request = getattr(repository_pb2, f"RepositoryModel{method}Request")(model_name="echo")
        call = raw_unary(caller.channel, f"{OIP}/RepositoryModel{method}")
        await call(request.SerializeToString(), metadata=boss)
    for action in ("unload", "load"):
        path = f"/v2/repository/models/echo/{action}"
        assert await asyncio.to_thread(post, gateway, path, "boss") == 200
    await caller.jobs.List(jobs_pb2.ListRequest(), metadata=boss)
    await caller.oip.ModelInfer(infer_request(), metadata=boss)
    found = await entries(log, lambda entry: entry["caller"] == "boss", 8)
    route = "POST /v2/repository/models/{name}/"
    assert [(entry["call"], *summary(entry)[1:]) for entry in found] == [
        ("/synergai.v1.Jobs/Submit", "lab", "token", job.id, "OK"),
        ("/synergai.v1.Jobs/Cancel", "lab", "token", job.id, "OK"),
        ("/synergai.v1.Jobs/Cancel", "boss", "token", "missing", "NOT_FOUND"),
        ("/synergai.v1.Jobs/Upload", "boss", "token", "photos", "OK"),
        (f"{OIP}/RepositoryModelUnload", "boss", "token", "echo", "OK"),
        (f"{OIP}/RepositoryModelLoad", "boss", "token", "echo", "OK"),
        (f"{route}unload", "boss", "token", "echo", "OK"),
        (f"{route}load", "boss", "token", "echo", "OK"),
    ]
    assert all(entry["peer"].startswith(("ipv4:127.0.0.1:", "http:127.0.0.1:")) for entry in found)
    (joined,) = await entries(log, of_call("/synergai.v1.Hub/Control"))
    assert summary(joined) == ("w1", "", "none", "w1", "OK")


@both_servers
async def test_refused_calls_are_recorded_without_secrets(
    gateway: Gateway, caller: Caller, log: Path
) -> None:
    infer = caller.oip.ModelInfer
    await infer(infer_request(), metadata=bearer("camera"))
    for name, code in (
        ("camera", grpc.StatusCode.RESOURCE_EXHAUSTED),
        ("a wrong token", grpc.StatusCode.UNAUTHENTICATED),
    ):
        error = await caller.failure(infer(infer_request(), metadata=bearer(name)))
        assert error.code() is code
    asked = fleet_pb2.ForgetEngineRequest(engine="echo")
    await caller.failure(caller.fleet.ForgetEngine(asked, metadata=bearer("camera")))
    stream = caller.oip.ModelStreamInfer(metadata=bearer("camera"))
    for _ in range(5):
        await stream.write(infer_request())
    await stream.done_writing()
    assert len([answer async for answer in stream]) == 5
    path = "/v2/repository/models/echo/unload"
    assert await asyncio.to_thread(post, gateway, path, "camera") == 403
    agent = FakeAgent(gateway.hub_address, "w2")
    agent.register.protocol_version = 99
    with pytest.raises(grpc.aio.AioRpcError):
        await agent.connect()
    await agent.disconnect()
    found = {
        (entry["call"], *summary(entry)): entry
        for entry in await entries(log, lambda entry: entry["result"] != "OK", 7)
    }
    assert found.keys() == {
        (f"{OIP}/ModelInfer", "camera", "lab", "token", "echo", "RESOURCE_EXHAUSTED"),
        (f"{OIP}/ModelStreamInfer", "camera", "lab", "token", "echo", "RESOURCE_EXHAUSTED"),
        (f"{OIP}/ModelInfer", "anonymous", "", "none", "", "UNAUTHENTICATED"),
        ("/synergai.v1.Fleet/ForgetEngine", "camera", "lab", "token", "", "PERMISSION_DENIED"),
        (
            "POST /v2/repository/models/{name}/unload",
            *("camera", "lab", "token", "echo", "PERMISSION_DENIED"),
        ),
        ("/synergai.v1.Hub/Control", "w2", "", "none", "w2", "UNIMPLEMENTED"),
    }
    assert all(entry["reason"] for entry in found.values())
    streamed = await entries(log, of_call(f"{OIP}/ModelStreamInfer"), 2)
    assert sum(entry["count"] for entry in streamed) == 5
    text = await asyncio.to_thread(log.read_text)
    assert "secret token" not in text
    assert "a wrong token" not in text


@both_servers
async def test_refused_reads_of_an_engine_name_it(caller: Caller, log: Path) -> None:
    guest = bearer("guest")
    calls: list[PendingCall] = [
        caller.oip.ModelReady(oip.ModelReadyRequest(name="echo"), metadata=guest),
        caller.oip.ModelMetadata(oip.ModelMetadataRequest(name="echo"), metadata=guest),
        caller.oip.ModelConfig(model_config_pb2.ModelConfigRequest(name="echo"), metadata=guest),
    ]
    for call in calls:
        assert (await caller.failure(call)).code() is grpc.StatusCode.PERMISSION_DENIED
    found = await entries(log, lambda entry: entry["caller"] == "guest", 3)
    assert [summary(entry) for entry in found] == [
        ("guest", "guest", "token", "echo", "PERMISSION_DENIED")
    ] * 3


def test_log_is_rotated_and_survives_a_signal(tmp_path: Path) -> None:
    log = tmp_path / "audit.log"
    with LocalFleet(tmp_path) as fleet:
        fleet.start_gateway(["--audit-log", str(log)])
        assert fleet.gateway is not None
        log.rename(tmp_path / "audit.log.1")
        os.kill(fleet.gateway.pid, signal.SIGHUP)
        with grpc.insecure_channel(fleet.address) as channel:
            jobs = jobs_pb2_grpc.JobsStub(channel)
            with pytest.raises(grpc.RpcError, match="NOT_FOUND"):
                jobs.Cancel(jobs_pb2.CancelRequest(job_id="a"), timeout=30)
        fleet.stop()
    (entry,) = read_entries(log)
    assert summary(entry) == ("anonymous", "", "none", "a", "NOT_FOUND")
    assert read_entries(tmp_path / "audit.log.1") == []
