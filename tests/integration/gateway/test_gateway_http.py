"""The HTTP port: the protocol in REST form, abuse, cancellation and shutdown."""

from __future__ import annotations

import asyncio
import gzip
import json
import math
import random
import re
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path

import pytest

from gateway.calls.http import bodies, connections
from gateway.calls.http.connections import LimitedConnection
from gateway.server import Gateway
from synergai.oip import repository_pb2
from tests import http1
from tests.calls import raw_unary
from tests.http1 import Answer, Connection
from tests.integration.gateway.conftest import Caller, Connect, FakeAgent, config_in

INFER = "/v2/models/echo/infer"
UNLOAD = "/inference.GRPCInferenceService/RepositoryModelUnload"


def connected(gateway: Gateway) -> AbstractAsyncContextManager[Connection]:
    return http1.connected(gateway.http_address)


async def call(
    gateway: Gateway,
    path: str,
    body: bytes = b"",
    *lines: str,
    method: str = "POST",
) -> Answer:
    async with connected(gateway) as connection:
        connection.send_head(path, len(body), *lines, method=method)
        connection.writer.write(body)
        return await connection.answer(method)


async def all_answers(connection: Connection, count: int) -> None:
    for _ in range(count):
        await connection.answer()


async def get(gateway: Gateway, path: str) -> Answer:
    return await call(gateway, path, method="GET")


def tensor(**changes: object) -> bytes:
    fields = {"name": "x", "datatype": "FP32", "shape": [3], "data": [1, 2, 3]} | changes
    return json.dumps({"inputs": [fields]}).encode()


@pytest.mark.usefixtures("agent")
async def test_json_tensors_are_answered_with_json(gateway: Gateway) -> None:
    answer = await call(gateway, INFER, tensor())
    assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
    assert json.loads(answer.body)["outputs"] == [
        {"name": "y", "datatype": "FP32", "shape": [3], "data": [1.0, 2.0, 3.0]}
    ]
    assert (await call(gateway, "/v2/models/echo/versions/1/infer", tensor())).status == 200
    assert (await call(gateway, "/v2/models/echo/versions/2/infer", tensor())).status == 404


INVALID: list[tuple[bytes, tuple[str, ...], int]] = [
    (b"", (), 400),
    (b"{", (), 400),
    (b"[" * 100_000, (), 400),
    (tensor(name="z"), (), 400),
    (tensor(datatype="INT8"), (), 400),
    (tensor(), ("Inference-Header-Content-Length: 10000",), 400),
    (tensor(), ("Inference-Header-Content-Length: 5",), 400),
    (tensor(), ("Inference-Header-Content-Length: 0",), 400),
    (tensor(), ("Inference-Header-Content-Length: -1",), 400),
    (tensor(), ("Inference-Header-Content-Length: x",), 400),
    (tensor(), ("Content-Encoding: gzip",), 400),
    (gzip.compress(tensor(), mtime=0)[:-9], ("Content-Encoding: gzip",), 400),
    (gzip.compress(bytes(100 << 20), mtime=0), ("Content-Encoding: gzip",), 413),
    (tensor(), ("Content-Encoding: br",), 415),
    (tensor(), ("synergai-timeout-ms: soon",), 400),
    (tensor(), ("synergai-timeout-ms: -1",), 400),
    (tensor(), ("synergai-timeout-ms: 0",), 504),
    (tensor(), ("synergai-tenant: a b",), 400),
    (tensor(), ("Origin: http://elsewhere.example",), 403),
    (tensor(), ("Origin: null",), 403),
]
"""Body, lines of the head, and the status of the answer."""


async def test_invalid_request_is_explained(gateway: Gateway, agent: FakeAgent) -> None:
    for body, lines, status in INVALID:
        answer = await call(gateway, INFER, body, *lines)
        assert answer.status == status, (body[:40], lines, answer)
        assert answer.error
    assert not agent.assignments
    assert (await call(gateway, INFER, tensor(), "Origin: http://localhost")).status == 200


