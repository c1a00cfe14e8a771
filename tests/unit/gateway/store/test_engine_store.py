"""The store of engines on file systems in memory and on disk."""

import asyncio
import errno
import hashlib
import os
import secrets
import threading
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import Mock

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.entry.access.caller import Caller, Grant, Role
from gateway.hub.store.files import Files, FsspecFiles, LocalFiles, Threads, open_files
from gateway.hub.store.store import GATEWAY, EngineStore
from gateway.hub.store.transfers import ABANDONED_S, OWN, Push, Pushes, PushKey
from gateway.journal.store import Deposed
from synergai.domain import EngineName
from synergai.errors import (
    Conflict,
    EngineUnusable,
    InvalidInput,
    NotFound,
    Overloaded,
    Unavailable,
)
from synergai.models.contents import KEPT_S, Contents
from synergai.models.manifest import Manifest, ManifestFile, content_digest, read_manifest

MODEL, SAMPLES = b"model" * 100, b"samples" * 10


def operator(name: str, *engines: str) -> Caller:
    return Caller(name, "", (Grant(to=("*",), roles=frozenset({Role.OPERATE}), engines=engines),))


ME = operator("me", "*")
WORKER = operator("worker w", "a")


class Folder(NamedTuple):
    """An engine's folder: its files, and its manifest."""

    files: dict[str, bytes]
    manifest: bytes

    @property
    def contents(self) -> dict[str, bytes]:
        return {content_digest(data): data for data in self.files.values()}


def folder(model: bytes = MODEL, samples: bytes = SAMPLES) -> Folder:
    files = {"model.onnx": model, "samples.npz": samples}
    entries = (ManifestFile(name, content_digest(data), len(data)) for name, data in files.items())
    manifest = Manifest(backend="onnxruntime", model="model.onnx", files=tuple(entries))
    return Folder(files, manifest.encode())


class Broken:
    """Files that fail with an error while it is set."""

    def __init__(self, files: Files) -> None:
        self.files = files
        self.error: Exception | None = None

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.files, name)

        def call(*arguments: object) -> Any:
            if self.error is not None:
                raise self.error
            return method(*arguments)

        return call


class Fixture:
    """A store that can be started again on the same storage."""

    def __init__(self, url: str, state: Path) -> None:
        self.url = url
        self.state = state
        self.files = Broken(open_files(url, state))
        self.uploads = state / "uploads"
        self.store: EngineStore
        self.is_deposed = False

    async def confirm(self) -> None:
        if self.is_deposed:
            raise Deposed("another")

    async def start(self, keep_free: int = 0) -> EngineStore:
        self.store = EngineStore(
            self.files,
            self.uploads,
            location=self.url,
            remembered=self.state / "store-id",
            keep_free_bytes=keep_free,
            confirm=self.confirm,
        )
        await self.store.load()
        return self.store


@pytest.fixture(
    params=["memory://store-{}", "local://{folder}/local", "dir::file://{folder}/d", ""]
)
async def at(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Fixture]:
    url: str = request.param.format(secrets.token_hex(4), folder=tmp_path)
    fixture = Fixture(url, tmp_path)
    yield fixture
    await fixture.store.close()


@pytest.fixture
async def local(tmp_path: Path) -> AsyncIterator[Fixture]:
    fixture = Fixture("", tmp_path)
    yield fixture
    await fixture.store.close()


def key(engine: str, version: int, manifest: bytes, pusher: Caller = ME) -> PushKey:
    return PushKey(pusher.name, engine, version, content_digest(manifest))


async def upload(
    store: EngineStore, engine: str, version: int, pushed: Folder, pusher: Caller = ME
) -> str:
    digest, _, missing = await store.open(pusher, engine, version, pushed.manifest)
    for each in missing:
        await store.append(
            key(engine, version, pushed.manifest, pusher),
            each.sha256,
            each.received,
            pushed.contents[each.sha256][each.received :],
        )
    return digest


