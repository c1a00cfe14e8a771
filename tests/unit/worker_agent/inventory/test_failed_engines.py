"""When engines that failed are loaded again."""

import asyncio
import errno
import hashlib
import shutil
from pathlib import Path

import pytest

from synergai.domain import Engine, EngineName
from synergai.errors import EngineUnusable, SynergaiError, Unavailable
from synergai.models.descriptions import EngineDescription
from synergai.models.directory import EngineDefinition
from synergai.wire.converters import engine_from_proto, engine_to_proto
from tests.inventories import described
from tests.unit.worker_agent.inventory.conftest import (
    ONE,
    THREE,
    TWO,
    Held,
    Loads,
    Retrying,
    ignore,
    poll,
    put,
    put_whole,
)
from tests.waiting import until
from worker_agent import describer
from worker_agent.hosts.loads import LoadCrashed, LoadHung
from worker_agent.hosts.memory import CrowdedOut, TooLarge
from worker_agent.inventory import Inventory


async def test_engine_is_inspected_again_if_its_files_were_away_when_it_failed(
    models: Path, tmp_path: Path
) -> None:
    async def inspect(_: EngineDefinition) -> EngineDescription:
        (models / "one").rename(away)
        raise EngineUnusable("it cannot be read")

    away = models / ".one"
    inventory = Inventory(models, tmp_path / "engines.json", inspect)
    assert (await described(inventory))[ONE].pending
    away.rename(models / "one")
    assert inventory.is_settling
    found: list[Engine] = []
    assert list((await inventory.find_changes(on_found=found.append)).changed) == [ONE]
    assert (found, inventory.is_settling) == ([], False)


@pytest.mark.parametrize("others", [False, True])
async def test_model_that_hung_while_its_files_were_away_is_not_loaded_again(
    models: Path, tmp_path: Path, *, others: bool
) -> None:
    loads = Loads()

    async def inspect(definition: EngineDefinition) -> EngineDescription:
        if definition.name == ONE:
            (models / "one").rename(away)
            raise LoadHung("it was not loaded within 60 s")
        return await loads(definition)

    if others:
        put(models, "two", b"other")
    away = models / ".one"
    inventory = Inventory(models, tmp_path / "engines.json", inspect)
    assert (await described(inventory))[ONE].pending
    away.rename(models / "one")
    found = await poll(inventory)
    assert list(found) == [ONE]
    [engine] = found.values()
    assert engine is not None
    assert "within 60 s; it is loaded again when its files change" in engine.fault
    assert inventory.remembers_fault(ONE)


@pytest.mark.parametrize("error", [LoadHung, LoadCrashed])
async def test_model_that_hung_or_crashed_is_loaded_again_on_request_only(
    inventory: Inventory, models: Path, loads: Loads, error: type[SynergaiError]
) -> None:
    put(models, "two", b"fine")
    loads.errors[ONE] = error("it was not loaded within 60 s")
    await described(inventory)
    assert [inventory.remembers_fault(name) for name in (ONE, TWO)] == [True, False]
    engines: list[Engine] = []
    loads.clear()
    await inventory.describe([ONE], ignore)
    assert loads == []
    await inventory.describe_again(ONE, engines.append)
    assert (loads, inventory.remembers_fault(ONE)) == ([ONE], True)
    loads.errors.clear()
    await inventory.describe_again(ONE, engines.append)
    await inventory.describe_again(ONE, engines.append)
    assert (loads, inventory.remembers_fault(ONE)) == ([ONE, ONE], False)
    assert [bool(engine.fault) for engine in engines] == [True, False]
    await described(Inventory(models, models.parent / "engines.json", loads))
    assert loads == [ONE, ONE], "both are in the cache"


KILLED = Unavailable("died by signal 9")


async def killed_at_first(models: Path, loads: Loads) -> Retrying:
    """Return an inventory whose engines were killed when first loaded; `loads` are the others."""
    retrying = Retrying(models, loads)
    loads.error = KILLED
    await described(retrying.inventory)
    loads.error = None
    loads.clear()
    return retrying


