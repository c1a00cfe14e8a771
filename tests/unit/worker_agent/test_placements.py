"""Fetching, installing and evicting of engines that are placed on a worker."""

import asyncio
import os
from collections import Counter
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from synergai.domain import EngineName
from synergai.errors import Overloaded, Unavailable
from synergai.models.directories import ModelDirectories
from synergai.models.manifest import Manifest, ManifestFile, content_digest, read_manifest
from synergai.runtime.clock import Backoff
from synergai.v1 import common_pb2, hub_pb2
from tests.waiting import until
from worker_agent.placements.fetched import FetchedEngines
from worker_agent.placements.reconciler import Reconciler

STATES = {
    common_pb2.PLACED_STATE_FETCHING: "fetching",
    common_pb2.PLACED_STATE_INSTALLED: "installed",
    common_pb2.PLACED_STATE_FAILED: "failed",
    common_pb2.PLACED_STATE_CONFLICT: "conflict",
}
MODEL = bytes(range(200))


class Gateway:
    """A gateway's store, which can be made to fail.

    Attributes:
        contents: its content by SHA-256.
        cut_at: bytes of a call after which it is cut off, call by call; none is not.
        sent: bytes sent of each content.
        offsets: offsets of the calls for models.
    """

    def __init__(self) -> None:
        self.contents: dict[str, bytes] = {}
        self.cut_at: list[int] = []
        self.sent: Counter[str] = Counter()
        self.offsets: list[int] = []
        self.chunk = 64

    def version(self, name: str, version: int, model: bytes = MODEL) -> hub_pb2.Placement:
        files = {"labels/en.txt": b"cat\n", "model.onnx": model}
        entries = tuple(
            ManifestFile(path, content_digest(data), len(data)) for path, data in files.items()
        )
        data = Manifest(backend="onnxruntime", model="model.onnx", files=entries).encode()
        for each in (data, *files.values()):
            self.contents[content_digest(each)] = each
        size = sum(map(len, files.values()))
        return hub_pb2.Placement(
            engine=name, version=version, digest=content_digest(data), size=size
        )

    async def fetch(self, sha256: str, offset: int) -> AsyncGenerator[bytes, None]:
        if sha256 not in self.contents:
            raise Unavailable("the store cannot be reached")
        data = self.contents[sha256]
        cut = len(data)
        if len(data) > 64 and not data.startswith(b"{"):
            self.offsets.append(offset)
            if self.cut_at:
                cut = offset + self.cut_at.pop(0)
        while offset < min(len(data), cut):
            chunk = data[offset : min(offset + self.chunk, cut)]
            offset += len(chunk)
            self.sent[sha256] += len(chunk)
            yield chunk
        if cut < len(data):
            raise Unavailable("the connection was lost")


class Worker:
    """A worker's state directory and its reconciler."""

    def __init__(self, folder: Path, gateway: Gateway, budget: int = 0, free: int = 0) -> None:
        self.folder = folder
        self.gateway = gateway
        self.fetched = FetchedEngines(folder / "fetched", budget, free)
        self.reports: list[common_pb2.Placed] = []
        self.own: dict[EngineName, Path] = {}
        self._reported = asyncio.Event()
        self.looks = 0
        self.installed: list[EngineName] = []
        self.reconciler = Reconciler(
            self.fetched,
            self._find_own,
            self._report,
            self.installed.append,
            Backoff(initial_s=0.001, max_s=0.001),
        )
        self.task: asyncio.Task[None] | None = None

    def _find_own(self) -> dict[EngineName, Path]:
        self.looks += 1
        return self.own

    def _report(self, placed: common_pb2.Placed) -> None:
        self.reports.append(placed)
        self._reported.set()

    async def place(self, *placements: hub_pb2.Placement) -> list[str]:
        """Place versions; return the state of each once it is installed, failed or in conflict."""
        self.reports.clear()
        self.reconciler.set_placements(placements, self.gateway.fetch)
        if self.task is None:
            self.task = asyncio.create_task(self.reconciler.run())
        keys = [(each.engine, each.version) for each in placements]
        async with asyncio.timeout(30):
            while True:
                states = self.states()
                if all(states.get(key, "fetching") != "fetching" for key in keys):
                    break
                self._reported.clear()
                await self._reported.wait()
        return [states[key] for key in keys]

    def states(self) -> dict[tuple[str, int], str]:
        return {(each.engine, each.version): STATES[each.state] for each in self.reports}

    async def until(self, *wanted: str) -> None:
        """Wait until the engines of the model directory are these."""
        await until(lambda: self.engines() == list(wanted))

    def engines(self) -> list[str]:
        root = self.folder / "fetched"
        try:
            return sorted(path.relative_to(root).as_posix() for path in root.glob("[!.]*/*"))
        except FileNotFoundError:  # a folder was removed meanwhile
            return ["changing"]

    async def stop(self) -> None:
        if self.task is not None:
            self.task.cancel()
            await asyncio.wait([self.task])