async def push(
    store: EngineStore, engine: str = "a", version: int = 1, pushed: Folder | None = None
) -> str:
    digest = await upload(store, engine, version, pushed or folder())
    await store.publish(ME, engine, version, digest, ())
    return digest


def names(fixture: Fixture) -> set[str]:
    return {name.partition("/")[0] for name in fixture.files.sizes("")}


async def test_pushed_version_is_read_back_also_after_a_restart(at: Fixture) -> None:
    digest = await push(await at.start())
    for store in (at.store, await at.start()):
        stored = store.get("a", 1)
        assert (stored.digest, stored.pushed_by) == (digest, "me")
        assert await store.read(digest, 0, 1 << 20) == folder().manifest
        for sha256, data in folder().contents.items():
            assert await store.read(sha256, 3, 7) == data[3:10]
            assert store.content_size(sha256) == len(data)


async def test_same_digest_again_is_a_no_op_and_another_one_is_refused(at: Fixture) -> None:
    store = await at.start()
    digest = await push(store)
    assert await store.open(ME, "a", 1, folder().manifest) == (digest, True, [])
    before = store.get("a", 1)
    assert await store.publish(ME, "a", 1, digest, ()) == before
    with pytest.raises(Conflict, match="engines remove"):
        await store.open(ME, "a", 1, folder(b"other").manifest)
    await store.remove("a", 1)
    await push(store, pushed=folder(b"other"))


async def test_content_is_shared_and_removed_with_the_last_version_that_has_it(at: Fixture) -> None:
    store = await at.start()
    await push(store)
    _, _, missing = await store.open(ME, "a", 2, folder(b"new").manifest)
    assert [each.sha256 for each in missing] == [content_digest(b"new")]  # not the samples
    await push(store, version=2, pushed=folder(b"new"))
    freed = await store.remove("a", 1)
    assert freed == len(MODEL) + len(folder().manifest)
    with pytest.raises(NotFound):
        await store.read(content_digest(MODEL), 0, 1)
    assert await store.read(content_digest(SAMPLES), 0, 1000) == SAMPLES
    await store.remove("a", 2)
    assert (store.used_bytes, names(at)) == (0, {"store-id"})


async def test_nothing_is_visible_before_all_content_is_there(at: Fixture) -> None:
    store = await at.start()
    digest, _, missing = await store.open(ME, "a", 1, folder().manifest)
    with pytest.raises(EngineUnusable, match="2 files"):
        await store.publish(ME, "a", 1, digest, ())
    assert store.versions == {}
    sha256 = missing[0].sha256
    await store.append(key("a", 1, folder().manifest), sha256, 0, folder().contents[sha256])
    with pytest.raises(EngineUnusable, match="1 files"):
        await store.publish(ME, "a", 1, digest, ())
    assert (await at.start()).versions == {}


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(cuts=st.lists(st.integers(0, len(MODEL)), max_size=4), restart=st.booleans())
def test_upload_continues_at_any_byte(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[int], *, restart: bool
) -> None:
    async def run() -> None:
        fixture = Fixture("", tmp_path_factory.mktemp("store"))
        store = await fixture.start()
        pushed, model = folder(), content_digest(MODEL)
        at = key("a", 1, pushed.manifest)
        sent = 0
        for cut in sorted(cuts):
            _, _, missing = await store.open(ME, "a", 1, pushed.manifest)
            [received] = [each.received for each in missing if each.sha256 == model] or [len(MODEL)]
            assert received == sent
            await store.append(at, model, received, MODEL[received:cut])
            sent = cut
            if restart:
                await store.close()
                store = await fixture.start()
        digest = await push(store)
        assert await store.read(model, 0, 10_000) == MODEL
        assert store.get("a", 1).digest == digest
        await store.close()

    asyncio.run(run())


async def test_empty_file_is_complete_without_an_upload(local: Fixture) -> None:
    store = await local.start()
    pushed = folder(samples=b"")
    _, _, missing = await store.open(ME, "a", 1, pushed.manifest)
    assert [each.sha256 for each in missing] == [content_digest(MODEL)]
    await push(store, "a", 1, pushed)
    assert await store.read(content_digest(b""), 0, 10) == b""