@pytest.mark.parametrize("error", [Unavailable, CrowdedOut])
async def test_model_whose_load_was_ended_from_outside_is_loaded_again_with_back_off(
    models: Path, error: type[SynergaiError]
) -> None:
    killed = Loads(error("died by signal 9"))
    retrying = Retrying(models, killed)
    assert "it is loaded again within" in (await described(retrying.inventory))[ONE].fault
    assert retrying.inventory.remembers_fault(ONE)
    killed.clear()
    async with retrying.running():
        for count, delay_s in enumerate((10, 20, 40, 80, 160, 300, 300)):
            await retrying.run_due(delay_s - 1)
            assert len(killed) == count
            await retrying.run_due(1)
            assert len(killed) == count + 1


async def test_engine_that_fails_is_loaded_again_soon_while_another_waits_for_long(
    models: Path, loads: Loads
) -> None:
    put(models, "two", b"other")
    loads.errors[ONE] = KILLED
    retrying = Retrying(models, loads)
    await described(retrying.inventory)
    async with retrying.running():
        for delay_s in (10, 20, 40, 80):
            await retrying.run_due(delay_s)
        loads.clear()
        retrying.inventory.retry_later(TWO)
        await retrying.run_due(9)
        assert loads == []
        await retrying.run_due(1)
        assert loads == [TWO]


@pytest.mark.parametrize("error", [LoadHung, EngineUnusable])
async def test_known_model_that_failed_in_service_is_loaded_again_until_it_loads(
    models: Path, loads: Loads, error: type[SynergaiError]
) -> None:
    retrying = Retrying(models, loads)
    await described(retrying.inventory)
    retrying.inventory.retry_later(ONE)
    assert retrying.inventory.remembers_fault(ONE)
    loads.clear()
    async with retrying.running():
        for count, delay_s in enumerate((10, 20, 40), 1):
            loads.error = error("it was not loaded") if count < 3 else None
            await retrying.run_due(delay_s)
            assert len(loads) == count
            assert retrying.inventory.remembers_fault(ONE) is (count < 3)
        await retrying.run_due(3600)
        assert len(loads) == len(retrying.described) == 3


@pytest.mark.parametrize("error", [LoadHung, EngineUnusable])
async def test_changed_model_that_fails_after_a_failure_in_service_counts_as_a_new_one(
    models: Path, loads: Loads, error: type[SynergaiError]
) -> None:
    await described(Inventory(models, models.parent / "engines.json", loads))
    failing = Loads(error("it was not loaded"))
    retrying = Retrying(models, failing)
    await described(retrying.inventory)
    retrying.inventory.retry_later(ONE)
    put(models, "one", b"changed")
    await poll(retrying.inventory)
    await poll(retrying.inventory)
    async with retrying.running():
        await retrying.run_due(20)
        assert (failing, retrying.described) == ([ONE], [])
        await retrying.run_due(86_400)
        assert failing == [ONE]


async def test_model_that_fails_in_service_is_loaded_again_with_back_off_until_it_changes(
    models: Path, loads: Loads
) -> None:
    retrying = Retrying(models, loads)
    await described(retrying.inventory)
    async with retrying.running():
        for delay_s in (10, 20, 40, 80, 160, 320, 640, 1280, 2560, 3600, 3600):
            loads.clear()
            retrying.inventory.retry_later(ONE)
            await retrying.run_due(delay_s - 1)
            assert loads == []
            await retrying.run_due(1)
            assert loads == [ONE]
        put(models, "one", b"repaired")
        await poll(retrying.inventory)
        await poll(retrying.inventory)
        loads.clear()
        retrying.inventory.retry_later(ONE)
        await retrying.run_due(10)
        assert loads == [ONE]


async def test_load_that_is_requested_during_a_retry_waits_for_it(models: Path) -> None:
    held = Held()
    retrying = await killed_at_first(models, held)
    engines: list[Engine] = []
    async with retrying.running(), asyncio.TaskGroup() as group:
        await retrying.start_due(10)
        await until(lambda: held == [ONE])
        assert retrying.inventory.remembers_fault(ONE)
        group.create_task(retrying.inventory.describe_again(ONE, engines.append))
        held.end(ONE)
    assert (held, engines) == ([ONE], [])
    assert len(retrying.described) == 1


