"""The inventory of a changing model directory, without loading models."""

import asyncio
import errno
import json
import os
import shutil
from collections import defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

import worker_agent.inventory.inventory
from synergai.domain import Engine, EngineName, TensorSpec
from synergai.errors import EngineUnusable, NotFound, SynergaiError, Unavailable
from synergai.models.descriptions import EngineDescription
from synergai.models.directory import EngineDefinition
from synergai.wire.converters import engine_from_proto, engine_to_proto
from tests.inventories import described
from tests.waiting import turns, until
from worker_agent.hosts.loads import LoadCrashed, LoadHung
from worker_agent.hosts.memory import CrowdedOut, TooLarge
from worker_agent.inventory import describer
from worker_agent.inventory.inventory import Inventory
from worker_agent.inventory.watch import ModelDirectoryWatch

ONE, TWO, THREE = map(EngineName, ("one", "two", "three"))


class Loads(list[EngineName]):
    """Replaces the loading of models and records their names.

    Attributes:
        unverified: Why the models are not known to work.
    """

    unverified = ""

    async def __call__(self, definition: EngineDefinition) -> EngineDescription:
        self.append(definition.name)
        x = (TensorSpec("x", "FP32", (1,)),)
        return EngineDescription(x, x, samples=1, unverified=self.unverified)


@pytest.fixture
def loads() -> Loads:
    return Loads()


@pytest.fixture
def models(tmp_path: Path) -> Path:
    models = tmp_path / "models"
    put(models, "one", b"first")
    return models


@pytest.fixture
def inventory(models: Path, tmp_path: Path, loads: Loads) -> Inventory:
    return Inventory(models, tmp_path / "engines.json", loads, parallel=1)


def put(models: Path, name: str, content: bytes) -> None:
    folder = models / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "new").write_bytes(content)
    (folder / "new").rename(folder / "model.onnx")


def put_whole(models: Path, name: str) -> None:
    """Add an engine by renaming its folder, as installations do."""
    put(models, f".{name}", b"the whole")
    # The clock of files has ticks of some milliseconds; the rename would be in the same one.
    os.utime(models / f".{name}", ns=(0, 0))
    (models / f".{name}").rename(models / name)


def ignore(_engine: Engine) -> None:
    pass


async def poll(inventory: Inventory) -> dict[EngineName, Engine | None]:
    """Return the changed engines, described; None for removed ones."""
    changes = await inventory.find_changes()
    engines: dict[EngineName, Engine | None] = dict.fromkeys(changes.removed)
    await inventory.describe(
        changes.changed, lambda engine: engines.__setitem__(engine.name, engine)
    )
    return engines


@asynccontextmanager
async def running(
    watch: ModelDirectoryWatch, on_change: Callable[[EngineName, Engine | None], None]
) -> AsyncGenerator[None]:
    """Run a watch until the context ends."""
    task = asyncio.create_task(watch.run(ignore, on_change))
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


async def test_engine_crowded_out_of_memory_is_loaded_again_before_it_counts_as_faulty(
    models: Path, tmp_path: Path, loads: Loads
) -> None:
    tried: list[EngineName] = []

    async def inspect(definition: EngineDefinition) -> EngineDescription:
        tried.append(definition.name)
        if tried == [ONE]:
            raise CrowdedOut("all engines used more than allowed")
        return await loads(definition)

    put(models, "two", b"longer than the first")
    inventory = Inventory(models, tmp_path / "engines.json", inspect, parallel=1)
    engines = await described(inventory)
    assert sorted(tried) == [ONE, ONE, TWO]
    assert not any(engine.fault for engine in engines.values())