@pytest.mark.usefixtures("agent")
async def test_failures_have_the_status_of_their_cause(gateway: Gateway, caller: Caller) -> None:
    unknown = await call(gateway, "/v2/models/absent/infer", tensor())
    assert unknown.status == 404
    assert unknown.error == (
        "Request for unknown model: no worker serves engine 'absent'; there are 'echo' "
        f"(request {unknown.headers['request-id']})"
    )
    chosen = await call(gateway, "/v2/models/absent/infer", tensor(), "Request-Id: frame-7")
    assert chosen.error.endswith(" (request frame-7)")
    assert chosen.headers["request-id"] == "frame-7"
    assert (await get(gateway, "/nowhere")).status == 404
    assert (await get(gateway, INFER)).status == 405
    assert "retry-after" not in unknown.headers
    unload = repository_pb2.RepositoryModelUnloadRequest(model_name="echo").SerializeToString()
    await raw_unary(caller.channel, UNLOAD)(unload)
    assert (await call(gateway, INFER, tensor())).status == 409
    assert (await get(gateway, "/v2/models/echo/ready")).status == 409


@pytest.mark.usefixtures("caller")  # adds a profile, so that the engine is known
async def test_engine_without_worker_is_unavailable_for_now(gateway: Gateway) -> None:
    answer = await call(gateway, INFER, tensor())
    assert (answer.status, answer.headers["retry-after"]) == (503, "1")
    assert answer.error


@pytest.mark.parametrize("by_header", [True, False])
async def test_request_expires_at_its_deadline(
    gateway: Gateway, agent: FakeAgent, by_header: bool
) -> None:
    agent.answer = agent.hold
    body, lines = tensor(), ["synergai-timeout-ms: 100.5"]
    if not by_header:
        body, lines = body[:-1] + b', "parameters": {"timeout": 100000}}', []
    answer = await call(gateway, INFER, body, *lines)
    assert answer.status == 504
    assert answer.error
    await agent.until(lambda: len(agent.stops) == 1)


async def test_lost_client_cancels_the_first_of_its_pipelined_requests(
    gateway: Gateway, agent: FakeAgent, caplog: pytest.LogCaptureFixture
) -> None:
    agent.answer = agent.hold
    async with connected(gateway) as connection:
        for _ in range(3):
            connection.send_head(INFER, len(tensor()))
            connection.writer.write(tensor())
        await agent.until(lambda: bool(agent.assignments))
    await agent.until(lambda: len(agent.stops) == 1)
    await asyncio.wait_for(gateway.app.entry.admission.wait_idle(), 30)
    assert len(agent.assignments) == 1
    assert not [record for record in caplog.records if record.name.startswith("uvicorn")]


async def test_pipelined_requests_are_limited_and_those_before_are_answered(
    gateway: Gateway, caplog: pytest.LogCaptureFixture
) -> None:
    async with connected(gateway) as connection:
        connection.writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n" * 1000)
        for _ in range(connections.MAX_PIPELINED):
            assert (await connection.answer()).status == 200
        assert (await connection.answer()).status == 429
        assert await connection.reader.read() == b""
    assert "Traceback" not in caplog.text


async def test_connection_serves_request_after_request(gateway: Gateway, agent: FakeAgent) -> None:
    async with connected(gateway) as connection:
        for _ in range(3):
            connection.send_head(INFER, len(tensor()))
            connection.writer.write(tensor())
            assert (await connection.answer()).status == 200
        for _ in range(3):  # pipelined
            connection.send_head(INFER, len(tensor()))
            connection.writer.write(tensor())
        for _ in range(3):
            assert (await connection.answer()).status == 200
    assert len(agent.assignments) == 6


