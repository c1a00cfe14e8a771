"""The gateway's store of engines, from a client's push to what agents may fetch."""

import asyncio
import hashlib
import io
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Final, cast

import grpc
import pytest

from gateway.entry.access.caller import UNRESTRICTED
from gateway.hub.store.store import EngineStore
from gateway.hub.store.transfers import PushKey
from gateway.server import Gateway
from synergai.client.client import Client
from synergai.client.store import PlacedState, StoredEngine
from synergai.errors import Cancelled, EngineUnusable, InvalidInput, NotFound, SynergaiError
from synergai.models.manifest import Package, pack
from synergai.v1 import common_pb2
from tests.integration.gateway.conftest import FakeAgent, config_in, described

MODEL: Final = bytes(range(256)) * 4096
"""A few chunks."""
TOKEN: Final = "t" * 32
TOKEN_KEY: Final = f'token_sha256 = "{hashlib.sha256(TOKEN.encode()).hexdigest()}"\n'
"""The worker's proof, in its row of the access table."""


def folder(path: Path, model: bytes = MODEL) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    (path / "model.onnx").write_bytes(model)
    (path / "engine.toml").write_text('title = "A model"\n')
    return path


@pytest.fixture
async def client(gateway: Gateway) -> AsyncIterator[Client]:
    async with Client(gateway.address) as client:
        yield client


async def push(
    client: Client, package: Package, name: str = "net", version: int = 1, **options: list[str]
) -> StoredEngine:
    data, place = package.manifest.encode(), options.get("place", ())
    return await client.push_engine(name, version, data, package.paths, place=place)


async def worker(
    stack: AsyncExitStack, gateway: Gateway, worker_id: str, *, backend: str = "onnxruntime"
) -> FakeAgent:
    agent = FakeAgent(gateway.hub_address, worker_id)
    agent.register.worker_class = f"class-{worker_id}"
    agent.register.backends.append(backend)
    agent.register.labels.append(f"label-{worker_id}")
    return await stack.enter_async_context(agent)


def wanted(agent: FakeAgent) -> list[str] | None:
    placements = agent.placements
    return None if placements is None else [f"{each.engine}/{each.version}" for each in placements]


async def test_worker_is_told_what_it_should_have_and_fetches_it_from_any_byte(
    gateway: Gateway, client: Client, tmp_path: Path
) -> None:
    package = pack(folder(tmp_path / "net"), "net", 1)
    async with AsyncExitStack() as stack:
        early = await worker(stack, gateway, "early")
        other = await worker(stack, gateway, "other", backend="tflite")
        old = await stack.enter_async_context(FakeAgent(gateway.hub_address, "old"))
        stored = await push(client, package)
        late = await worker(stack, gateway, "late")
        for agent in (early, late):
            await agent.until(lambda agent=agent: wanted(agent) == ["net/1"])  # type: ignore[misc]  # bound now
            assert await agent.fetch(stored.digest) == package.manifest.encode()
            for file in package.manifest.files:
                content = await agent.fetch(file.sha256)
                assert hashlib.sha256(content).hexdigest() == file.sha256
        model = package.manifest.model_sha256
        assert await late.fetch(model, 300_001) == MODEL[300_001:]
        assert await late.fetch(model, len(MODEL)) == b""
        with pytest.raises(grpc.aio.AioRpcError) as beyond:
            await late.fetch(model, len(MODEL) + 1)
        assert beyond.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        await other.until(lambda: wanted(other) == [])
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await other.fetch(model)
        assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
        assert old.placements is None  # of a version that cannot fetch
        other.connection_id = "guessed"
        with pytest.raises(grpc.aio.AioRpcError) as unknown:
            await other.fetch(model)
        assert unknown.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_placement_selects_by_class_label_and_id_and_may_change(
    gateway: Gateway, client: Client, tmp_path: Path
) -> None:
    package = pack(folder(tmp_path / "net"), "net", 1)
    async with AsyncExitStack() as stack:
        agents = {name: await worker(stack, gateway, name) for name in ("a", "b")}

        async def has(**expected: list[str]) -> None:
            for name, versions in expected.items():
                agent = agents[name]
                await agent.until(lambda agent=agent, v=versions: wanted(agent) == v)  # type: ignore[misc]  # as above

        await push(client, package, place=["class=class-a"])
        await has(a=["net/1"], b=[])
        await client.place_engine("net", 1, ["label=label-b"])
        await has(a=[], b=["net/1"])
        await client.place_engine("net", 1, ["b", "class=*,worker=a"])
        await has(a=["net/1"], b=["net/1"])
        with pytest.raises(InvalidInput, match="matches label=nobody; it stays on a, b"):
            await client.place_engine("net", 1, ["label=nobody"])
        with pytest.raises(InvalidInput, match="select"):
            await client.place_engine("net", 1, ["nonsense=1"])
        await client.remove_engine("net", 1)
        await has(a=[], b=[])
        with pytest.raises(grpc.aio.AioRpcError):
            await agents["a"].fetch(package.manifest.model_sha256)
        with pytest.raises(NotFound):
            await client.remove_engine("net", 1)


