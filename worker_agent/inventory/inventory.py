"""Inventory of the engines in the model directory.

The tensors of a model are determined by loading it once in an engine host. The result is cached in
a small file, keyed by the digests of the loaded files, until the engine changes or is removed. The
directory may change at any time; changes are detected from inode, size and time of modification.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from msgspec.structs import replace

from synergai.domain import Configuration, Engine, EngineName, LeftOut, Session, Variant
from synergai.errors import EngineUnusable, InvalidInput, SynergaiError
from synergai.models.descriptions import (
    Description,
    LoadFault,
    digests_of,
    read_descriptions,
    read_load_faults,
    write_descriptions,
)
from synergai.models.directories import ModelDirectories
from synergai.models.formats.model_files import list_files
from synergai.models.warmup import ADVICE
from synergai.protocol.converters import engine_from_proto, engine_to_proto
from synergai.runtime.text import printable
from worker_agent.hosts.load_errors import LoadCrashed, LoadHung
from worker_agent.hosts.memory import CrowdedOut
from worker_agent.hosts.process import HostProcess
from worker_agent.inventory.slots import Slots

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
    from pathlib import Path

    from synergai.domain import TensorSpec
    from synergai.models.directory import EngineDefinition
    from worker_agent.hosts.memory import HostMemory

    Inspect: TypeAlias = Callable[[EngineDefinition], Awaitable[Description]]
    OnDescribed: TypeAlias = Callable[[Engine], object]
    _Snapshot: TypeAlias = tuple[EngineDefinition, tuple[tuple[int, int, int], ...]]
    """A definition, and inode, size and modification time of each file."""

_LOAD_TIMEOUT_S: Final = 60.0
_MAX_PARALLEL: Final = 4
"""Engines loaded at a time to describe them."""
_HOST_BYTES: Final = 700 << 20
"""Memory of an engine host with the largest runtime, TensorFlow, and a small model."""

_WITHOUT_MODEL: Final = frozenset({"emulated"})
"""Backends whose files differ between workers that serve the same engine: they hold times."""
_TRY_AGAIN_S: Final = 24 * 3600.0
_TRIED_AGAIN: Final = (
    "it is loaded again when its files change, on request, a day later, or with another version of "
    "the agent"
)

_log = logging.getLogger(__name__)


class _Model(NamedTuple):
    """A model of an engine, and what loading it has found out."""

    definition: EngineDefinition
    description: Description
    digest: str
    samples_digest: str


class Changes(NamedTuple):
    """Changes of the model directory.

    Attributes:
        changed: engines that were added or changed, and are to be described.
        removed: engines that were removed.
    """

    changed: frozenset[EngineName]
    removed: frozenset[EngineName]


class Inventory:
    """Describes the engines of a model directory and detects changes.

    Args:
        models: the model directory.
        fetched: directory of engines fetched from the gateway's store; None for none.
        cache: cache file; created if missing.
        inspect: describes a model; by default, by loading it in an engine host.
        parallel: number of engines to describe at a time; by default, one per core up to a limit.
        memory: counts and limits the memory of the agent's hosts.
        agent_version: another version tries again to load what hung or crashed.
        now: seconds since the epoch.

    Attributes:
        is_settling: whether the last `find_changes` saw changes that the next one may return.
    """

    def __init__(
        self,
        models: Path,
        cache: Path,
        inspect: Inspect | None = None,
        parallel: int = 0,
        memory: HostMemory | None = None,
        agent_version: str = "",
        now: Callable[[], float] = time.time,
        fetched: Path | None = None,
    ) -> None:
        self._agent_version = agent_version
        self._now = now
        self._memory = memory
        self._models = ModelDirectories(models, fetched)
        self._cache = cache
        parallel = parallel or min(_MAX_PARALLEL, len(os.sched_getaffinity(0)))
        if memory is not None and memory.limit_bytes:
            parallel = max(1, min(parallel, memory.limit_bytes // _HOST_BYTES))
        self._slots = Slots(parallel)
        self._inspect = self._load_once if inspect is None else inspect
        self._described: dict[EngineName, _Snapshot] = {}
        # The last scan, which may have seen files that were still being copied.
        self._scanned: dict[EngineName, _Snapshot] = {}
        # Engines that were found and are not described yet.
        self._found: set[EngineName] = set()
        self._folders: dict[str, int] = {}
        self.is_settling = False
        self._cache_keys: dict[EngineName, set[str]] = {}
        self._not_loaded: set[EngineName] = set()
        # The content of the cache, and what was found out since.
        self._known: dict[str, Description] = {}
        self._faults: dict[str, LoadFault] = {}
        self._describing = 0
        self._again = asyncio.Lock()

    async def discover(self) -> dict[EngineName, Engine]:
        """Return all engines of the directory, pending until they are described.

        Raises:
            NotFound: the model directory does not exist.
        """
        self._scanned = self._described = await asyncio.to_thread(_scan, self._models)
        return {name: _pending(definition) for name, (definition, _) in self._scanned.items()}

    async def describe(self, names: Iterable[EngineName], on_described: OnDescribed) -> None:
        """Describe engines that were found, several at a time, in order of increasing file size.

        Others may be described meanwhile. A description is dropped if its engine has changed since.

        Args:
            names: names of engines that `discover` or `find_changes` has returned.
            on_described: called with the description of each engine as soon as there is one; the
                reason why an engine cannot be used is its fault.
        """
        await self._describe(
            [self._described[name] for name in names if name in self._described], on_described
        )

    def remembers_fault(self, name: EngineName) -> bool:
        """Return whether an engine is faulty only because its load hung or crashed."""
        return name in self._not_loaded

    async def describe_again(self, name: EngineName, on_described: OnDescribed) -> None:
        """Describe an engine that `remembers_fault` by loading it again; nothing if it does not."""
        async with self._again:
            if name in self._described and name in self._not_loaded:
                await self._describe([self._described[name]], on_described, again=True)

    async def has_other_folders(self) -> bool:
        """Return whether folders were added, removed or replaced since the last `find_changes`.

        This costs one call per folder. It does not see files that are overwritten.
        """
        return await asyncio.to_thread(_folder_times, self._models) != self._folders

    async def find_changes(
        self,
        complete: Collection[EngineName] = (),
        on_found: OnDescribed = lambda _: None,
    ) -> Changes:
        """Return the engines that have changed since `discover`, each change once.

        A changed engine is returned once two consecutive calls find it in the same state, because
        copying a large file takes a while. One whose folder was renamed after its last file was
        written is complete, and returned at once.

        Args:
            complete: other engines that are known to be complete.
            on_found: called with each new engine as soon as it is found, pending.

        Raises:
            NotFound: the model directory does not exist.
        """
        self._folders = await asyncio.to_thread(_folder_times, self._models)
        scanned, before = await asyncio.to_thread(_scan, self._models), self._scanned
        self._scanned = scanned
        for name in scanned.keys() - self._described.keys() - self._found:
            self._found.add(name)
            on_found(_pending(scanned[name][0]))
        changed = {
            name: snapshot
            for name, snapshot in scanned.items()
            if snapshot != self._described.get(name)
            and (name in complete or snapshot == before.get(name) or _is_complete(snapshot[0]))
        }
        removed = (self._described.keys() | self._found) - scanned.keys() - before.keys()
        self._found -= removed | changed.keys()
        kept = {name: each for name, each in self._described.items() if name not in removed}
        self._described = kept | changed
        self.is_settling = self._described != scanned
        return Changes(frozenset(changed), frozenset(removed))

    async def _describe(
        self, snapshots: list[_Snapshot], on_described: OnDescribed, *, again: bool = False
    ) -> None:
        if not snapshots:
            return
        # Each time, as commands add to the cache.
        self._known = read_descriptions(self._cache) | self._known
        self._faults = read_load_faults(self._cache) | self._faults
        if again:
            for definition, _ in snapshots:
                for key in self._cache_keys.get(definition.name, ()):
                    self._faults.pop(key, None)
            self._write_cache()  # so that another inspection does not read them meanwhile
        crowded_out: list[_Snapshot] = []

        async def report(engine: Engine, snapshot: _Snapshot) -> None:
            definition, stamps = snapshot
            # Its reason may be a change of the files that the next scan is yet to find.
            if engine.fault and await asyncio.to_thread(_stamps, definition) != stamps:
                self._find_again(snapshot)
            elif self._is_current(snapshot):
                on_described(engine)

        async def describe(snapshot: _Snapshot) -> None:
            try:
                async with self._slots.one:
                    if not self._is_current(snapshot):
                        return
                    engine = await self._describe_one(snapshot[0])
            except CrowdedOut:
                crowded_out.append(snapshot)
            else:
                await report(engine, snapshot)

        self._describing += 1
        try:
            async with asyncio.TaskGroup() as group:
                for snapshot in sorted(snapshots, key=_size):
                    group.create_task(describe(snapshot))
            for snapshot in crowded_out:
                async with self._slots.all():
                    if not self._is_current(snapshot):
                        continue
                    try:
                        engine = await self._describe_one(snapshot[0])
                    except CrowdedOut as error:
                        engine = _faulty(snapshot[0], str(error))
                await report(engine, snapshot)
        finally:
            self._describing -= 1
            self._write_cache()

    def _is_current(self, snapshot: _Snapshot) -> bool:
        """Return whether an engine has neither changed nor been removed since it was found."""
        return self._described.get(snapshot[0].name) is snapshot

    def _find_again(self, snapshot: _Snapshot) -> None:
        """Let `find_changes` return an engine again, even if its files are the same then."""
        if self._is_current(snapshot):
            name = snapshot[0].name
            self._described = {
                each: known for each, known in self._described.items() if each != name
            }
            self._found.add(name)
            self.is_settling = True

    async def _describe_one(self, definition: EngineDefinition) -> Engine:
        """Describe one engine from the cache, or by loading it.

        Raises:
            CrowdedOut: it had no room beside other engines.
        """
        self._cache_keys[definition.name] = set()
        self._not_loaded.discard(definition.name)
        left_out: list[LeftOut] = []
        try:
            if definition.variants:
                models, left_out = await self._describe_variants(definition)
            else:
                models = [await self._describe_model(definition)]
        except CrowdedOut:
            raise
        except SynergaiError as error:
            if isinstance(error, (LoadHung, LoadCrashed)):
                self._not_loaded.add(definition.name)
            return _faulty(definition, str(error))
        except OSError as error:
            return _faulty(definition, f"{error.filename} cannot be read: {error.strerror}")
        engine = _to_engine(definition, models, left_out)
        if engine.unverified:
            _log.warning(
                "engine %s is served unverified: %s; %s", engine.name, engine.unverified, ADVICE
            )
        try:
            # A gateway would reject the whole worker because of one invalid engine.
            return engine_from_proto(engine_to_proto(engine))
        except InvalidInput as error:
            return _faulty(definition, str(error))

    async def _describe_variants(
        self, definition: EngineDefinition
    ) -> tuple[list[_Model], list[LeftOut]]:
        """Describe the variants of an engine, and say which cannot serve as it.

        Raises:
            CrowdedOut: one had no room beside other engines.
            SynergaiError, OSError: none can serve as it.
        """
        found: list[_Model] = []
        left_out: list[LeftOut] = []
        first_error: SynergaiError | OSError | None = None
        for variant in definition.variants:
            try:
                model = await self._describe_model(definition.of_variant(variant.name))
                if found:
                    _check_alike(model, found[0])
            except CrowdedOut:
                raise
            except (SynergaiError, OSError) as error:
                _log.warning(
                    "variant %s of engine %s is not used: %s", variant.name, definition.name, error
                )
                left_out.append(LeftOut(variant.name, printable(str(error))))
                first_error = first_error or error
            else:
                found.append(model)
        if not found and first_error is not None:
            raise first_error
        return found, left_out

    async def _describe_model(self, definition: EngineDefinition) -> _Model:
        """Describe an engine with a single model, or with one of its variants.

        Raises:
            CrowdedOut: it had no room beside other engines.
            LoadHung: so did its load, or crashed its host, now or at an earlier start.
            LoadCrashed: it crashed its host.
            SynergaiError: it cannot be used.
            OSError: its files cannot be read.
        """
        found = await asyncio.to_thread(digests_of, definition)
        key = found.key
        self._cache_keys[definition.name].add(key)
        description = self._known.get(key)
        if description is None:
            if (fault := self._fault(key)) is not None:
                raise LoadHung(f"{fault}; {_TRIED_AGAIN}")
            try:
                description = await self._inspect(definition)
            except (LoadHung, LoadCrashed) as error:
                self._faults[key] = LoadFault(str(error), self._now(), self._agent_version)
                raise
            self._known[key] = description
            self._faults.pop(key, None)
        digest = "" if definition.backend in _WITHOUT_MODEL else found.model
        return _Model(definition, description, digest, found.samples)

    def _fault(self, key: str) -> str | None:
        """Return the fault of a load that is not to be tried again yet; None if there is none."""
        fault = self._faults.get(key)
        if fault is None or fault.version != self._agent_version:
            return None
        return None if self._now() - fault.at >= _TRY_AGAIN_S else fault.fault

    async def _load_once(self, definition: EngineDefinition) -> Description:
        variant = definition.variant and f", variant {definition.variant}"
        _log.info("inspecting engine %s%s", definition.name, variant)
        session = Session(definition.name, Configuration(1, variant=definition.variant))
        models = await asyncio.to_thread(self._models.of, definition.name)
        host = await HostProcess.start(
            models, session, memory=self._memory, load_timeout_s=_LOAD_TIMEOUT_S
        )
        await host.close()
        ready = host.ready
        return Description(ready.inputs, ready.outputs, ready.samples, printable(ready.unverified))

    def _write_cache(self) -> None:
        """Write the cache, without the entries of engines that are gone."""
        if not self._describing and self._described.keys() <= self._cache_keys.keys():
            present = self._described.keys() | self._found
            used = {key for name in present for key in self._cache_keys.get(name, ())}
            self._known = {key: self._known[key] for key in used & self._known.keys()}
            self._faults = {key: self._faults[key] for key in used & self._faults.keys()}
        try:
            write_descriptions(self._cache, self._known, self._faults)
        except OSError as error:  # only costs time at the next start
            _log.warning("cannot write %s: %s", self._cache, error.strerror)


def _scan(models: ModelDirectories) -> dict[EngineName, _Snapshot]:
    """Return a snapshot of every engine; the definition of an unreadable one has a fault."""
    return {definition.name: (definition, _stamps(definition)) for definition in models.engines()}


def _folder_times(models: ModelDirectories) -> dict[str, int]:
    """Return the entries of the directories, with the times when files were added or removed."""
    times: dict[str, int] = {}
    for directory in models:
        if directory is None:
            continue
        with suppress(OSError), os.scandir(directory) as entries:
            for entry in entries:
                if not entry.name.startswith("."):
                    times[entry.path] = entry.stat(follow_symlinks=False).st_mtime_ns
    return times


def _is_complete(definition: EngineDefinition) -> bool:
    """Return whether the folder was renamed, or a copy set its times, after its last file."""
    if definition.fault or definition.folder is None:
        return False
    try:
        folder = definition.folder.stat()
        files = [path.stat().st_ctime_ns for path in definition.folder.rglob("*")]
    except OSError:  # it is being changed
        return False
    return folder.st_ctime_ns > folder.st_mtime_ns and folder.st_ctime_ns >= max(files, default=0)


def _size(snapshot: _Snapshot) -> int:
    """Return the size of an engine's files in bytes."""
    return sum(size for _, size, _ in snapshot[1])


