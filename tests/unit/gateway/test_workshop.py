"""Where the gateway cuts engines."""

import asyncio
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gateway.deployment.workshop import Workshop
from gateway.hub.store.files import LocalFiles
from gateway.hub.store.store import EngineStore
from gateway.hub.store.transfers import KEEP_FREE_BYTES
from synergai.domain import EngineName
from synergai.errors import Overloaded
from tests.unit.gateway.deployment_world import NET, stored
from tests.waiting import turns


class Store:
    """A store whose content is of zeros."""

    def __init__(self) -> None:
        self.reads = 0

    async def read(self, _sha256: str, _offset: int, size: int) -> bytes:
        self.reads += 1
        return bytes(min(size, 1000))


def names(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


async def test_engine_is_copied_if_that_leaves_room_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = KEEP_FREE_BYTES + 1999
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=free))
    shop = Workshop(cast("EngineStore", Store()), tmp_path / "workshop")
    with pytest.raises(Overloaded, match="no room for 2,000 to cut engine 'net'"):
        await shop.bring(stored(NET))
    assert not list(shop.models.rglob("model.onnx"))
    free += 1
    await shop.bring(stored(NET))
    [model] = shop.models.rglob("model.onnx")
    assert model.stat().st_size == 1000


async def test_copy_that_is_cancelled_lets_no_other_begin_before_its_thread_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = Workshop(cast("EngineStore", Store()), tmp_path)
    begun, goes_on = threading.Event(), threading.Event()

    def remove(*_: object, **__: object) -> None:
        begun.set()
        goes_on.wait(30)

    monkeypatch.setattr("shutil.rmtree", remove)
    cancelled = asyncio.create_task(shop.bring(stored(NET)))
    await asyncio.to_thread(begun.wait, 30)
    cancelled.cancel()
    await turns()
    assert shop._moving.locked()
    goes_on.set()
    await asyncio.wait([cancelled])
    assert not shop._moving.locked()


async def test_plan_and_cut_that_need_an_engine_at_once_copy_it_once(tmp_path: Path) -> None:
    store = Store()
    shop = Workshop(cast("EngineStore", store), tmp_path)
    await asyncio.gather(shop.bring(stored(NET)), shop.bring(stored(NET)))
    assert store.reads == 1


async def test_engines_that_are_not_planned_and_stages_go_unless_an_engine_is_being_cut(
    tmp_path: Path,
) -> None:
    shop = Workshop(cast("EngineStore", Store()), tmp_path)
    for name in (NET, EngineName("other")):
        await shop.bring(stored(name))
    (tmp_path / "net.s0-4").mkdir()
    async with shop.turn:
        await shop.tidy([NET])
        assert names(tmp_path) == ["net", "net.s0-4", "other"]
    await shop.tidy([NET])
    assert names(tmp_path) == ["net"]


async def cut_some(models: Path, name: EngineName, _cuts: tuple[int, ...]) -> list[EngineName]:
    for folder in (f"{name}.s0-4", f"{name}.s4-9", ".making-net-x"):
        (models / folder).mkdir()
        (models / folder / "model.onnx").write_bytes(bytes(10))
    return []


async def test_stages_are_there_until_they_have_been_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = Workshop(cast("EngineStore", Store()), tmp_path)
    monkeypatch.setattr(shop.processes, "split", cut_some)
    await shop.bring(stored(NET))
    async with shop.cut(NET, (4,)):
        assert (tmp_path / "net.s4-9").exists()
    assert names(tmp_path) == ["net"]


async def test_stage_that_cannot_be_stored_leaves_nothing_of_its_upload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uploads = tmp_path / "uploads"
    store = EngineStore(
        LocalFiles(tmp_path / "store"), uploads, location="", remembered=tmp_path / "id"
    )
    await store.load()
    shop = Workshop(store, tmp_path / "workshop")
    monkeypatch.setattr(shop.processes, "split", cut_some)
    shop.models.mkdir()
    append = store.append

    async def fail(*push: Any) -> int:
        await append(*push)
        raise Overloaded("the disk is full")

    async with shop.cut(NET, (4,)):
        monkeypatch.setattr(store, "append", fail)
        with pytest.raises(Overloaded):
            await shop.publish(EngineName("net.s0-4"), 1, ["worker=a"])
        assert [each.stat().st_size for each in uploads.glob("*/*")] == [10]
        await store._pushes.expire()
        assert names(uploads) == []
    await store.close()


async def test_no_cut_begins_before_stages_that_are_left_over_have_gone(tmp_path: Path) -> None:
    shop = Workshop(cast("EngineStore", Store()), tmp_path)
    await shop.bring(stored(NET))
    (tmp_path / "net.s0-4").mkdir()
    tidying = asyncio.create_task(shop.tidy([NET]))
    await asyncio.sleep(0)
    async with shop.turn:
        await shop.bring(stored(NET))
        assert tidying.done()
    assert names(tmp_path) == ["net"]