async def test_upload_with_more_bytes_or_at_another_offset_is_refused(local: Fixture) -> None:
    store = await local.start()
    await store.open(ME, "a", 1, folder().manifest)
    at, model = key("a", 1, folder().manifest), content_digest(MODEL)
    await store.append(at, model, 0, MODEL[:10])
    with pytest.raises(Unavailable, match="at 10 bytes"):
        await store.append(at, model, 0, MODEL[:10])
    with pytest.raises(InvalidInput, match="more than"):
        await store.append(at, model, 10, MODEL)
    other = key("a", 2, folder().manifest)
    for unknown in ((at, "0" * 64, 0, b"x"), (at, "../x", 0, b"x"), (other, model, 10, MODEL[10:])):
        with pytest.raises(NotFound):
            await store.append(*unknown)


@pytest.mark.parametrize(
    ("engine", "version"), [("../a", 1), ("", 1), (".a", 1), ("a/b", 1), ("a", 0), ("a", 1 << 31)]
)
async def test_names_and_versions_are_validated(local: Fixture, engine: str, version: int) -> None:
    store = await local.start()
    with pytest.raises(InvalidInput):
        await store.open(ME, engine, version, folder().manifest)


async def test_placement_is_checked_before_anything_is_uploaded(local: Fixture) -> None:
    store = await local.start()
    with pytest.raises(InvalidInput, match="does not select"):
        await store.open(ME, "a", 1, folder().manifest, ["class=a,colour=red"])