def _stamps(definition: EngineDefinition) -> tuple[tuple[int, int, int], ...]:
    if definition.fault:
        return ()
    try:
        models = [each.file for each in definition.variants] or [definition.file]
        files = [file for model in models for file in list_files(model)]
        stats = [path.stat() for path in (*files, *_inputs(definition))]
    except (InvalidInput, OSError):  # it is being changed
        return ()
    return tuple((stat.st_ino, stat.st_size, stat.st_mtime_ns) for stat in stats)


def _inputs(definition: EngineDefinition) -> list[Path]:
    """Return the files with inputs for the model."""
    samples = [definition.samples] if definition.samples else []
    return samples + [given.file for given in definition.warmup if given.file is not None]


def _pending(definition: EngineDefinition) -> Engine:
    return replace(_undescribed(definition, "it is being inspected"), pending=True)


def _faulty(definition: EngineDefinition, fault: str) -> Engine:
    fault = printable(fault)  # file names in it may not be valid UTF-8
    _log.warning("engine %s is unusable: %s", definition.name, fault)
    return _undescribed(definition, fault)


def _undescribed(definition: EngineDefinition, fault: str) -> Engine:
    return Engine(
        name=definition.name,
        version=definition.version,
        backend=definition.backend,
        inputs=(),
        outputs=(),
        fault=fault,
    )