async def test_version_that_is_withheld_stays_where_it_is_and_goes_to_no_further_worker(
    gateway: Gateway, client: Client, tmp_path: Path
) -> None:
    placements = gateway.app.agents.placements
    async with AsyncExitStack() as stack:
        early = await worker(stack, gateway, "early")
        await push(client, pack(folder(tmp_path / "net"), "net", 1))
        await early.until(lambda: wanted(early) == ["net/1"])
        placements.withholds = lambda engine: engine == "net"
        late = await worker(stack, gateway, "late")
        await push(client, pack(folder(tmp_path / "other"), "other", 1), "other")
        await early.until(lambda: wanted(early) == ["net/1", "other/1"])
        await late.until(lambda: wanted(late) == ["other/1"])
        placements.withholds = lambda _: False
        placements.apply()
        await late.until(lambda: wanted(late) == ["net/1", "other/1"])


async def test_version_above_those_of_the_store_gets_no_requests_by_default(
    gateway: Gateway, client: Client, tmp_path: Path
) -> None:
    name = described().name
    async with AsyncExitStack() as stack:
        agent = FakeAgent(gateway.hub_address, "w")
        agent.register.engines.add().CopyFrom(described())
        agent.register.engines[-1].version = "999"
        agent.register.engines[-1].name = f"{name}/999"
        await stack.enter_async_context(agent)
        assert (await client.engine(name)).version == "999"
        await push(client, pack(folder(tmp_path / "net"), name, 2), name, 2)
        assert (await client.engine(name)).version == "1"
        [first, other] = (await client.version_policy(name)).versions
        assert (first.reason, other.in_service) == ("", True)
        assert "not in the store" in other.reason
        await client.remove_engine(name, 2)
        assert (await client.engine(name)).version == "999"


async def test_reports_of_workers_are_shown_and_others_ignored(
    gateway: Gateway, client: Client, tmp_path: Path
) -> None:
    async with AsyncExitStack() as stack:
        agent = await worker(stack, gateway, "w")
        stored = await push(client, pack(folder(tmp_path / "net"), "net", 1))
        await agent.until(lambda: wanted(agent) == ["net/1"])
        for version in (2, 1):
            await agent.report_placed(
                engine="net",
                version=version,
                digest=stored.digest,
                state=common_pb2.PLACED_STATE_FAILED,
                received=7,
                fault="no space\n",
            )

        async def shown() -> bool:
            [engine] = (await client.stored_engines()).engines
            return engine.workers["w"].state is PlacedState.FAILED

        async with asyncio.timeout(30):
            while not await shown():  # noqa: ASYNC110 - polls the gateway
                await asyncio.sleep(0.02)
        [status] = await client.workers()
        [placed] = status.placed
        assert (placed.version, placed.received, placed.fault) == (1, 7, "no space ")
        assert status.labels == ("label-w",)


@pytest.mark.parametrize("fetched", [True, False])
async def test_job_for_a_version_that_is_being_removed_is_refused_at_once(
    gateway: Gateway, client: Client, tmp_path: Path, *, fetched: bool
) -> None:
    """That a worker has in its own model directory stays."""
    name = described().name
    package = pack(folder(tmp_path / "net"), name, 1)
    async with AsyncExitStack() as stack:
        agent = FakeAgent(gateway.hub_address, "w")
        agent.register.backends.append("onnxruntime")
        agent.register.engines[0].digest = package.manifest.model_sha256
        await stack.enter_async_context(agent)
        stored = await push(client, package, name)
        await agent.until(lambda: wanted(agent) == [f"{name}/1"])
        await agent.report_placed(
            engine=name,
            version=1,
            digest=stored.digest,
            state=common_pb2.PLACED_STATE_INSTALLED,
            fetched=fetched,
        )

        async def installed() -> bool:
            [engine] = (await client.stored_engines()).engines
            return engine.workers["w"].state is PlacedState.INSTALLED

        async with asyncio.timeout(30):
            while not await installed():  # noqa: ASYNC110 - polls the gateway
                await asyncio.sleep(0.02)
        await (await client.submit(name, queries=1)).cancel()
        await client.remove_engine(name, 1)
        if not fetched:
            await (await client.submit(name, queries=1)).cancel()
            return
        with pytest.raises(EngineUnusable, match="it was removed from the worker"):
            await client.submit(name, queries=1)


async def test_engine_of_a_worker_that_comes_back_after_its_removal_gets_no_job(
    gateway: Gateway, client: Client
) -> None:
    agent = FakeAgent(gateway.hub_address, "w")
    agent.register.fetched.append(described().name)
    async with agent:
        with pytest.raises(SynergaiError, match="it was removed from the worker"):
            await client.submit(described().name, queries=1)


