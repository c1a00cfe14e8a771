"""The peer port of an agent: who may pull tensors from it, and what others get."""

import asyncio
import gc
import secrets
import socket
import time
from collections.abc import AsyncIterator
from hashlib import sha256
from pathlib import Path

import pytest

from synergai.errors import TensorsLost
from synergai.oip.inference_pb2 import ModelInferRequest, ModelInferResponse
from synergai.v1.hub_pb2 import Pull
from synergai.wire.limits import PROBE_BYTES
from synergai.wire.work_messages import RelayedTensors, Reports
from synergai.wire.work_socket import MAX_UNAUTHENTICATED
from tests.authorities import Authority
from tests.waiting import turns, until
from worker_agent import exchange, peers
from worker_agent.exchange import Exchange, HeldTensorStore, Pulls
from worker_agent.peers import Peers

LIMIT = 16 << 20
TENSOR = bytes(range(256)) * (3 << 12)
RESPONSE = ModelInferResponse(raw_output_contents=[TENSOR]).SerializeToString()
PATIENCE_S = 30.0


class Holder:
    """An agent that holds a tensor of 3 MiB, and one that pulls it."""

    def __init__(self) -> None:
        self.exchange = Exchange(0, LIMIT)
        self.peers = Peers(LIMIT)
        self.reports: list[Reports] = []
        self.pulls = Pulls(HeldTensorStore(0), self.peers, "127.0.0.1", self.reports.append)

    def hold(self) -> Pull:
        holding = self.exchange.held.hold(self, RESPONSE)
        assert holding is not None
        return Pull(
            token=holding.token,
            worker_id="holder",
            address=f":{self.exchange.port}",
            certificate=self.exchange.certificate,
        )

    async def pull(self, pull: Pull) -> bytes:
        """Pull from the peer port; the gateway has no tensors to relay."""
        pulling = asyncio.create_task(self.pulls.pull(pull, b""))
        while not pulling.done():
            await asyncio.sleep(0.01)
            while self.reports:
                for wanted in self.reports.pop().wanted:
                    self.pulls.receive(RelayedTensors(wanted.token, ()))
        return await pulling

    async def wait_wanted(self, pull: Pull) -> None:
        def is_wanted() -> bool:
            return any(each.token == pull.token for every in self.reports for each in every.wanted)

        async with asyncio.timeout(PATIENCE_S):
            await until(is_wanted)


def has_tensor(request: bytes) -> bool:
    return list(ModelInferRequest.FromString(request).raw_input_contents) == [TENSOR]


@pytest.fixture
async def holder() -> AsyncIterator[Holder]:
    holder = Holder()
    await holder.exchange.open(0, None, None)
    yield holder
    await holder.peers.close()
    await holder.exchange.close()


async def test_tensors_are_pulled_from_their_holder(holder: Holder) -> None:
    pulls = [holder.hold() for _ in range(20)]
    found = await asyncio.gather(*(holder.pulls.pull(pull, b"") for pull in pulls))
    assert all(map(has_tensor, found))
    assert not holder.reports
    assert holder.peers.links["holder"].bytes_per_s > 0


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="needs IPv6")
@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
async def test_port_is_the_same_over_ipv4_and_ipv6(holder: Holder, host: str) -> None:
    pull = holder.hold()
    contents = await holder.peers.pull(pull, f"{host}{pull.address}")
    assert contents
    assert has_tensor(bytes(contents))


async def test_worker_that_holds_the_tensors_itself_needs_no_connection() -> None:
    held = HeldTensorStore(0)
    holding = held.hold(None, RESPONSE)
    assert holding is not None
    pulls = Pulls(held, Peers(LIMIT), "", lambda _: None)
    assert has_tensor(await pulls.pull(Pull(token=holding.token), b""))


async def test_zeros_that_are_held_measure_the_link_from_their_holder(holder: Holder) -> None:
    token = secrets.token_hex(16)
    holder.exchange.held.hold_zeros(holder, token)
    pull = Pull(token=token, worker_id="holder", address=f":{holder.exchange.port}")
    assert await holder.pulls.pull_directly(pull) == bytes(PROBE_BYTES)
    assert holder.peers.links["holder"].bytes_per_s > 0
    assert await holder.pulls.pull_directly(Pull(token=token)) is None


async def test_tensors_of_an_agent_that_cannot_be_reached_are_relayed(holder: Holder) -> None:
    pull = holder.hold()
    pull.address = "127.0.0.1:1"
    pulling = asyncio.create_task(holder.pulls.pull(pull, b""))
    await holder.wait_wanted(pull)
    holder.pulls.receive(RelayedTensors(pull.token, holder.exchange.held.get(pull.token) or ()))
    assert has_tensor(await pulling)


