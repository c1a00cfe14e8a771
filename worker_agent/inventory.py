"""Inventory of the engines in the model directory, which may change at any time."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias
from weakref import WeakValueDictionary

from synergai.models.directories import ModelDirectories
from synergai.runtime.resources import usable_cores
from worker_agent.describer import (
    Describer,
    EngineSnapshot,
    folder_times,
    inspect_in_host,
    is_complete,
    pending_engine,
    stamps_of,
    take_snapshots,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator
    from pathlib import Path

    from synergai.domain import Engine, EngineName
    from synergai.models.descriptions import EngineDescription
    from synergai.models.directory import EngineDefinition
    from worker_agent.describer import Inspect
    from worker_agent.hosts.memory import HostMemory

    OnDescribed: TypeAlias = Callable[[Engine], object]

_MAX_PARALLEL: Final = 4
"""Engines loaded at a time to describe them."""
_HOST_BYTES: Final = 700 << 20
"""Memory of an engine host with the largest runtime, TensorFlow, and a small model."""
FIRST_S: Final = 10.0
"""Delay of an engine's first retry; each further one is twice as long."""
_RETRY_LOOK_S: Final = 1.0
"""Seconds between two looks for retries that are due."""
_LONGEST_RETRY_S: Final = 300.0
_LONGEST_RETRY_AFTER_SERVICE_S: Final = 3600.0
"""For engines that load when they are inspected, but not in service, where a load may block a
worker for minutes."""

_log = logging.getLogger(__name__)


class _Outdated(Exception):
    """An engine has changed before its turn to be loaded."""


class _Retry(NamedTuple):
    """The latest retry of an engine, which may be due already."""

    at: float
    delay_s: float