async def test_uploads_leave_space_on_the_disk(
    local: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await local.start(keep_free=1000)
    monkeypatch.setattr(Contents, "free_bytes", lambda _: 1300)
    with pytest.raises(Overloaded, match="engines remove"):
        await store.open(ME, "a", 1, folder().manifest)
    await store.open(ME, "a", 1, folder(b"x").manifest)


async def test_full_disk_is_reported_and_harms_nothing(
    at: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await at.start()
    await push(store)
    new = folder(b"new")
    full = OSError(errno.ENOSPC, "No space left on device")
    digest = await upload(store, "a", 2, new)
    at.files.error = full
    with pytest.raises(Overloaded, match="engines remove"):
        await store.publish(ME, "a", 2, digest, ())
    at.files.error = None
    assert list(store.versions) == [("a", 1)]
    assert store.fault == ""
    await store.publish(ME, "a", 2, digest, ())
    newer = folder(b"newer")
    await store.open(ME, "a", 3, newer.manifest)
    with monkeypatch.context() as patch:
        patch.setattr(Contents, "append", Mock(side_effect=full))
        with pytest.raises(Overloaded):
            await store.append(key("a", 3, newer.manifest), content_digest(b"newer"), 0, b"newer")
    await push(store, version=3, pushed=newer)


async def test_store_that_vanishes_is_unavailable_until_it_returns(at: Fixture) -> None:
    store = await at.start()
    await push(store)
    for error in (OSError(errno.EIO, "Input/output error"), Unavailable("cannot be reached")):
        at.files.error = error
        for call in (store.read(content_digest(MODEL), 0, 1), store.remove("a", 1)):
            with pytest.raises(Unavailable):
                await call
        assert store.fault
        assert list(store.versions) == [("a", 1)]
        with pytest.raises(Unavailable):
            await at.start()
        with pytest.raises(Unavailable, match="not available"):
            at.store.get("a", 1)
        await at.store.close()
        at.files.error = None
        assert await store.read(content_digest(MODEL), 0, 5) == b"model"
        assert store.fault == ""
    at.store = store


async def test_empty_storage_in_place_of_the_one_used_before_is_not_taken(at: Fixture) -> None:
    await push(await at.start())
    await at.store.close()
    at.files.files.remove("store-id")
    with pytest.raises(Unavailable, match="mounted"):
        await at.start()
    (at.state / "store-id").unlink()
    await at.start()


async def test_nothing_changes_in_another_storage_than_the_one_in_use(at: Fixture) -> None:
    store = await at.start()
    await push(store)
    own = at.files.files.read("store-id")
    before = at.files.sizes("")
    at.files.files.remove("store-id")
    for call in (
        push(store, version=2),
        store.set_placement(ME, "a", 1, ("w1",)),
        store.remove("a", 1),
    ):
        with pytest.raises(Unavailable, match="mounted"):
            await call
        assert "mounted" in store.fault
    assert at.files.sizes("") == {name: before[name] for name in before if name != "store-id"}
    assert list(store.versions) == [("a", 1)]
    at.files.files.write("store-id", own)
    await push(store, version=2)
    assert store.fault == ""


async def test_gateway_that_no_longer_leads_changes_nothing(at: Fixture) -> None:
    store = await at.start()
    await push(store)
    digest = await upload(store, "b", 1, folder(b"new"))
    before = names(at)
    at.is_deposed = True
    for change in (
        store.publish(ME, "b", 1, digest, []),
        store.set_placement(ME, "a", 1, ["worker=x"]),
        store.remove("a", 1),
    ):
        with pytest.raises(Deposed):
            await change
    assert names(at) == before
    assert store.get("a", 1).placement == ()


async def test_content_that_a_crash_has_left_is_removed_at_the_start(at: Fixture) -> None:
    await push(await at.start())
    at.files.write("content/ab/" + "ab" * 32, b"garbage")
    await at.start()
    assert not any("garbage" in name or name.endswith("ab" * 32) for name in at.files.sizes(""))
    assert await at.store.read(content_digest(MODEL), 0, 5) == b"model"


async def test_damage_of_one_version_does_not_affect_the_others(at: Fixture) -> None:
    store = await at.start()
    await push(store)
    await push(store, "b", 1, folder(b"b" * 50))
    await push(store, "c", 1, folder(b"c" * 50))
    at.files.write("engines/b/1.json", b"{")
    sha256 = content_digest(b"c" * 50)
    at.files.remove(f"content/{sha256[:2]}/{sha256}")
    store = await at.start()
    assert [key[0] for key in store.versions] == ["a", "c"]
    assert "push the version again" in store.get("c", 1).fault
    await push(store, "c", 1, folder(b"c" * 50))
    assert store.get("c", 1).fault == ""


async def test_version_that_the_gateway_has_made_belongs_to_who_places_it(at: Fixture) -> None:
    store = await at.start()
    digest = await upload(store, "a", 1, folder(), GATEWAY)
    await store.publish(GATEWAY, "a", 1, digest, ("w1",))
    await store.set_placement(GATEWAY, "a", 1, ("w2",))
    assert store.get("a", 1).pushed_by == GATEWAY.name
    await store.set_placement(ME, "a", 1, ("w2",))
    assert (await at.start()).get("a", 1).pushed_by == ME.name


async def copy(store: EngineStore) -> None:
    """Store an engine of the model directory of worker w."""
    digest = await upload(store, "a", 1, folder(), WORKER)
    await store.publish(WORKER, "a", 1, digest, ("worker=w",))


async def test_copy_from_a_worker_gives_way_to_what_a_client_pushes_or_places(
    at: Fixture,
) -> None:
    store = await at.start()
    for pushed in (folder(), folder(b"another model")):
        await copy(store)
        await store.set_placement(GATEWAY, "a", 1, ("w", "x"))
        assert store.get("a", 1).source == "w"
        await push(store, "a", 1, pushed)
        found = (await at.start()).get("a", 1)
        assert (found.pushed_by, found.source, found.placement) == ("me", "", ())
        store = at.store
        files = store.versions["a", 1].manifest.size + len(pushed.manifest)
        assert store.used_bytes == files
        await store.remove("a", 1)
    await copy(store)
    await store.set_placement(ME, "a", 1, ("worker=x",))
    assert (store.get("a", 1).pushed_by, store.get("a", 1).source) == ("me", "")


@pytest.mark.parametrize("own", [WORKER, GATEWAY], ids=["worker", "gateway"])
async def test_version_of_a_client_stays_as_it_is_if_the_gateway_stores_the_same(
    at: Fixture, own: Caller
) -> None:
    store = await at.start()
    digest = await upload(store, "a", 1, folder(), own)
    await push(store)
    for _ in range(2):
        await store.publish(own, "a", 1, digest, ("worker=w",))
    await store.set_placement(GATEWAY, "a", 1, ("w",))
    found = (await at.start()).get("a", 1)
    assert (found.pushed_by, found.placement) == ("me", ())


async def test_copy_from_a_worker_vouches_for_no_file_and_no_version(at: Fixture) -> None:
    store, name = await at.start(), EngineName("a")
    await copy(store)
    assert store.model_of(name) == content_digest(MODEL)
    assert (store.files_of(name), list(store.versions_of("a"))) == ((), [])
    await push(store)
    assert content_digest(MODEL) in store.files_of(name)
    assert list(store.versions_of("a")) == [1]
    await store.remove("a", 1)
    assert store.model_of(name) == ""


async def test_worker_copies_no_content_that_it_does_not_send(at: Fixture) -> None:
    store = await at.start()
    await push(store, "secret")
    _, stored, missing = await store.open(WORKER, "a", 1, folder().manifest)
    assert (stored, len(missing)) == (False, 2)


async def test_placement_is_kept_and_changes_tell_the_followers(at: Fixture) -> None:
    store = await at.start()
    calls: list[int] = []
    store.follow(lambda: calls.append(len(store.versions)))
    digest = await upload(store, "a", 1, folder())
    await store.publish(ME, "a", 1, digest, ("label=x, class=y", "edge-1"))
    assert store.get("a", 1).placement == ("class=y,label=x", "worker=edge-1")
    await store.publish(ME, "a", 1, digest, ())  # again, which changes nothing
    assert store.get("a", 1).placement == ("class=y,label=x", "worker=edge-1")
    await store.publish(ME, "a", 1, digest, ("edge-2",))
    assert (await at.start()).get("a", 1).placement == ("worker=edge-2",)
    store = at.store
    store.follow(lambda: calls.append(len(store.versions)))
    await store.set_placement(ME, "a", 1, ())
    with pytest.raises(InvalidInput, match="select"):
        await store.set_placement(ME, "a", 1, ("colour=red",))
    await store.remove("a", 1)
    assert calls == [1, 1, 1, 0]


async def test_change_completes_although_its_caller_has_gone(local: Fixture) -> None:
    store = await local.start()
    digest = await upload(store, "a", 1, folder())
    publishing = asyncio.ensure_future(store.publish(ME, "a", 1, digest, ()))
    await asyncio.sleep(0)
    publishing.cancel()
    await asyncio.wait([publishing])
    await store.close()
    assert list(store.versions) == [("a", 1)]


async def test_uploads_of_the_gateway_do_not_outlast_it(tmp_path: Path) -> None:
    threads, model, manifest = Threads(1, "test", "test"), content_digest(MODEL), folder().manifest
    clients = key("a", 1, manifest)
    killed = Pushes(tmp_path / "uploads", threads, keep_free_bytes=0)
    for at in (clients, clients._replace(pusher=OWN)):
        await killed.begin_push(at, Push(manifest, read_manifest(manifest)), {})
        await killed.append(at, model, 0, MODEL[:10])
    await killed.expire()
    assert len(list((tmp_path / "uploads").iterdir())) == 2
    await Pushes(tmp_path / "uploads", threads).expire()
    assert [each.name for each in (tmp_path / "uploads").iterdir()] == [clients.folder]
    await threads.close()


async def test_uploads_that_nobody_continues_are_removed(tmp_path: Path) -> None:
    now, threads, model = 0.0, Threads(1, "test", "test"), content_digest(MODEL)
    pushes = Pushes(tmp_path / "uploads", threads, keep_free_bytes=0, clock=lambda: now)
    at = key("a", 1, folder().manifest)
    await pushes.expire()
    await pushes.begin_push(at, Push(folder().manifest, read_manifest(folder().manifest)), {})
    await pushes.append(at, model, 0, MODEL[:10])
    part = tmp_path / "uploads" / at.folder / model
    for age_s, continued_s in ((KEPT_S - 5, ABANDONED_S + 1), (KEPT_S + 5, 0)):
        os.utime(part, 2 * (time.time() - age_s,))
        now += continued_s
        await pushes.expire()
        assert part.exists()
        await pushes.begin_push(at, Push(folder().manifest, read_manifest(folder().manifest)), {})
    now += ABANDONED_S + 1
    await pushes.expire()
    assert list((tmp_path / "uploads").iterdir()) == []
    await threads.close()


def test_url_that_cannot_be_used_is_refused_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="nonsense"):
        open_files("nonsense://x", tmp_path)
    assert isinstance(open_files("", tmp_path), LocalFiles)
    assert isinstance(open_files("memory://x", tmp_path), FsspecFiles)


class LibraryError(Exception):
    """An error of a file system's library, with a number that is not the system's."""

    errno = 1


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (LibraryError(), Unavailable),
        (OSError("timed out"), Unavailable),
        (OSError(errno.ENOSPC, "full"), OSError),
        (FileNotFoundError("gone"), FileNotFoundError),
    ],
)
def test_error_of_a_library_means_that_the_store_cannot_be_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, raised: type[Exception]
) -> None:
    files = open_files("memory://x", tmp_path)
    assert isinstance(files, FsspecFiles)
    monkeypatch.setattr(files._fs, "cat_file", Mock(side_effect=error))
    with pytest.raises(raised) as found:
        files.read("name")
    assert type(found.value) is raised