@pytest.mark.parametrize("lines", [("Connection: close",), ()], ids=["closed", "kept"])
@pytest.mark.parametrize(
    ("method", "path", "line", "status"),
    [
        ("POST", "/v2/nope", "", 404),
        ("GET", "/v2/nope", "", 404),
        ("POST", "/v2/health/live", "", 405),
        ("PUT", "/v2", "", 405),
        ("POST", INFER, "Content-Encoding: br", 415),
        ("POST", INFER, "Origin: http://evil.example", 403),
        ("POST", INFER, "Inference-Header-Content-Length: x", 400),
        ("POST", "/v2/logging", "", 501),
    ],
)
async def test_refusal_reaches_a_client_that_sends_a_large_body(
    gateway: Gateway, lines: tuple[str, ...], method: str, path: str, line: str, status: int
) -> None:
    async with connected(gateway) as connection:
        connection.send_head(path, 4 << 20, *lines, *filter(None, [line]), method=method)
        for _ in range(64):
            connection.writer.write(bytes(1 << 16))
            await connection.writer.drain()
        answer = await connection.answer()
        assert answer.status == status
        if lines:
            assert answer.headers["connection"] == "close"
            assert await connection.closed() == b""
        else:
            connection.send_head("/healthz", 0, method="GET")
            assert (await connection.answer()).status == 200


async def test_chunks_beyond_the_limit_are_refused_in_a_way_that_the_client_sees(
    gateway: Gateway,
) -> None:
    async with connected(gateway) as connection:
        head = f"POST {INFER} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        connection.writer.write(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
        for _ in range(70):
            connection.writer.write(b"100000\r\n" + bytes(1 << 20) + b"\r\n")
            await connection.writer.drain()
        connection.writer.write(b"0\r\n\r\n")
        assert (await connection.answer()).status == 413


@pytest.mark.parametrize(
    ("path", "line", "status"),
    [("/v2/nope", "", 404), ("/v2", "", 405), (INFER, "Content-Encoding: br", 415)],
)
async def test_connection_ends_if_a_body_that_awaits_permission_is_refused(
    gateway: Gateway, path: str, line: str, status: int
) -> None:
    async with connected(gateway) as connection:
        connection.send_head(path, 1000, "Expect: 100-continue", *filter(None, [line]))
        answer = await connection.answer()
        assert (answer.status, answer.headers["connection"]) == (status, "close")
        assert await connection.closed() == b""


async def test_client_is_told_for_how_long_an_idle_connection_stays_open(
    gateway: Gateway,
) -> None:
    for path in ("/healthz", "/v2/nope"):
        assert (await get(gateway, path)).headers["keep-alive"] == "timeout=75"


async def test_idle_connection_gives_way_to_a_new_one(
    gateway: Gateway, agent: FakeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 2)
    monkeypatch.setattr(connections, "YIELD_AFTER_S", 0.0)
    async with connected(gateway) as first, connected(gateway) as second:
        for connection in (first, second):
            connection.send_head("/healthz", 0, method="GET")
            assert (await connection.answer()).status == 200
        assert (await call(gateway, INFER, tensor())).status == 200
        assert await first.closed() == b""
    assert len(agent.assignments) == 1


async def test_slow_body_is_given_up(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "GRACE_S", 0.2)
    async with connected(gateway) as connection:
        connection.send_head(INFER, 100)
        connection.writer.write(b"{")
        answer = await connection.answer()
        assert (answer.status, answer.headers["connection"]) == (408, "close")
        assert "too slowly" in answer.error
        await connection.closed()


async def test_body_is_not_awaited_beyond_the_deadline(gateway: Gateway) -> None:
    async with connected(gateway) as connection:
        connection.send_head(INFER, 100, "synergai-timeout-ms: 100")
        assert (await connection.answer()).status == 504


async def test_slow_head_is_given_up(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "IDLE_S", 0.2)
    async with (
        connected(gateway) as connection,
        connected(gateway) as silent,
    ):
        connection.writer.write(b"GET /healthz HTTP/1.1\r\nHost: ")
        await asyncio.sleep(0.1)
        connection.writer.write(b"x")
        assert await connection.closed() == b""
        assert await silent.closed() == b""


