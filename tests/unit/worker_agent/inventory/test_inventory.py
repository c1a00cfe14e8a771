"""The inventory of a changing model directory, without loading models."""

import asyncio
import json
import shutil
from pathlib import Path

import pytest

from synergai.domain import Engine, EngineName, TensorSpec
from synergai.errors import NotFound
from tests.inventories import described
from tests.unit.worker_agent.inventory.conftest import (
    ONE,
    TWO,
    Held,
    Loads,
    ignore,
    poll,
    put,
    put_whole,
    running,
)
from tests.waiting import until
from worker_agent.inventory import Inventory
from worker_agent.served_engines import ModelDirectoryWatch


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


STAGE = EngineName("one.s0-4")
DECLARED = """
stage_of = "{0}"
stage_end = 9
[tensors]
inputs = [{{ name = "x", datatype = "FP32", shape = [-1, 3] }}]
outputs = [{{ name = "y", datatype = "FP32", shape = [-1, 5] }}]
"""


def put_stage(models: Path) -> None:
    shutil.rmtree(models / "one")
    put(models, STAGE, b"the first half")
    (models / STAGE / "engine.toml").write_text(DECLARED.format("a" * 64))


async def test_stage_that_declares_its_tensors_is_described_without_a_load(
    models: Path, inventory: Inventory, loads: Loads
) -> None:
    put_stage(models)
    stage = (await described(inventory))[STAGE]
    assert (stage.fault, stage.inputs) == ("", (TensorSpec("x", "FP32", (-1, 3)),))
    assert STAGE not in loads


async def test_stage_that_declares_its_tensors_is_loaded_once_that_has_failed_in_service(
    models: Path, inventory: Inventory, loads: Loads
) -> None:
    put_stage(models)
    await described(inventory)
    inventory.retry_later(STAGE)
    await inventory.describe_again(STAGE, ignore)
    assert STAGE in loads


async def test_watch_reports_an_engine_while_another_is_inspected(
    models: Path, tmp_path: Path
) -> None:
    held = Held()
    held.end(TWO)
    inventory = Inventory(models, tmp_path / "engines.json", held, parallel=2)
    await inventory.discover()
    (models / "one" / "model.onnx").write_bytes(b"changed")

    async def never(_seconds: float) -> None:
        await asyncio.Event().wait()

    changes: asyncio.Queue[EngineName] = asyncio.Queue()
    watch = ModelDirectoryWatch(inventory, 5.0, never)
    async with asyncio.timeout(30), running(watch, lambda name, _: changes.put_nowait(name)):
        watch.look_at(ONE)
        await until(lambda: held == [ONE])
        put(models, "two", b"the whole")
        watch.look_at(TWO)
        assert await changes.get() == TWO
        held.end(ONE)
        assert await changes.get() == ONE


async def test_description_of_an_engine_that_changed_meanwhile_is_dropped(
    models: Path, tmp_path: Path
) -> None:
    held = Held()
    inventory = Inventory(models, tmp_path / "engines.json", held, parallel=2)
    engines: list[Engine] = []
    first = asyncio.create_task(inventory.describe(await inventory.discover(), engines.append))
    await until(lambda: held == [ONE])
    put(models, "one", b"second")
    assert (await inventory.find_changes()).changed == frozenset()
    assert (await inventory.find_changes()).changed == {ONE}
    held.end(ONE)
    await first
    assert engines == []


async def test_engine_that_changed_before_its_load_is_loaded_once(
    models: Path, tmp_path: Path
) -> None:
    held = Held()
    put(models, "two", b"longer than the first")
    inventory = Inventory(models, tmp_path / "engines.json", held, parallel=1)
    engines: list[Engine] = []
    names = await inventory.discover()
    async with asyncio.TaskGroup() as group:
        group.create_task(inventory.describe(names, engines.append))
        await until(lambda: held == [ONE])
        (models / "two" / "engine.toml").write_text("max_batch = 8")
        changes = await inventory.find_changes([TWO])
        group.create_task(inventory.describe(changes.changed, engines.append))
        held.end(ONE, TWO)
    assert sorted(held) == [ONE, TWO]
    assert sorted(engine.name for engine in engines) == [ONE, TWO]