def lying(manifest: bytes, size: int) -> bytes:
    """Return a manifest of only the model of another one, with a wrong size."""
    [model, *_] = msgspec.json.decode(manifest, type=Manifest).files
    file = ManifestFile(model.path, model.sha256, size)
    return Manifest(backend="onnxruntime", model=model.path, files=(file,)).encode()


@pytest.mark.parametrize("size", [1, len(MODEL) + 1])
async def test_wrong_size_in_a_manifest_does_not_harm_other_versions(
    local: Fixture, size: int
) -> None:
    store = await local.start()
    await push(store)
    with pytest.raises(InvalidInput, match="does not have"):
        await store.open(ME, "intruder", 1, lying(folder().manifest, size))
    store = await local.start()
    assert store.get("a", 1).fault == ""


@pytest.mark.parametrize("size", [1, len(MODEL) + 1])
@pytest.mark.parametrize("engines", ["*", "intruder"])
async def test_wrong_size_of_content_that_is_published_meanwhile_is_refused(
    local: Fixture, size: int, engines: str
) -> None:
    store, intruder = await local.start(), operator("intruder", engines)
    digest, _, _ = await store.open(intruder, "intruder", 1, lying(folder().manifest, size))
    await push(store)
    with pytest.raises((InvalidInput, EngineUnusable), match=r"does not have|not uploaded"):
        await store.publish(intruder, "intruder", 1, digest, ())
    assert (await local.start()).get("a", 1).fault == ""