async def read_all(port: int, data: bytes) -> bytes:
    """Return what the port answers to some bytes until it closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    async with asyncio.timeout(PATIENCE_S):
        try:
            return await reader.read()
        finally:
            writer.close()


@pytest.mark.parametrize(
    "data",
    [
        b"\x20\0\0\0" + b"0" * 32,
        b"\xff\xff\xff\x7f",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x02\0\0\0\xff\xfe",
    ],
    ids=["unknown token", "huge message", "http", "no text"],
)
async def test_stranger_gets_nothing(holder: Holder, data: bytes) -> None:
    pull = holder.hold()
    assert await read_all(holder.exchange.port, data) == b""
    assert has_tensor(await holder.pull(pull))


async def test_idle_strangers_do_not_lock_agents_out(holder: Holder) -> None:
    idle = [
        await asyncio.open_connection("127.0.0.1", holder.exchange.port)
        for _ in range(MAX_UNAUTHENTICATED + 8)
    ]
    assert has_tensor(await holder.pull(holder.hold()))
    for _, writer in idle:
        writer.close()


async def test_flood_of_old_tokens_costs_no_tensors(holder: Holder) -> None:
    old = holder.hold()
    holder.exchange.held.drop(old.token)
    frames, port = 100 * (b"\x20\0\0\0" + old.token.encode()), holder.exchange.port
    strangers = (read_all(port, frames) for _ in range(4 * MAX_UNAUTHENTICATED))
    flood = asyncio.gather(*strangers, return_exceptions=True)
    pulling = [asyncio.create_task(holder.pulls.pull(holder.hold(), b"")) for _ in range(20)]
    while not all(each.done() for each in pulling):
        await asyncio.sleep(0.01)
        for report in holder.reports:  # of those whose connection was among the oldest
            for token in (each.token for each in report.wanted):
                tensors = RelayedTensors(token, holder.exchange.held.get(token) or ())
                holder.pulls.receive(tensors)
    assert all(has_tensor(each.result()) for each in pulling)
    assert not any(each for each in await flood if isinstance(each, bytes))
    newcomer = Peers(LIMIT)  # the other one avoids the port if it could not reach it
    assert await newcomer.pull(holder.hold(), f"127.0.0.1:{port}"), "it is open again"
    await newcomer.close()


@pytest.mark.parametrize("pulls", [1, 2 * exchange.MOST_PULLS])
async def test_tensors_are_not_kept_for_an_agent_that_does_not_read(
    holder: Holder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, pulls: int
) -> None:
    monkeypatch.setattr(exchange, "HELD_S", 0.1)
    pull = holder.hold()
    with socket.socket() as silent:
        silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        silent.connect(("127.0.0.1", holder.exchange.port))
        silent.sendall(pulls * (b"\x20\0\0\0" + pull.token.encode()))
        senders = holder.exchange._senders
        async with asyncio.timeout(PATIENCE_S):
            await until(lambda: len(senders))
            await until(lambda: not len(senders))
    assert not caplog.records


@pytest.mark.parametrize("extra", [ModelInferRequest(id="x").SerializeToString(), b"\xff"])
async def test_holder_adds_nothing_but_tensors_to_a_request(holder: Holder, extra: bytes) -> None:
    pull = holder.hold()
    pulling = asyncio.create_task(holder.pulls.pull(pull, b""))
    contents = b"".join(holder.exchange.held.get(pull.token) or ()) + extra
    holder.exchange.held.drop(pull.token)
    await holder.wait_wanted(pull)
    holder.pulls.receive(RelayedTensors(pull.token, (contents,)))
    with pytest.raises(TensorsLost, match="other fields than tensors"):
        await pulling


async def test_links_that_were_used_last_are_remembered(
    holder: Holder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "MOST_LINKS", 2)
    for name in ("one", "two", "one", "three"):
        pull = holder.hold()
        pull.worker_id = name
        assert has_tensor(await holder.pull(pull))
    assert list(holder.peers.links) == ["one", "three"]


async def test_stalled_pull_is_relayed(
    holder: Holder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(peers, "STALLED_S", 0.05)
    pull = holder.hold()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        pull.address = f":{silent.getsockname()[1]}"
        pulling = asyncio.create_task(holder.pulls.pull(pull, b""))
        await holder.wait_wanted(pull)
    pulling.cancel()
    await turns()
    gc.collect()
    assert not caplog.records


async def test_address_that_failed_is_tried_again_beside_a_relayed_pull(
    holder: Holder, monkeypatch: pytest.MonkeyPatch
) -> None:
    pull = holder.hold()
    address = f"127.0.0.1:{holder.exchange.port}"
    with monkeypatch.context() as unreachable:
        unreachable.setattr(peers._Connection, "open", refuse)
        assert await holder.peers.pull(pull, address) is None
    assert await holder.peers.pull(pull, address) is None
    assert not holder.peers.links, "it is avoided"
    holder.peers._avoided_until[address] = time.monotonic()
    assert await holder.peers.pull(pull, address) is None, "it waits for nothing"
    await until(lambda: holder.peers.links)
    assert await holder.peers.pull(pull, address)


async def refuse(*_: object) -> None:
    raise ConnectionRefusedError


async def test_certificate_is_the_one_that_the_gateway_named(
    tmp_path: Path,
) -> None:
    certificate, key = Authority(tmp_path, "fleet").issue("worker")
    holder = Holder()
    await holder.exchange.open(0, certificate, key)
    try:
        assert has_tensor(await holder.pull(holder.hold()))
        false = holder.hold()
        false.certificate = sha256(b"another").digest()
        pulling = asyncio.create_task(holder.pulls.pull(false, b""))
        await holder.wait_wanted(false)
        pulling.cancel()
    finally:
        await holder.peers.close()
        await holder.exchange.close()