class Retries:
    """Retries of engines, each with a backoff of its own.

    An engine that fails long after its latest retry starts with the shortest delay again.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._retries: dict[EngineName, _Retry] = {}

    def add(self, name: EngineName, longest_s: float) -> None:
        """Schedule a retry of an engine that failed, unless one is scheduled already."""
        now = self._clock()
        last = self._retries.get(name)
        if last is not None and now < last.at:
            return
        delay_s = FIRST_S
        if last is not None and now < last.at + longest_s:
            delay_s = min(2 * last.delay_s, longest_s)
        self._retries[name] = _Retry(now + delay_s, delay_s)

    def due(self) -> set[EngineName]:
        """Return the engines whose latest retry is due, also those that have been retried."""
        now = self._clock()
        return {name for name, retry in self._retries.items() if retry.at <= now}

    def forget(self, names: Iterable[EngineName]) -> None:
        """Forget engines that have changed or are gone."""
        for name in names:
            self._retries.pop(name, None)


class Changes(NamedTuple):
    """Changes of the model directory."""

    changed: frozenset[EngineName]
    removed: frozenset[EngineName]


class Inventory:
    """Describes the engines of a model directory and detects changes."""

    def __init__(
        self,
        models: Path,
        cache: Path,
        inspect: Inspect | None = None,
        parallel: int = 0,
        memory: HostMemory | None = None,
        fetched: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._models = ModelDirectories(models, fetched)
        # A core is left to what serves already, or is about to.
        parallel = parallel or max(1, min(_MAX_PARALLEL, usable_cores() - 1))
        if memory is not None and memory.limit_bytes:
            parallel = max(1, min(parallel, memory.limit_bytes // _HOST_BYTES))
        self._slots = asyncio.Semaphore(parallel)
        if inspect is None:
            inspect = partial(inspect_in_host, self._models, memory)
        self._inspect = inspect
        self._describer = Describer(cache)
        self._described: dict[EngineName, EngineSnapshot] = {}
        # The last scan, which may have seen files that were still being copied.
        self._scanned: dict[EngineName, EngineSnapshot] = {}
        # Engines that were found and are not described yet.
        self._found: set[EngineName] = set()
        self._folders: dict[str, int] = {}
        self.is_settling = False
        self._describing = 0
        self._retries = Retries(clock)
        # One for each engine that is being loaded again, or waits for the end of such a load.
        self._again: WeakValueDictionary[EngineName, asyncio.Lock] = WeakValueDictionary()

    async def discover(self) -> dict[EngineName, Engine]:
        """Return all engines of the directory, pending until they are described."""
        self._scanned = self._described = await asyncio.to_thread(take_snapshots, self._models)
        return {name: pending_engine(definition) for name, (definition, _) in self._scanned.items()}

    async def describe(self, names: Iterable[EngineName], on_described: OnDescribed) -> None:
        """Describe engines that were found, several at a time, in order of increasing file size.

        Those in the cache do not wait for others to be loaded. Calls may overlap. A
        description is dropped if its engine has changed since.
        """
        found = [self._described[name] for name in names if name in self._described]
        if not found:
            return
        with self._using_cache():
            async with asyncio.TaskGroup() as group:
                for each in sorted(found, key=lambda each: each.size_bytes):
                    inspect = partial(self._inspect_in_turn, each)
                    group.create_task(self._describe(each, inspect, on_described))

    def remembers_fault(self, name: EngineName) -> bool:
        return self._describer.remembers_fault(name)

    async def describe_again(self, name: EngineName, on_described: OnDescribed) -> None:
        """Describe an engine that `remembers_fault` by loading it again; nothing if it does not.

        This waits for a load of the same engine, but for no other.
        """
        if not self.remembers_fault(name):
            return
        async with self._again.setdefault(name, asyncio.Lock()):
            if name in self._described and self.remembers_fault(name):
                with self._using_cache():
                    self._describer.forget_faults(name)
                    await self._describe(self._described[name], self._inspect, on_described)

    def retry_later(self, name: EngineName) -> None:
        """Let `retry` load an engine that failed to load in service, later each time."""
        self._describer.doubt(name)
        self._retries.add(name, _LONGEST_RETRY_AFTER_SERVICE_S)

    async def retry(
        self,
        on_described: OnDescribed,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Describe engines again whose fault may have passed, with backoff, until cancelled.

        One after another, so that new engines do not wait behind many.
        """
        while True:
            await sleep(_RETRY_LOOK_S)
            for name in self._to_retry():
                # A load that is requested does not wait while this one waits for its turn.
                async with self._slots, self._again.setdefault(name, asyncio.Lock()):
                    if name in self._to_retry():
                        with self._using_cache():
                            await self._describe(self._described[name], self._inspect, on_described)

    def _to_retry(self) -> set[EngineName]:
        return self._describer.passing() & self._retries.due() & self._described.keys()

    async def has_other_folders(self) -> bool:
        """Return whether folders were added, removed or replaced since the last `find_changes`.

        This costs one call per folder. It does not see files that are overwritten.
        """
        return await asyncio.to_thread(folder_times, self._models) != self._folders

    async def find_changes(
        self,
        complete: Collection[EngineName] = (),
        on_found: OnDescribed = lambda _: None,
    ) -> Changes:
        """Return the engines that have changed since `discover`, each change once.

        A changed engine is returned once two consecutive calls find it in the same state, because
        copying a large file takes a while. One whose folder was renamed after its last file was
        written is complete, and returned at once. New engines are reported at once, pending.
        """
        self._folders = await asyncio.to_thread(folder_times, self._models)
        scanned, before = await asyncio.to_thread(take_snapshots, self._models), self._scanned
        self._scanned = scanned
        new = scanned.keys() - self._described.keys() - self._found
        for name in new:
            self._found.add(name)
            on_found(pending_engine(scanned[name].definition))
        changed = {
            name: snapshot
            for name, snapshot in scanned.items()
            if snapshot != self._described.get(name)
            and (
                name in complete or snapshot == before.get(name) or is_complete(snapshot.definition)
            )
        }
        removed = (self._described.keys() | self._found) - scanned.keys() - before.keys()
        self._found -= removed | changed.keys()
        self._retries.forget(removed | changed.keys())
        kept = {name: each for name, each in self._described.items() if name not in removed}
        self._described = kept | changed
        self.is_settling = self._described != scanned
        return Changes(frozenset(changed), frozenset(removed))

    @contextmanager
    def _using_cache(self) -> Iterator[None]:
        """Read the cache, and write it after engines were described."""
        self._describer.read_cache()
        self._describing += 1
        try:
            yield
        finally:
            self._describing -= 1
            if not self._describing:
                self._describer.keep_only(self._described.keys(), self._found)
            self._describer.write_cache()

    async def _describe(
        self, snapshot: EngineSnapshot, inspect: Inspect, on_described: OnDescribed
    ) -> None:
        name = snapshot.definition.name
        try:
            engine = await self._describer.describe(snapshot.definition, inspect)
        except _Outdated:
            return
        # Its reason may be a change of the files that the next scan is yet to find.
        if (
            engine.fault
            and await asyncio.to_thread(stamps_of, snapshot.definition) != snapshot.stamps
        ):
            self._find_again(snapshot)
        elif self._is_current(snapshot):
            if name in self._describer.passing():
                self._retries.add(name, _LONGEST_RETRY_S)
            on_described(engine)

    async def _inspect_in_turn(
        self, snapshot: EngineSnapshot, definition: EngineDefinition
    ) -> EngineDescription:
        """Inspect an engine or one of its variants, if it is still as it was found."""
        async with self._slots:
            if not self._is_current(snapshot):
                raise _Outdated
            return await self._inspect(definition)

    def _is_current(self, snapshot: EngineSnapshot) -> bool:
        """Return whether an engine has neither changed nor been removed since it was found."""
        return self._described.get(snapshot.definition.name) is snapshot

    def _find_again(self, snapshot: EngineSnapshot) -> None:
        """Let `find_changes` return an engine again, even if its files are the same then."""
        if self._is_current(snapshot):
            name = snapshot.definition.name
            self._described = {
                each: known for each, known in self._described.items() if each != name
            }
            self._found.add(name)
            self.is_settling = True