ALICE, BOB, CAROL = operator("alice", "a"), operator("bob", "b"), operator("carol", "a", "b")


@pytest.mark.parametrize("stage", ["unfinished", "finished", "published"])
@pytest.mark.parametrize(
    ("other", "engine", "may_read"),
    [
        (ALICE, "a", True),
        (BOB, "b", False),
        (CAROL, "a", True),
        (CAROL, "b", True),
        (operator("alice-2", "a"), "a", True),
    ],
)
async def test_content_of_a_push_is_neither_damaged_nor_taken_by_naming_its_digest(
    local: Fixture, stage: str, other: Caller, engine: str, *, may_read: bool
) -> None:
    store, pushed, model = await local.start(), folder(), content_digest(MODEL)
    own, same = key("a", 1, pushed.manifest, ALICE), (other, engine) == (ALICE, "a")
    await store.open(ALICE, "a", 1, pushed.manifest)
    await store.append(own, model, 0, MODEL[:10])
    if stage != "unfinished":
        await upload(store, "a", 1, pushed, ALICE)
    if stage == "published":
        await store.publish(ALICE, "a", 1, own.digest, ())

    digest, stored, missing = await store.open(other, engine, 1, pushed.manifest)
    skipped = stage == "published" and may_read
    assert stored == (skipped and engine == "a")
    if skipped:
        assert missing == []
    elif not same:
        assert [(each.size, each.received) for each in missing] == [
            (len(data), 0) for data in pushed.contents.values()
        ]
        with pytest.raises(EngineUnusable, match="2 files"):
            await store.publish(other, engine, 1, digest, ())
        rubbish = key(engine, 1, pushed.manifest, other)
        await store.append(rubbish, model, 0, b"rubbish")
        with pytest.raises(InvalidInput, match="another digest"):
            await store.append(rubbish, model, 7, bytes(len(MODEL) - 7))
        await upload(store, engine, 1, pushed, other)

    if stage != "published":
        await upload(store, "a", 1, pushed, ALICE)
        await store.publish(ALICE, "a", 1, own.digest, ())
    await store.publish(other, engine, 1, digest, ())
    assert await store.read(model, 0, 10_000) == MODEL
    assert {each.pushed_by for each in store.versions.values()} <= {"alice", other.name}
    assert (await local.start()).get(engine, 1).fault == ""