@pytest.fixture
def gateway() -> Gateway:
    return Gateway()


@pytest.fixture
async def worker(tmp_path: Path, gateway: Gateway) -> AsyncGenerator[Worker]:
    worker = Worker(tmp_path, gateway)
    yield worker
    await worker.stop()


async def test_placed_version_is_fetched_and_installed_with_all_its_files(
    tmp_path: Path, worker: Worker, gateway: Gateway
) -> None:
    assert await worker.place(gateway.version("net", 2)) == ["installed"]
    folder = ModelDirectories(tmp_path / "models", tmp_path / "fetched").folder(EngineName("net/2"))
    assert (folder / "model.onnx").read_bytes() == MODEL
    assert (folder / "labels" / "en.txt").read_bytes() == b"cat\n"
    assert {STATES[each.state] for each in worker.reports} == {"fetching", "installed"}
    assert worker.installed == ["net/2"]
    assert worker.reports[-1].fetched
    sent = gateway.sent.total()
    assert await worker.place(gateway.version("net", 2)) == ["installed"]
    assert gateway.sent.total() == sent
    assert worker.reports[-1].fetched


async def test_smallest_versions_are_fetched_first(worker: Worker, gateway: Gateway) -> None:
    sizes = {"middle": 2000, "large": 3000, "small": 1000}
    await worker.place(*(gateway.version(name, 1, b"x" * size) for name, size in sizes.items()))
    installed = [each.engine for each in worker.reports if STATES[each.state] == "installed"]
    assert installed == ["small", "middle", "large"]


async def test_model_directory_is_read_once_for_all_versions(
    worker: Worker, gateway: Gateway
) -> None:
    await worker.place(*(gateway.version("net", number) for number in range(1, 6)))
    assert worker.looks == 1


@settings(max_examples=25, deadline=None)
@given(cuts=st.lists(st.integers(0, len(MODEL)), max_size=4), chunk=st.integers(1, 300))
def test_fetch_continues_at_the_byte_where_it_stopped(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[int], chunk: int
) -> None:
    async def run() -> None:
        gateway = Gateway()
        gateway.chunk = chunk
        gateway.cut_at = list(cuts)
        placement = gateway.version("net", 1)
        worker = Worker(tmp_path_factory.mktemp("worker"), gateway)
        async with asyncio.timeout(30):
            await worker.place(placement)
            await until(lambda: worker.states()["net", 1] == "installed")
        assert gateway.sent[content_digest(MODEL)] == len(MODEL)
        assert gateway.offsets == sorted(gateway.offsets)
        await worker.stop()

    asyncio.run(run())


async def test_fetch_continues_after_a_restart_of_the_agent(
    tmp_path: Path, gateway: Gateway
) -> None:
    gateway.cut_at = [50]
    first = Worker(tmp_path, gateway)
    placement = gateway.version("net", 1)
    assert await first.place(placement) == ["failed"]
    await first.stop()
    assert "the connection was lost" in [each.fault for each in first.reports]
    second = Worker(tmp_path, gateway)
    assert await second.place(placement) == ["installed"]
    assert gateway.sent[content_digest(MODEL)] == len(MODEL)
    await second.stop()