class Blocked(Loads):
    """Models whose first load blocks until `go_on` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.go_on = asyncio.Event(), asyncio.Event()

    async def __call__(self, definition: EngineDefinition) -> EngineDescription:
        if not self.begun.is_set():
            self.begun.set()
            await self.go_on.wait()
        return await super().__call__(definition)


class Held(Loads):
    """Models whose loads end when the test says so.

    Attributes:
        ends: by name, the result of the next load.
    """

    def __init__(self) -> None:
        super().__init__()
        self.ends: defaultdict[EngineName, asyncio.Future[None]] = defaultdict(asyncio.Future)

    async def __call__(self, definition: EngineDefinition) -> EngineDescription:
        description = await super().__call__(definition)
        await self.ends[definition.name]
        return description


class Slow:
    """An inventory whose loads count as slow at once, one at a time."""

    def __init__(self, models: Path, cache: Path) -> None:
        self._held = Held()
        self._inventory = Inventory(models, cache, self._held, parallel=1)

    @asynccontextmanager
    async def describing(self) -> AsyncGenerator[Held]:
        """Describe the engines, of which the first two are being loaded from now on."""
        async with asyncio.TaskGroup() as group:
            group.create_task(described(self._inventory))
            await until(lambda: self._held == [ONE, TWO])
            yield self._held


@pytest.fixture
def slow(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Slow:
    monkeypatch.setattr(worker_agent.inventory.inventory, "_SLOW_S", 0.0)
    put(models, "two", b"longer than the first")
    return Slow(models, tmp_path / "engines.json")


async def test_model_that_loads_slowly_holds_up_neither_others_nor_more_than_one_at_a_time(
    models: Path, slow: Slow
) -> None:
    put(models, "three", b"longer than the first and the second")
    async with slow.describing() as held:
        await turns(20)
        assert held == [ONE, TWO]
        held.ends[TWO].set_result(None)
        await until(lambda: held == [ONE, TWO, THREE])
        held.ends[ONE].set_result(None)
        held.ends[THREE].set_result(None)


async def test_next_slow_model_holds_up_no_others_once_the_one_before_is_loaded(
    models: Path, slow: Slow
) -> None:
    put(models, "three", b"longer than the first and the second")
    async with slow.describing() as held:
        await turns(20)
        held.ends[ONE].set_result(None)
        await until(lambda: held == [ONE, TWO, THREE])
        held.ends[TWO].set_result(None)
        held.ends[THREE].set_result(None)


async def test_model_that_was_crowded_out_waits_for_one_that_loads_slowly(
    slow: Slow,
) -> None:
    async with slow.describing() as held:
        held.ends.pop(TWO).set_exception(CrowdedOut("all engines used more than allowed"))
        await turns(20)
        assert held == [ONE, TWO]
        held.ends[ONE].set_result(None)
        await until(lambda: held == [ONE, TWO, TWO])
        held.ends[TWO].set_result(None)


async def test_watch_reports_an_engine_while_another_is_inspected(
    models: Path, tmp_path: Path
) -> None:
    loads = Blocked()
    inventory = Inventory(models, tmp_path / "engines.json", loads, parallel=2)
    await inventory.discover()
    (models / "one" / "model.onnx").write_bytes(b"changed")

    async def never(_seconds: float) -> None:
        await asyncio.Event().wait()

    changes: asyncio.Queue[EngineName] = asyncio.Queue()
    watch = ModelDirectoryWatch(inventory, 5.0, never)
    async with asyncio.timeout(30), running(watch, lambda name, _: changes.put_nowait(name)):
        watch.look_at(ONE)
        await loads.begun.wait()
        put(models, "two", b"the whole")
        watch.look_at(TWO)
        assert await changes.get() == TWO
        loads.go_on.set()
        assert await changes.get() == ONE


async def test_description_of_an_engine_that_changed_meanwhile_is_dropped(
    models: Path, tmp_path: Path
) -> None:
    loads = Blocked()
    inventory = Inventory(models, tmp_path / "engines.json", loads, parallel=2)
    engines: list[Engine] = []
    first = asyncio.create_task(inventory.describe(await inventory.discover(), engines.append))
    await loads.begun.wait()
    put(models, "one", b"second")
    assert await poll(inventory) == {}
    assert list(await poll(inventory)) == [ONE]
    loads.go_on.set()
    await first
    assert engines == []


@pytest.mark.parametrize("crowded_out", [False, True])
async def test_engine_that_changed_before_its_load_is_loaded_once(
    models: Path, tmp_path: Path, *, crowded_out: bool
) -> None:
    loads, crowded = Blocked(), asyncio.Event()

    async def inspect(definition: EngineDefinition) -> EngineDescription:
        if crowded_out and definition.name == TWO and not crowded.is_set():
            crowded.set()
            raise CrowdedOut("all engines used more than allowed")
        return await loads(definition)

    put(models, "two", b"longer than the first")
    inventory = Inventory(models, tmp_path / "engines.json", inspect, parallel=1 + crowded_out)
    engines: list[Engine] = []
    names = await inventory.discover()
    async with asyncio.TaskGroup() as group:
        group.create_task(inventory.describe(names, engines.append))
        await loads.begun.wait()
        if crowded_out:
            await crowded.wait()
        (models / "two" / "engine.toml").write_text("max_batch = 8")
        changes = await inventory.find_changes([TWO])
        group.create_task(inventory.describe(changes.changed, engines.append))
        loads.go_on.set()
    assert sorted(loads) == [ONE, TWO]
    assert sorted(engine.name for engine in engines) == [ONE, TWO]


async def test_engine_that_exceeds_the_memory_alone_is_too_large(
    models: Path, tmp_path: Path
) -> None:
    async def inspect(_: EngineDefinition) -> EngineDescription:
        raise TooLarge("it used 300 MB, above the 240 MB that --memory-mb allows")

    engine = (await described(Inventory(models, tmp_path / "engines.json", inspect)))[ONE]
    assert engine.too_large
    assert engine_from_proto(engine_to_proto(engine)) == engine


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
    async def inspect(definition: EngineDefinition) -> EngineDescription:
        if definition.name == ONE:
            (models / "one").rename(away)
            raise LoadHung("it was not loaded within 60 s")
        return await Loads()(definition)

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


class Hanging(Loads):
    """Models whose loading hangs or crashes their host."""

    def __init__(self, error: type[SynergaiError]) -> None:
        super().__init__()
        self._error = error

    async def __call__(self, definition: EngineDefinition) -> EngineDescription:
        await super().__call__(definition)
        raise self._error(f"engine {definition.name} was not loaded within 60 s")


@pytest.mark.parametrize("error", [LoadHung, LoadCrashed])
async def test_model_that_hung_or_crashed_is_not_loaded_at_the_next_start(
    models: Path, tmp_path: Path, error: type[SynergaiError]
) -> None:
    clock = [1e9]

    def restarted(loads: Loads, version: str = "1") -> Inventory:
        cache = tmp_path / "engines.json"
        return Inventory(models, cache, loads, agent_version=version, now=lambda: clock[0])

    first, again = Hanging(error), Hanging(error)
    assert "within 60 s" in (await described(restarted(first)))[ONE].fault
    fault = (await described(restarted(again)))[ONE].fault
    assert "within 60 s; it is loaded again when its files change" in fault
    assert (first, again) == ([ONE], [])
    clock[0] += 25 * 3600
    await described(restarted(again))
    assert again == [ONE], "a day later"
    await described(restarted(again, "2"))
    assert again == [ONE, ONE], "another version"
    put(models, "one", b"repaired")
    loads = Loads()
    assert not (await described(restarted(loads, "2")))[ONE].fault
    assert loads == [ONE]


@pytest.mark.parametrize("remembered", [False, True])
async def test_model_that_hung_is_loaded_again_on_request(
    models: Path, tmp_path: Path, *, remembered: bool
) -> None:
    put(models, "two", b"fine")
    loads: list[EngineName] = []
    hangs = True

    async def inspect(definition: EngineDefinition) -> EngineDescription:
        loads.append(definition.name)
        if definition.name == ONE and hangs:
            raise LoadHung("it was not loaded within 60 s")
        return await Loads()(definition)

    inventory = Inventory(models, tmp_path / "engines.json", inspect)
    await described(inventory)
    if remembered:
        inventory = Inventory(models, tmp_path / "engines.json", inspect)
        await described(inventory)
    assert inventory.remembers_fault(ONE)
    assert not inventory.remembers_fault(TWO)
    engines: list[Engine] = []
    loads.clear()
    await inventory.describe_again(ONE, engines.append)
    assert (loads, inventory.remembers_fault(ONE)) == ([ONE], True)
    hangs = False
    await inventory.describe_again(ONE, engines.append)
    await inventory.describe_again(ONE, engines.append)
    assert (loads, inventory.remembers_fault(ONE)) == ([ONE, ONE], False)
    assert [bool(engine.fault) for engine in engines] == [True, False]
    assert not (await described(Inventory(models, tmp_path / "engines.json", inspect)))[TWO].fault
    assert loads == [ONE, ONE], "both are in the cache"


class Retrying:
    """An inventory whose retries run in the background, and its clock.

    Attributes:
        now: The time in seconds.
        described: What the retries described.
    """

    def __init__(
        self, models: Path, inspect: Callable[[EngineDefinition], Awaitable[EngineDescription]]
    ) -> None:
        def now() -> float:
            return self.now

        cache = models.parent / "engines.json"
        self.now = 1e9
        self.described: list[Engine] = []
        self.inventory = Inventory(models, cache, inspect, parallel=1, now=now, clock=now)
        self._looks = asyncio.Semaphore(0)
        self._looked = 0

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        async def sleep(_seconds: float) -> None:
            self._looked += 1
            await self._looks.acquire()

        task = asyncio.create_task(self.inventory.retry(self.described.append, sleep))
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def start_due(self, after_s: float) -> None:
        """Start the retries that are due after some more seconds."""
        await until(lambda: self._looked > 0)
        self.now += after_s
        looked = self._looked
        self._looks.release()
        await until(lambda: self._looked > looked)

    async def run_due(self, after_s: float) -> None:
        """Run the retries that are due after some more seconds to their end."""
        await self.start_due(after_s)
        await until(lambda: not self.inventory._retrying)


async def killed_at_first(models: Path, loads: Loads) -> Retrying:
    """Return an inventory whose engines were killed when first loaded; `loads` are the others."""
    killed = True

    async def inspect(definition: EngineDefinition) -> EngineDescription:
        if killed:
            raise Unavailable("died by signal 9")
        return await loads(definition)

    retrying = Retrying(models, inspect)
    await described(retrying.inventory)
    killed = False
    return retrying


@pytest.mark.parametrize("error", [Unavailable, CrowdedOut])
async def test_model_whose_load_was_ended_from_outside_is_loaded_again_with_back_off(
    models: Path, error: type[SynergaiError]
) -> None:
    killed = Hanging(error)
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
    models: Path,
) -> None:
    failing = {ONE}
    loads = Loads()

    async def inspect(definition: EngineDefinition) -> EngineDescription:
        description = await loads(definition)
        if definition.name in failing:
            raise Unavailable("died by signal 9")
        return description

    put(models, "two", b"other")
    retrying = Retrying(models, inspect)
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
    models: Path, error: type[SynergaiError]
) -> None:
    loads, failing = Loads(), False

    async def inspect(definition: EngineDefinition) -> EngineDescription:
        description = await loads(definition)
        if failing:
            raise error("it was not loaded")
        return description

    retrying = Retrying(models, inspect)
    await described(retrying.inventory)
    retrying.inventory.retry_later(ONE)
    assert retrying.inventory.remembers_fault(ONE)
    failing = True
    loads.clear()
    async with retrying.running():
        for count, delay_s in enumerate((10, 20, 40), 1):
            failing = count < 3
            await retrying.run_due(delay_s)
            assert len(loads) == count
            assert retrying.inventory.remembers_fault(ONE) is failing
        await retrying.run_due(3600)
        assert len(loads) == len(retrying.described) == 3


@pytest.mark.parametrize(("error", "again"), [(LoadHung, [ONE]), (EngineUnusable, [])])
async def test_changed_model_that_fails_after_a_failure_in_service_counts_as_a_new_one(
    models: Path, loads: Loads, error: type[SynergaiError], again: list[EngineName]
) -> None:
    await described(Inventory(models, models.parent / "engines.json", loads))
    failing = Hanging(error)
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
        assert failing == [ONE, *again]


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
    loads = Blocked()
    retrying = await killed_at_first(models, loads)
    engines: list[Engine] = []
    async with retrying.running(), asyncio.TaskGroup() as group:
        await retrying.start_due(10)
        await loads.begun.wait()
        assert retrying.inventory.remembers_fault(ONE)
        group.create_task(retrying.inventory.describe_again(ONE, engines.append))
        loads.go_on.set()
    assert (loads, engines) == ([ONE], [])
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
        await retrying.start_due(1)
        [waiting] = {ONE, TWO} - set(held)
        if fails:
            held.ends[waiting].set_exception(Unavailable("died by signal 9"))
        else:
            held.ends[waiting].set_result(None)
        engines: list[Engine] = []
        await retrying.inventory.describe_again(waiting, engines.append)
        assert bool(engines[0].fault) is fails
        held.ends[held[0]].set_result(None)
        await retrying.run_due(0)
    assert sorted(held) == [ONE, TWO]


async def test_new_engine_waits_for_one_retry_at_most(models: Path) -> None:
    put(models, "two", b"other")
    put(models, "three", b"another")
    held = Held()
    retrying = await killed_at_first(models, held)
    async with retrying.running(), asyncio.TaskGroup() as group:
        await retrying.start_due(10)
        await until(lambda: len(held) == 1)
        put_whole(models, "new")
        group.create_task(poll(retrying.inventory))
        await until(lambda: "new" in retrying.inventory._describer._keys)
        for name in (ONE, TWO, THREE, EngineName("new")):
            held.ends[name].set_result(None)
        await retrying.run_due(0)
    assert held.index(EngineName("new")) <= 2


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


async def test_models_that_load_or_crash_are_not_loaded_again_before_a_day(models: Path) -> None:
    crashing = Hanging(LoadCrashed)
    retrying = Retrying(models, crashing)
    await described(retrying.inventory)
    async with retrying.running():
        for hours in (0, 1, 24, 1):
            await retrying.run_due(hours * 3600)
    assert crashing == [ONE, ONE]


async def test_model_that_crashed_a_day_ago_is_loaded_again_with_back_off_while_memory_lacks(
    models: Path,
) -> None:
    error: type[SynergaiError] = LoadCrashed
    loads = Loads()

    async def inspect(definition: EngineDefinition) -> EngineDescription:
        await loads(definition)
        raise error("it was not loaded")

    retrying = Retrying(models, inspect)
    await described(retrying.inventory)
    loads.clear()
    error = CrowdedOut
    async with retrying.running():
        await retrying.run_due(86_400)
        for count, delay_s in enumerate((10, 20, 40), 1):
            await retrying.run_due(delay_s - 1)
            assert len(loads) == count
            await retrying.run_due(1)
            assert len(loads) == count + 1


async def test_model_that_a_command_has_loaded_since_it_hung_is_not_retried(
    models: Path, loads: Loads
) -> None:
    retrying = Retrying(models, Hanging(LoadHung))
    await described(retrying.inventory)
    cache = models.parent / "engines.json"
    await described(Inventory(models, cache, loads, agent_version="of the command"))
    async with retrying.running():
        await retrying.inventory.describe([ONE], ignore)
        for hours in (24, 1, 24):
            await retrying.run_due(hours * 3600)
    assert retrying.described == []


@pytest.mark.parametrize(("error", "after_s"), [(Unavailable, 10), (LoadHung, 86_400)])
async def test_removed_model_is_not_loaded_again(
    models: Path, error: type[SynergaiError], after_s: float
) -> None:
    failing = Hanging(error)
    retrying = Retrying(models, failing)
    await described(retrying.inventory)
    shutil.rmtree(models / "one")
    await poll(retrying.inventory)
    assert await poll(retrying.inventory) == {ONE: None}
    async with retrying.running():
        await retrying.run_due(after_s)
    assert failing == [ONE]


async def test_inspection_that_begins_before_a_requested_load_does_not_prevent_it(
    models: Path, tmp_path: Path
) -> None:
    cache = tmp_path / "engines.json"
    await described(Inventory(models, cache, Hanging(LoadHung)))
    loads = Blocked()
    inventory = Inventory(models, cache, loads, parallel=1)
    await described(inventory)
    put(models, "two", b"other")
    changes = await inventory.find_changes([TWO])
    engines: list[Engine] = []
    async with asyncio.TaskGroup() as group:
        group.create_task(inventory.describe(changes.changed, ignore))
        await loads.begun.wait()
        group.create_task(inventory.describe_again(ONE, engines.append))
        group.create_task(inventory.describe(changes.changed, ignore))
        loads.go_on.set()
    assert loads == [TWO, ONE]
    assert [engine.fault for engine in engines] == [""]


def put_family(models: Path, **contents: bytes) -> None:
    for name, content in contents.items():
        put(models, "one", content)
        (models / "one/model.onnx").rename(models / "one" / f"{name}.onnx")
    tables = (
        f'[[variants]]\nname = "{name}"\nfile = "{name}.onnx"\naccuracy = 0.5\n'
        for name in contents
    )
    (models / "one/engine.toml").write_text("".join(tables))


class Variants(Loads):
    """Replaces the loading of variants; those in `errors` fail, those in `widths` differ."""

    def __init__(self) -> None:
        super().__init__()
        self.errors: dict[str, SynergaiError] = {}
        self.widths: dict[str, int] = {}
        self.variants: list[str] = []

    async def __call__(self, definition: EngineDefinition) -> EngineDescription:
        self.variants.append(definition.variant)
        if error := self.errors.get(definition.variant):
            raise error
        x = (TensorSpec("x", "FP32", (1,)),)
        y = (TensorSpec("y", "FP32", (self.widths.get(definition.variant, 10),)),)
        return EngineDescription(x, y, samples=1)


@pytest.fixture
def family(models: Path, tmp_path: Path) -> tuple[Inventory, Variants]:
    put_family(models, full=b"1", int8=b"22", p25=b"333")
    loads = Variants()
    return Inventory(models, tmp_path / "engines.json", loads, parallel=1), loads


async def test_variants_of_an_engine_are_described_with_it(
    family: tuple[Inventory, Variants],
) -> None:
    inventory, loads = family
    engine = (await described(inventory))[ONE]
    assert [each.name for each in engine.variants] == ["full", "int8", "p25"]
    assert [each.accuracy for each in engine.variants] == [0.5] * 3
    assert engine.digest == engine.variants[0].digest != engine.variants[1].digest
    assert loads.variants == ["full", "int8", "p25"]
    assert engine_from_proto(engine_to_proto(engine)) == engine


@pytest.mark.parametrize(
    "error",
    [EngineUnusable("no"), LoadCrashed("crashed"), LoadHung("hung")],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("failing", ["full", "int8"])
async def test_variant_that_cannot_be_loaded_costs_only_itself(
    family: tuple[Inventory, Variants], error: SynergaiError, failing: str
) -> None:
    inventory, loads = family
    loads.errors[failing] = error
    engine = (await described(inventory))[ONE]
    assert not engine.fault
    assert [each.name for each in engine.variants] == [
        name for name in ("full", "int8", "p25") if name != failing
    ]
    # Requests to load the engine must not wait for a variant that hangs again.
    assert not inventory.remembers_fault(ONE)


async def test_variant_whose_load_was_ended_from_outside_is_loaded_again(
    models: Path, family: tuple[Inventory, Variants]
) -> None:
    _, loads = family
    retrying = Retrying(models, loads)
    loads.errors = {"int8": Unavailable("died by signal 9")}
    assert not (await described(retrying.inventory))[ONE].fault
    loads.errors.clear()
    loads.variants.clear()
    async with retrying.running():
        for _ in range(2):
            await retrying.run_due(10)
    assert loads.variants == ["int8"]


@pytest.mark.parametrize("error", [LoadCrashed("crashed"), LoadHung("hung")])
async def test_variant_that_hung_or_crashed_is_loaded_again_a_day_later(
    models: Path, family: tuple[Inventory, Variants], error: SynergaiError
) -> None:
    _, loads = family
    retrying = Retrying(models, loads)
    loads.errors = {"int8": error}
    await described(retrying.inventory)
    loads.variants.clear()
    async with retrying.running():
        for hours in (1, 23, 1):
            await retrying.run_due(hours * 3600)
    assert loads.variants == ["int8"]


async def test_engine_is_faulty_if_all_variants_are(family: tuple[Inventory, Variants]) -> None:
    inventory, loads = family
    loads.errors = {name: LoadHung(f"{name} hung") for name in ("full", "int8", "p25")}
    assert (await described(inventory))[ONE].fault == "full hung"
    assert inventory.remembers_fault(ONE)


async def test_variant_with_other_tensors_is_not_used(
    family: tuple[Inventory, Variants], caplog: pytest.LogCaptureFixture
) -> None:
    inventory, loads = family
    loads.widths["int8"] = 11
    engine = (await described(inventory))[ONE]
    assert [each.name for each in engine.variants] == ["full", "p25"]
    assert "variant int8 of engine one is not used: its outputs are y FP32 [11]" in caplog.text


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
    assert "[warmup]" in caplog.text


async def test_changed_warm_up_is_a_change_of_the_engine(
    inventory: Inventory, models: Path, loads: Loads
) -> None:
    await described(inventory)
    (models / "one" / "engine.toml").write_text('[warmup]\nx = { file = "x.npy" }')
    for content in (b"first", b"second"):
        (models / "one" / "x.npy").write_bytes(content)
        await poll(inventory)
        assert list(await poll(inventory)) == [ONE]
    assert loads == [ONE] * 3


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