async def test_begun_pushes_of_a_client_do_not_end_the_push_of_another(local: Fixture) -> None:
    store, model = await local.start(), content_digest(MODEL)
    await store.open(ALICE, "a", 1, folder().manifest)
    for version in range(1, 100):
        await store.open(BOB, "b", version, folder().manifest)
    await store.append(key("a", 1, folder().manifest, ALICE), model, 0, MODEL)
    with pytest.raises(NotFound):
        await store.append(key("b", 1, folder().manifest, BOB), model, 0, MODEL)


async def test_pushes_at_the_same_time_leave_the_space_of_the_journal(
    local: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await local.start(keep_free=1000)
    at = key("a", 1, folder().manifest)
    monkeypatch.setattr(Contents, "free_bytes", lambda _: 2000)
    await store.open(ME, "a", 1, folder().manifest)
    monkeypatch.setattr(Contents, "free_bytes", lambda _: 1009)  # after another push
    with pytest.raises(Overloaded, match="no room"):
        await store.append(at, content_digest(MODEL), 0, MODEL[:10])
    await store.append(at, content_digest(MODEL), 0, MODEL[:9])


def test_content_that_is_verified_twice_at_the_same_time_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contents, sha256 = Contents(tmp_path), content_digest(MODEL)
    contents.append(sha256, 0, MODEL, len(MODEL))
    both, file_digest = threading.Barrier(2), hashlib.file_digest

    def slow(*args: Any) -> Any:
        both.wait(30)
        return file_digest(*args)

    monkeypatch.setattr(hashlib, "file_digest", slow)
    with ThreadPoolExecutor(2) as threads:
        calls = [threads.submit(contents.verify, sha256, len(MODEL)) for _ in range(2)]
        assert [each.result() for each in calls] == [True, True]


def test_appends_at_the_same_time_do_not_both_succeed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contents = Contents(tmp_path)
    both, received = threading.Barrier(2), contents.received

    def slow(sha256: str) -> int:
        found = received(sha256)
        with suppress(threading.BrokenBarrierError):
            both.wait(0.2)
        return found

    def append() -> bool:
        try:
            contents.append("a" * 64, 0, b"12345", 10)
        except Unavailable:
            return False
        return True

    monkeypatch.setattr(contents, "received", slow)
    with ThreadPoolExecutor(2) as threads:
        done = [each.result() for each in [threads.submit(append) for _ in range(2)]]
    assert (sorted(done), received("a" * 64)) == ([False, True], 5)