async def test_damaged_content_is_fetched_again_and_never_installed(
    worker: Worker, gateway: Gateway
) -> None:
    placement = gateway.version("net", 1)
    gateway.contents[content_digest(MODEL)] = b"x" * len(MODEL)
    assert await worker.place(placement) == ["failed"]
    assert "damaged on its way" in worker.reports[-1].fault
    assert worker.engines() == []
    gateway.contents[content_digest(MODEL)] = MODEL
    await worker.until("net/1")


async def test_manifest_that_cannot_be_read_fails_its_version_only(
    worker: Worker, gateway: Gateway
) -> None:
    data = b'{"format":2}'  # of a later release
    gateway.contents[content_digest(data)] = data
    newer = hub_pb2.Placement(engine="a", version=1, digest=content_digest(data), size=1)
    assert await worker.place(newer) == ["failed"]
    assert await worker.place(newer, gateway.version("b", 1)) == ["failed", "installed"]
    assert "the manifest" in next(each.fault for each in worker.reports if each.engine == "a")


async def test_version_that_is_no_longer_placed_is_removed_with_its_content(
    worker: Worker, gateway: Gateway
) -> None:
    first, second = gateway.version("net", 1), gateway.version("net", 2, b"other")
    await worker.place(first, second)
    await worker.place(second)
    await worker.until("net/2")
    await until(lambda: len(worker.fetched.contents.sizes()) == 3)
    await worker.place()
    await worker.until()


async def test_files_of_an_engine_stay_as_they_are_when_another_one_with_the_same_goes(
    worker: Worker, gateway: Gateway
) -> None:
    one, two = gateway.version("one", 1), gateway.version("two", 1)
    await worker.place(one, two)
    [model] = (worker.folder / "fetched" / "one").rglob("model.onnx")
    os.utime(model, (1, 1))
    await worker.place(one)
    assert model.stat().st_mtime == 1  # otherwise, the agent loads it again


async def test_pushed_again_with_other_files_a_version_is_replaced(
    tmp_path: Path, worker: Worker, gateway: Gateway
) -> None:
    await worker.place(gateway.version("net", 1))
    assert await worker.place(gateway.version("net", 1, b"other")) == ["installed"]
    assert (tmp_path / "fetched" / "net" / "1" / "model.onnx").read_bytes() == b"other"


async def test_what_a_killed_agent_was_about_to_install_leaves_the_disk(
    tmp_path: Path, worker: Worker, gateway: Gateway
) -> None:
    left = [tmp_path / "fetched" / name for name in (".new/a", ".old/a", ".digests/.net@1-x")]
    for each in left:
        each.parent.mkdir(parents=True, exist_ok=True)
        each.write_text("content")
    await worker.place(gateway.version("net", 1))
    await until(lambda: not any(each.exists() for each in left))
    assert worker.fetched.installed().keys() == {"net"}


@pytest.mark.parametrize(("model", "state"), [(MODEL, "installed"), (b"mine", "conflict")])
async def test_version_in_the_users_directory_is_compared_and_left_alone(
    tmp_path: Path, worker: Worker, gateway: Gateway, model: bytes, state: str
) -> None:
    own = tmp_path / "own.onnx"
    own.write_bytes(model)
    worker.own[EngineName("net/2")] = own
    assert await worker.place(gateway.version("net", 2)) == [state]
    assert not worker.reports[-1].fetched
    assert worker.engines() == []
    assert content_digest(MODEL) not in gateway.sent
    worker.own.clear()
    worker.reconciler.look_again()
    await worker.until("net/2")


async def test_changed_placements_stop_a_fetch_in_progress(
    worker: Worker, gateway: Gateway
) -> None:
    big, small = gateway.version("big", 1), gateway.version("small", 1, b"small")
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def slow(sha256: str, offset: int) -> AsyncGenerator[bytes, None]:
        async for chunk in gateway.fetch(sha256, offset):
            yield chunk
            if sha256 == content_digest(MODEL):
                begun.set()
                await go_on.wait()

    worker.reconciler.set_placements([big], slow)
    worker.task = asyncio.create_task(worker.reconciler.run())
    await asyncio.wait_for(begun.wait(), 30)
    worker.reconciler.set_placements([small], gateway.fetch)
    go_on.set()
    await worker.until("small/1")
    assert gateway.sent[content_digest(MODEL)] <= 2 * gateway.chunk