@pytest.mark.parametrize("fails", [False, True])
async def test_load_that_is_requested_waits_for_no_retry_of_another_engine_and_replaces_its_own(
    models: Path, *, fails: bool
) -> None:
    put(models, "two", b"other")
    held = Held()
    retrying = await killed_at_first(models, held)
    async with retrying.running():
        await retrying.start_due(10)
        await until(lambda: len(held) == 1)
        [waiting] = {ONE, TWO} - set(held)
        if fails:
            held.errors[waiting] = KILLED
        held.end(waiting)
        engines: list[Engine] = []
        await retrying.inventory.describe_again(waiting, engines.append)
        assert bool(engines[0].fault) is fails
        held.end(held[0])
        await retrying.run_due(0)
    assert sorted(held) == [ONE, TWO], "the retry of the other has nothing left to do"


async def test_new_engine_waits_for_one_retry_at_most(models: Path) -> None:
    put(models, "two", b"other")
    put(models, "three", b"another")
    held = Held()
    retrying = await killed_at_first(models, held)
    async with retrying.running(), asyncio.TaskGroup() as group:
        await retrying.start_due(10)
        await until(lambda: len(held) == 1)
        slots = retrying.inventory._slots
        put_whole(models, "new")
        group.create_task(poll(retrying.inventory))
        await until(lambda: bool(slots._waiters))
        held.end(ONE, TWO, THREE, EngineName("new"))
        await retrying.run_due(0)
    assert held.index(EngineName("new")) == 1


async def test_model_that_cannot_be_read_is_read_again_with_back_off(
    models: Path, loads: Loads, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(definition: EngineDefinition) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(definition.file))

    retrying = Retrying(models, loads)
    with monkeypatch.context() as context:
        context.setattr(describer, "digests_of", denied)
        fault = (await described(retrying.inventory))[ONE].fault
    assert "model.onnx cannot be read: Permission denied; it is loaded again" in fault
    async with retrying.running():
        await retrying.run_due(10)
    assert loads == [ONE]


async def test_removed_model_is_not_loaded_again(models: Path) -> None:
    failing = Loads(KILLED)
    retrying = Retrying(models, failing)
    await described(retrying.inventory)
    shutil.rmtree(models / "one")
    await poll(retrying.inventory)
    assert await poll(retrying.inventory) == {ONE: None}
    async with retrying.running():
        await retrying.run_due(10)
    assert failing == [ONE]


async def test_inspection_that_begins_before_a_requested_load_does_not_prevent_it(
    models: Path, tmp_path: Path
) -> None:
    held = Held()
    held.error = LoadHung("it was not loaded within 60 s")
    inventory = Inventory(models, tmp_path / "engines.json", held, parallel=1)
    await described(inventory)
    held.error = None
    held.clear()
    put(models, "two", b"other")
    changes = await inventory.find_changes([TWO])
    engines: list[Engine] = []
    async with asyncio.TaskGroup() as group:
        group.create_task(inventory.describe(changes.changed, ignore))
        await until(lambda: held == [TWO])
        group.create_task(inventory.describe_again(ONE, engines.append))
        group.create_task(inventory.describe(changes.changed, ignore))
        held.end(ONE, TWO)
    assert held == [TWO, ONE]
    assert [engine.fault for engine in engines] == [""]


TOO_LARGE = TooLarge("it used 300 MB, above the 240 MB that --memory-mb allows")


async def test_known_engine_that_becomes_too_large_is_told_to_be_and_loaded_again(
    models: Path, loads: Loads
) -> None:
    retrying = Retrying(models, loads)
    await described(retrying.inventory)
    retrying.inventory.retry_later(ONE)
    async with retrying.running():
        for loads.error, delay_s in ((TOO_LARGE, 10), (None, 20)):
            await retrying.run_due(delay_s)
    assert [each.too_large for each in retrying.described] == [True, False]


@pytest.mark.parametrize("error", [TOO_LARGE, CrowdedOut("all engines used more than allowed")])
async def test_engine_that_memory_lacks_for_has_its_digest_and_is_too_large_if_it_is_so_alone(
    inventory: Inventory, models: Path, loads: Loads, error: SynergaiError
) -> None:
    loads.error = error
    (models / "one" / "engine.toml").write_text('routes = "auto"\n')
    engine = (await described(inventory))[ONE]
    assert (engine.too_large, engine.routes) == (error is TOO_LARGE, "auto")
    assert engine.fault
    assert engine.digest == hashlib.sha256((models / "one" / "model.onnx").read_bytes()).hexdigest()
    assert engine_from_proto(engine_to_proto(engine)) == engine