async def test_corrupted_file_is_a_fault(inventory: Inventory, models: Path) -> None:
    await described(inventory)
    put(models, "one", b"")
    await poll(inventory)
    engine = (await poll(inventory))[ONE]
    assert engine is not None
    assert "0 bytes" in engine.fault


async def test_cache_contains_only_present_engines(
    inventory: Inventory, models: Path, tmp_path: Path, loads: Loads
) -> None:
    put(models, "two", b"other")
    await described(inventory)
    put(models, "one", b"second")
    await poll(inventory)
    await poll(inventory)
    assert loads == [ONE, TWO, ONE]
    kept = json.loads((tmp_path / "engines.json").read_text("utf-8"))["engines"]
    assert len(kept) == 2
    await described(Inventory(models, tmp_path / "engines.json", loads))
    assert loads == [ONE, TWO, ONE]


async def test_engine_stays_unverified_in_the_cache(
    models: Path, tmp_path: Path, loads: Loads, caplog: pytest.LogCaptureFixture
) -> None:
    loads.unverified = "the model fails on synthetic inputs"
    for _ in range(2):
        engine = (await described(Inventory(models, tmp_path / "engines.json", loads)))[ONE]
        assert (engine.unverified, engine.fault) == (loads.unverified, "")
    assert loads == [ONE]
    assert "engine one is served unverified: the model fails" in caplog.text
    assert "add a samples.npz" in caplog.text


async def test_temporary_file_of_another_agent_is_left_alone(
    inventory: Inventory, tmp_path: Path
) -> None:
    (tmp_path / "engines.new").write_text("half")
    await described(inventory)
    assert (tmp_path / "engines.new").read_text() == "half"
    assert names_in(tmp_path) == {"models", "engines.json", "engines.new"}


async def test_engine_that_is_complete_is_described_at_once(
    inventory: Inventory, models: Path
) -> None:
    async def never(_seconds: float) -> None:
        await asyncio.Event().wait()

    await described(inventory)
    changes: asyncio.Queue[EngineName] = asyncio.Queue()
    watch = ModelDirectoryWatch(inventory, 5.0, never)
    put(models, "two", b"the whole")
    watch.look_at(TWO)
    async with asyncio.timeout(30), running(watch, lambda name, _: changes.put_nowait(name)):
        assert await changes.get() == TWO


async def test_removed_folder_is_reported_within_three_seconds(
    inventory: Inventory, models: Path
) -> None:
    looks: list[float] = []

    async def pause(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 2:
            (models / "one").rename(models / ".one")

    await described(inventory)
    changes: asyncio.Queue[tuple[EngineName, float]] = asyncio.Queue()

    def remove(name: EngineName, engine: Engine | None) -> None:
        assert engine is None
        changes.put_nowait((name, sum(looks[1:])))

    watch = ModelDirectoryWatch(inventory, 60.0, pause)
    async with asyncio.timeout(30), running(watch, remove):
        name, taken_s = await changes.get()
    assert name == ONE
    assert taken_s <= 3.0


async def test_new_engine_is_reported_as_pending_before_it_is_described(
    inventory: Inventory, models: Path
) -> None:
    found: list[Engine] = []
    await described(inventory)
    put(models, "two", b"half")
    for _ in range(2):
        await inventory.find_changes(on_found=found.append)
    assert [(each.name, each.pending) for each in found] == [(TWO, True)]


async def test_new_engine_that_vanishes_before_it_is_described_is_removed(
    inventory: Inventory, models: Path
) -> None:
    await described(inventory)
    put(models, "two", b"half")
    assert await poll(inventory) == {}
    (models / "two").rename(models / ".two")
    assert [await poll(inventory) for _ in range(3)] == [{}, {TWO: None}, {}]


async def test_model_directory_may_be_made_later(tmp_path: Path, loads: Loads) -> None:
    inventory = Inventory(tmp_path / "models", tmp_path / "engines.json", loads)
    assert await described(inventory) == {}
    put_whole(tmp_path / "models", "one")
    assert list(await poll(inventory)) == [ONE]
    (tmp_path / "file").touch()
    with pytest.raises(NotFound):
        await Inventory(tmp_path / "file", tmp_path / "engines.json", loads).discover()