def _to_engine(
    definition: EngineDefinition, models: Sequence[_Model], left_out: Iterable[LeftOut]
) -> Engine:
    """Return an engine as its first model describes it, with the variants that it has."""
    first = models[0]
    declared = {variant.name: variant for variant in definition.variants}
    return Engine(
        name=definition.name,
        version=definition.version,
        backend=first.definition.backend,
        inputs=first.description.inputs,
        outputs=first.description.outputs,
        digest=first.digest,
        samples=first.description.samples,
        unverified=first.description.unverified,
        preprocess=definition.preprocess,
        postprocess=definition.postprocess,
        max_batch=definition.max_batch,
        variants=tuple(
            Variant(
                name=name,
                digest=model.digest,
                accuracy=declared[name].accuracy or 0.0,
                origin=declared[name].origin,
            )
            for model in models
            if (name := model.definition.variant)
        ),
        left_out=tuple(left_out),
        samples_digest=first.samples_digest,
    )


def _check_alike(model: _Model, first: _Model) -> None:
    """Check that clients need not know which of two variants answers.

    Raises:
        EngineUnusable: they differ in more than accuracy and speed.
    """
    ours, theirs = model.description, first.description
    for what in ("inputs", "outputs"):
        if (mine := getattr(ours, what)) != (other := getattr(theirs, what)):
            raise EngineUnusable(
                f"its {what} are {_format(mine)}, but those of variant "
                f"{first.definition.variant} are {_format(other)}; all variants of an engine have "
                "to have the same"
            )
    if ours.unverified and not theirs.unverified:
        raise EngineUnusable(ours.unverified)


def _format(tensors: Sequence[TensorSpec]) -> str:
    return ", ".join(f"{each.name} {each.datatype} {list(each.shape)}" for each in tensors)