def stored(fetched: FetchedEngines, name: str, size: int, at: float) -> str:
    data = name.encode() * size
    sha256 = content_digest(data)
    fetched.contents.append(sha256, 0, data, len(data))
    assert fetched.contents.verify(sha256, len(data))
    path = fetched.contents.complete(sha256)
    assert path is not None
    os.utime(path, (at, at))
    return sha256


def test_least_recently_used_content_is_evicted_first_and_never_what_is_placed(
    tmp_path: Path,
) -> None:
    fetched = FetchedEngines(tmp_path, budget_bytes=100, keep_free_bytes=0)
    digests = {name: stored(fetched, name, 20, at) for at, name in enumerate("bca", 1)}
    placed = {digests["b"]}
    fetched.make_room({"0" * 64: 40}, placed)
    assert len(fetched.contents.sizes()) == 3
    fetched.make_room({"0" * 64: 60}, placed)
    assert set(fetched.contents.sizes()) == {digests["a"], digests["b"]}
    with pytest.raises(Overloaded, match="--disk-budget is 100"):
        fetched.make_room({"0" * 64: 81}, placed)
    assert set(fetched.contents.sizes()) == {digests["b"]}


def test_full_disk_is_noticed_before_the_fetch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched = FetchedEngines(tmp_path, keep_free_bytes=1000)
    monkeypatch.setattr(fetched.contents, "free_bytes", lambda: 1500)
    fetched.make_room({"0" * 64: 500}, ())
    with pytest.raises(Overloaded, match="free space"):
        fetched.make_room({"0" * 64: 501}, ())


async def test_full_disk_fails_the_version_and_is_tried_again(
    worker: Worker, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(worker.fetched.contents, "free_bytes", lambda: 0)
        patch.setattr(worker.fetched, "_keep_free_bytes", 10)
        assert await worker.place(gateway.version("net", 1)) == ["failed"]
        assert "free space" in worker.reports[-1].fault
    await worker.until("net/1")


async def test_budget_keeps_what_is_no_longer_placed_while_there_is_room(
    tmp_path: Path, gateway: Gateway
) -> None:
    worker = Worker(tmp_path, gateway, budget=10_000)
    first, second = gateway.version("net", 1), gateway.version("net", 2, b"other")
    await worker.place(first)
    await worker.place(second)
    await worker.until("net/2")
    sent = gateway.sent[content_digest(MODEL)]
    await worker.place(first)  # back again, without fetching
    await worker.until("net/1")
    assert gateway.sent[content_digest(MODEL)] == sent
    await worker.stop()


def test_killed_installation_leaves_nothing_that_is_served(
    tmp_path: Path, gateway: Gateway
) -> None:
    placement = gateway.version("net", 1)
    fetched = FetchedEngines(tmp_path / "fetched")
    manifest = read_manifest(gateway.contents[placement.digest])
    with pytest.raises(FileNotFoundError):
        fetched.install(EngineName("net"), placement.digest, manifest)
    assert fetched.installed() == {}
    assert ModelDirectories(tmp_path, tmp_path / "fetched").of(EngineName("net")) == tmp_path
    for sha256 in manifest.contents:
        data = gateway.contents[sha256]
        fetched.contents.append(sha256, 0, data, len(data))
        fetched.contents.verify(sha256, len(data))
    fetched.install(EngineName("net"), placement.digest, manifest)
    assert fetched.installed() == {"net": placement.digest}
    # Killed between the folder and its digest: it is installed again.
    (tmp_path / "fetched" / ".digests" / "net@1").unlink()
    assert fetched.installed() == {"net": ""}
    fetched.remove(EngineName("net"))
    assert fetched.installed() == {}