async def test_endless_head_is_refused(gateway: Gateway) -> None:
    async with connected(gateway) as connection:
        connection.writer.write(b"GET /healthz HTTP/1.1\r\nHost: ")
        connection.writer.write(b"x" * connections.MAX_HEAD_BYTES)
        answer = await connection.answer()
        assert (answer.status, answer.headers["connection"]) == (431, "close")
        assert "65,536 bytes" in answer.error


@pytest.mark.parametrize(
    "message",
    [
        b"\x16\x03\x01\x02\x00",
        b"GET /\xff HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 99999999999999999999999\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ],
)
async def test_what_is_not_http_is_refused(gateway: Gateway, message: bytes) -> None:
    async with connected(gateway) as connection:
        connection.writer.write(message)
        answer = await connection.answer()
        assert (answer.status, answer.headers["connection"]) == (400, "close")
        assert answer.error
        await connection.closed()


async def test_client_that_does_not_read_is_disconnected(
    gateway: Gateway, agent: FakeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost, note_loss = asyncio.Event(), LimitedConnection.connection_lost

    def connection_lost(connection: LimitedConnection, error: Exception | None) -> None:
        note_loss(connection, error)
        lost.set()

    monkeypatch.setattr(LimitedConnection, "connection_lost", connection_lost)
    monkeypatch.setattr(connections, "IDLE_S", 0.2)
    async with connected(gateway) as connection:
        body = tensor(shape=[1_000_000], data=[1] * 1_000_000)
        for _ in range(8):
            connection.send_head(INFER, len(body))
            connection.writer.write(body)
        await agent.until(lambda: bool(agent.assignments))
        await asyncio.wait_for(lost.wait(), 60)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await all_answers(connection, 8)


async def test_health_is_answered_beyond_the_limit_of_connections(
    gateway: Gateway, agent: FakeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 2)
    monkeypatch.setattr(connections, "RESERVED_CONNECTIONS", 2)
    monkeypatch.setattr(connections, "YIELD_AFTER_S", math.inf)
    async with connected(gateway) as first, connected(gateway) as second:
        for connection in (first, second):
            connection.send_head("/healthz", 0, method="GET")
            assert (await connection.answer()).status == 200
        refused = await call(gateway, INFER, tensor())
        assert (refused.status, refused.headers["retry-after"]) == (503, "1")
        assert refused.headers["connection"] == "close"
        for path in ("/healthz", "/metrics", "/v2/health/live", "/v2/health/ready"):
            assert (await get(gateway, path)).status == 200
        first.send_head(INFER, len(tensor()))
        first.writer.write(tensor())
        assert (await first.answer()).status == 200
        async with (
            connected(gateway),
            connected(gateway),
            connected(gateway) as fifth,
        ):
            fifth.send_head("/healthz", 0, method="GET")
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await fifth.answer()
    assert len(agent.assignments) == 1


async def test_connections_without_requests_give_way_to_health_checks(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 2)
    monkeypatch.setattr(connections, "RESERVED_CONNECTIONS", 2)
    monkeypatch.setattr(connections, "YIELD_AFTER_S", 0.0)
    async with AsyncExitStack() as stack:
        opened = [await stack.enter_async_context(connected(gateway)) for _ in range(4)]
        opened[1].writer.write(b"GET /heal")
        opened[2].send_head(INFER, 1000)
        for _ in range(4):
            assert (await get(gateway, "/healthz")).status == 200
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await opened[0].answer()


@pytest.mark.usefixtures("agent")
@pytest.mark.parametrize("seed", range(4))
async def test_damaged_request_is_never_a_fault_of_ours(gateway: Gateway, seed: int) -> None:
    rng = random.Random(seed)
    good = tensor(parameters={"a": 1})
    head = f"POST {INFER} HTTP/1.1\r\nHost: localhost\r\nInference-Header-Content-Length: 90\r\n"
    statuses = set()
    for number in range(150):
        data = bytearray(good)
        for _ in range(rng.randint(1, 3)):
            at = rng.randrange(len(data) + 1)
            data[at : at + rng.randint(0, 3)] = rng.choice(
                [b"", b"[", b"}", b'"', b",", b"\xff", b"99", b"-", rng.randbytes(3)]
            )
        message = head.replace("90", str(len(data))) if number % 2 else head
        sent = bytearray(f"{message}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        if number % 3 == 0:
            at = rng.randrange(len(message))
            sent[at : at + 1] = rng.randbytes(1)
        async with connected(gateway) as connection:
            connection.writer.write(sent)
            connection.writer.write_eof()
            reply = await connection.closed()
        if reply:
            statuses.add(int(reply.split()[1]))
    assert statuses <= {200, 400, 404, 405, 408, 415, 421, 501}, statuses
    assert 400 in statuses


async def test_requests_end_as_unavailable_when_the_gateway_stops(
    tmp_path: Path, connect: Connect
) -> None:
    async with Gateway(config_in(tmp_path, drain_s=2.0)) as gateway:
        _, agent = await connect(gateway)
        agent.answer = agent.hold
        async with (
            connected(gateway) as waiting,
            connected(gateway) as idle,
        ):
            waiting.send_head(INFER, len(tensor()))
            waiting.writer.write(tensor())
            idle.send_head("/healthz", 0, method="GET")
            assert (await idle.answer()).status == 200
            await agent.until(lambda: bool(agent.assignments))
            gateway.stop()
            stopping = asyncio.create_task(gateway.wait_stopped())
            while (await get(gateway, "/healthz")).status == 200:  # noqa: ASYNC110 - polls the gateway
                await asyncio.sleep(0.01)
            assert json.loads((await get(gateway, "/v2/health/ready")).body) == {"ready": False}
            refused = await call(gateway, INFER, tensor())
            assert (refused.status, refused.headers["retry-after"]) == (503, "1")
            answer = await waiting.answer()
            assert answer.status in (499, 503)
            assert answer.error
            await idle.closed()
            await asyncio.wait_for(stopping, 30)


@pytest.mark.usefixtures("agent")
async def test_null_in_requests_for_the_repository_is_as_if_it_was_left_out(
    gateway: Gateway,
) -> None:
    index = await call(gateway, "/v2/repository/index", b'{"ready": null}')
    assert [each["name"] for each in json.loads(index.body)] == ["echo"]
    for body in (b'{"parameters": null}', b'{"parameters": {"config": null}}'):
        for order in ("unload", "load"):
            answer = await call(gateway, f"/v2/repository/models/echo/{order}", body)
            assert (answer.status, answer.body) == (200, b"{}")


async def test_pages_work_behind_a_proxy_that_adds_a_prefix(gateway: Gateway) -> None:
    assert (await get(gateway, "/")).headers["location"] == "fleet"
    page = (await get(gateway, "/fleet")).body.decode()
    assert re.findall(r"(?:href|src)=\"([^\"]*)", page)
    assert not re.findall(r"(?:href|src)=\"(?:/|http)", page)
    document = json.loads((await get(gateway, "/openapi.json")).body)
    assert document["servers"] == [{"url": "./"}]


async def test_head_has_no_body(gateway: Gateway) -> None:
    answer = await call(gateway, "/healthz", method="HEAD")
    assert (answer.status, answer.headers["content-length"]) == (200, "8")


@pytest.mark.parametrize("path", ["/metrics", "/healthz", "/v2", "/fleet", "/fleet/events"])
async def test_pages_of_other_sites_read_nothing_by_a_name_of_their_own(
    gateway: Gateway, path: str
) -> None:
    _, _, port = gateway.http_address.rpartition(":")
    for host, status in (
        ("127.0.0.1", b"200"),
        ("[::1]", b"200"),
        ("localhost", b"200"),
        ("LOCALHOST", b"200"),
        ("gateway.localhost", b"200"),
        ("evil.example", b"421"),
        ("127.0.0.1.evil.example", b"421"),
    ):
        async with connected(gateway) as connection:
            connection.writer.write(f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
            head = await asyncio.wait_for(connection.reader.readuntil(b"\r\n\r\n"), 30)
        assert head.split()[1] == status, host
