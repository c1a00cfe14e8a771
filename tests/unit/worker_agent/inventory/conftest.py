"""A model directory, and an inventory of it whose loads of models are replaced."""

import asyncio
import os
from collections import defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from synergai.domain import Engine, EngineName, TensorSpec
from synergai.errors import SynergaiError
from synergai.models.descriptions import EngineDescription
from synergai.models.directory import EngineDefinition
from synergai.runtime.tasks import TaskBag
from tests.waiting import until
from worker_agent.inventory import Inventory
from worker_agent.served_engines import ModelDirectoryWatch

ONE, TWO, THREE = map(EngineName, ("one", "two", "three"))


class Loads(list[EngineName]):
    """Replaces the loading of models, and records their names.

    Attributes:
        error: why all loads fail.
        errors: why those of an engine do.
        unverified: why the models are not known to work.
    """

    def __init__(self, error: SynergaiError | None = None) -> None:
        self.error = error
        self.errors: dict[EngineName, SynergaiError] = {}
        self.unverified = ""

    async def __call__(self, definition: EngineDefinition) -> EngineDescription:
        self.append(definition.name)
        if error := self.errors.get(definition.name) or self.error:
            raise error
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
    async with TaskBag() as tasks:
        tasks.start(watch.run(ignore, on_change))
        yield


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

    def end(self, *names: EngineName) -> None:
        """Let the loads of some engines end, or not wait at all."""
        for name in names:
            self.ends[name].set_result(None)


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
        self.inventory = Inventory(models, cache, inspect, parallel=1, clock=now)
        self._look = asyncio.Event()
        self._waits = False

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        async def sleep(_seconds: float) -> None:
            self._waits = True
            await self._look.wait()

        async with TaskBag() as tasks:
            tasks.start(self.inventory.retry(self.described.append, sleep))
            yield

    async def start_due(self, after_s: float) -> None:
        """Start the retries that are due after some more seconds."""
        await until(lambda: self._waits)
        self.now += after_s
        self._waits = False
        self._look.set()
        self._look.clear()

    async def run_due(self, after_s: float) -> None:
        """Run the retries that are due after some more seconds to their end."""
        await self.start_due(after_s)
        await until(lambda: self._waits)