async def test_upload_that_is_cut_off_is_kept_and_continued(
    gateway: Gateway, client: Client, tmp_path: Path
) -> None:
    package = pack(folder(tmp_path / "net"), "net", 1)
    data, model = package.manifest.encode(), package.manifest.model_sha256
    digest, *_ = await gateway.app.storage.store.open(UNRESTRICTED, "net", 1, data)
    pushed = PushKey(UNRESTRICTED.name, "net", 1, digest)
    await gateway.app.storage.store.append(pushed, model, 0, MODEL[:400_000])
    progress: list[int] = []
    await client.push_engine(
        "net", 1, data, package.paths, on_progress=lambda done, _: progress.append(done)
    )
    assert progress[0] == 400_000
    assert await gateway.app.storage.store.read(model, 0, len(MODEL)) == MODEL


async def test_allow_list_of_a_worker_limits_what_is_placed_on_it(tmp_path: Path) -> None:
    table = tmp_path / "access.toml"
    package = pack(folder(tmp_path / "net"), "net", 1)
    digest = package.manifest.model_sha256
    other = pack(folder(tmp_path / "other", b"other"), "net", 2)
    table.write_text(
        '[[grants]]\nto = ["anonymous"]\nroles = ["operate", "observe"]\n'
        '[[workers]]\nid = "w"\nworker_class = "*"\nengines = ["net"]\n'
        f"{TOKEN_KEY}"
        f'[workers.digests]\nnet = ["{digest}"]\n'
    )
    async with AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(Gateway(config_in(tmp_path, access=table)))
        client = await stack.enter_async_context(Client(gateway.address))
        agent = FakeAgent(gateway.hub_address, "w")
        agent.register.backends.append("onnxruntime")
        agent.register.token = TOKEN
        await stack.enter_async_context(agent)
        await push(client, package)
        await push(client, other, version=2)
        await push(client, package, name="secret")
        await agent.until(lambda: wanted(agent) == ["net/1"])
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await agent.fetch(other.manifest.model_sha256)
        assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED


async def test_refused_upload_raises_the_reason_and_stops_reading(
    gateway: Gateway, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class StuckFile(io.BytesIO):
        def read(self, _size: int | None = -1) -> bytes:
            assert resumed.wait(10.0)
            return b""

    async def refuse(_push: PushKey, _sha256: str, _offset: int, _data: bytes) -> int:
        raise InvalidInput("not this one")

    resumed = threading.Event()
    stuck = cast("Path", SimpleNamespace(open=lambda *_, **__: StuckFile(), stat=tmp_path.stat))
    package = pack(folder(tmp_path / "net"), "net", 1)
    paths = dict.fromkeys(package.paths, stuck)
    monkeypatch.setattr(gateway.app.storage.store, "append", refuse)
    with pytest.raises(InvalidInput, match="not this one"):
        await client.push_engine("net", 1, package.manifest.encode(), paths)
    coroutines = [repr(task.get_coro()) for task in asyncio.all_tasks()]
    assert not [each for each in coroutines if "request_iterator" in each]
    resumed.set()


async def test_file_that_cannot_be_read_while_it_is_pushed_is_named(
    client: Client, tmp_path: Path
) -> None:
    package = pack(folder(tmp_path / "net"), "net", 1)
    unreadable = Path("/proc/self/mem")  # it can be opened, and has nothing at its beginning
    paths = dict.fromkeys(package.paths, unreadable)
    with pytest.raises(InvalidInput, match="/proc/self/mem cannot be read: Input/output error"):
        await client.push_engine("net", 1, package.manifest.encode(), paths)


async def test_closing_the_client_ends_a_push(
    gateway: Gateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hang(_push: PushKey, _sha256: str, _offset: int, _data: bytes) -> int:
        uploading.set()
        await asyncio.Event().wait()
        return 0

    uploading = asyncio.Event()
    package = pack(folder(tmp_path / "net"), "net", 1)
    monkeypatch.setattr(gateway.app.storage.store, "append", hang)
    async with Client(gateway.address) as client:
        pushing = asyncio.create_task(push(client, package))
        await uploading.wait()
    with pytest.raises(Cancelled, match="the client was closed"):
        await pushing


async def test_gateway_that_cannot_start_ends_its_tasks_before_what_they_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[str] = []

    async def run(_store: EngineStore) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("task")

    async def close(_store: EngineStore) -> None:
        ended.append("store")

    monkeypatch.setattr(EngineStore, "run", run)
    monkeypatch.setattr(EngineStore, "close", close)
    with pytest.raises(SynergaiError, match=r"cannot write .*events\.jsonl"):
        await Gateway(
            config_in(tmp_path, event_log=tmp_path / "none" / "events.jsonl")
        ).__aenter__()
    assert ended == ["task", "store"]
