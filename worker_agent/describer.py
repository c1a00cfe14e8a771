"""Description of engines: the state of their files, their tensors, digests and variants.

The tensors of a model are determined by loading it once in an engine host. The result is cached in
a small file, keyed by the digests of the loaded files, until the engine changes or is removed.
"""

from __future__ import annotations

import asyncio
import logging
import os
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from msgspec.structs import replace

from synergai.domain import (
    Configuration,
    Engine,
    EngineName,
    Session,
    TensorSpec,
    UnusedVariant,
    Variant,
)
from synergai.errors import EngineUnusable, InvalidInput, SynergaiError, Unavailable
from synergai.models.definition import ADVICE
from synergai.models.descriptions import (
    EngineDescription,
    digests_of,
    read_descriptions,
    write_descriptions,
)
from synergai.models.formats.model_files import list_files
from synergai.runtime.text import printable
from synergai.wire.converters import engine_from_proto, engine_to_proto
from worker_agent.hosts.loads import LoadCrashed, LoadHung
from worker_agent.hosts.memory import CrowdedOut, HostMemory, TooLarge
from worker_agent.hosts.process import HostProcess

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence, Set
    from pathlib import Path

    from synergai.models.directories import ModelDirectories
    from synergai.models.directory import EngineDefinition

    Inspect: TypeAlias = Callable[[EngineDefinition], Awaitable[EngineDescription]]

_LOAD_TIMEOUT_S: Final = 60.0
_WITHOUT_MODEL: Final = frozenset({"emulated"})
"""Backends whose files hold times, and differ between workers that serve the same engine, unless
their digest is declared."""
_TRIED_AGAIN: Final = (
    "it is loaded again when its files change, on request, or when the agent starts again"
)
_TRIED_SOON: Final = "it is loaded again within minutes"

_log = logging.getLogger(__name__)


class _Stamp(NamedTuple):
    """State of a file; a file with the same one has the same content."""

    inode: int
    size_bytes: int
    modified_ns: int


class EngineSnapshot(NamedTuple):
    """An engine as it was found; without stamps if it has a fault, or was being changed."""

    definition: EngineDefinition
    stamps: tuple[_Stamp, ...]

    @property
    def size_bytes(self) -> int:
        return sum(stamp.size_bytes for stamp in self.stamps)


def take_snapshots(models: ModelDirectories) -> dict[EngineName, EngineSnapshot]:
    return {each.name: EngineSnapshot(each, stamps_of(each)) for each in models.engines()}


def stamps_of(definition: EngineDefinition) -> tuple[_Stamp, ...]:
    """Return the states of an engine's files; empty if it has a fault, or they change."""
    if definition.fault:
        return ()
    try:
        models = [each.file for each in definition.variants] or [definition.file]
        files = [file for model in models for file in list_files(model)]
        samples = [definition.samples] if definition.samples else []
        stats = [path.stat() for path in (*files, *samples)]
    except (InvalidInput, OSError):
        return ()
    return tuple(_Stamp(stat.st_ino, stat.st_size, stat.st_mtime_ns) for stat in stats)


def is_complete(definition: EngineDefinition) -> bool:
    """Return whether the folder was renamed, or a copy set its times, after its last file."""
    if definition.fault or definition.folder is None:
        return False
    try:
        folder = definition.folder.stat()
        files = [path.stat().st_ctime_ns for path in definition.folder.rglob("*")]
    except OSError:  # it is being changed
        return False
    return folder.st_ctime_ns > folder.st_mtime_ns and folder.st_ctime_ns >= max(files, default=0)


def folder_times(models: ModelDirectories) -> dict[str, int]:
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


class Model(NamedTuple):
    """A model of an engine, and what loading it has found out."""

    definition: EngineDefinition
    description: EngineDescription
    digest: str
    samples_digest: str


def pending_engine(definition: EngineDefinition) -> Engine:
    """Return an engine that is yet to be described."""
    return replace(_undescribed(definition, "it is being inspected"), pending=True)


def faulty_engine(definition: EngineDefinition, fault: str) -> Engine:
    """Return an engine that cannot be used, and log the reason."""
    fault = fault.removeprefix(f"engine {definition.name!r}: ")  # it is shown next to the name
    fault = printable(fault)  # file names in it may not be valid UTF-8
    _log.warning("engine %s is unusable: %s", definition.name, fault)
    return _undescribed(definition, fault)


def _described_engine(
    definition: EngineDefinition, models: Sequence[Model], unused: Iterable[UnusedVariant]
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
        unused_variants=tuple(unused),
        samples_digest=first.samples_digest,
        query_s=first.description.query_s,
        stage_of=definition.stage_of,
        stage_end=definition.stage_end,
        exit=definition.exit,
    )


def _check_alike(model: Model, first: Model) -> None:
    """Check that clients need not know which of two variants answers."""
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


def _undescribed(definition: EngineDefinition, fault: str) -> Engine:
    return Engine(
        name=definition.name,
        version=definition.version,
        backend=definition.backend,
        inputs=(),
        outputs=(),
        fault=fault,
        routes=definition.routes,
    )


def _format(tensors: Sequence[TensorSpec]) -> str:
    return ", ".join(f"{each.name} {each.kind}" for each in tensors)


class Describer:
    """Describes engines from a cache, or by loading them."""

    def __init__(self, cache: Path) -> None:
        self._cache = cache
        self._reading = asyncio.Lock()
        self._keys: dict[EngineName, set[str]] = {}
        # Of the first model.
        self._digests: dict[EngineName, str] = {}
        self._not_loaded: set[EngineName] = set()
        # Those that failed to load in service, although they are known.
        self._doubted: set[EngineName] = set()
        # Those whose load, or that of a variant, failed for a reason that may pass.
        self._interrupted: set[EngineName] = set()
        # The content of the cache, and what was found out since.
        self._known: dict[str, EngineDescription] = {}
        # Why loads hung or crashed.
        self._faults: dict[str, str] = {}

    def remembers_fault(self, name: EngineName) -> bool:
        """Return whether an engine is faulty only because of how its last load ended."""
        return name in self._not_loaded

    def doubt(self, name: EngineName) -> None:
        """Let an engine be loaded the next time it is described, even if it is known."""
        self._not_loaded.add(name)
        self._doubted.add(name)

    def passing(self) -> set[EngineName]:
        """Return the engines whose fault, or that of a variant, may pass soon."""
        return self._interrupted | self._doubted

    def read_cache(self) -> None:
        """Read what commands have added to the cache."""
        self._known = read_descriptions(self._cache) | self._known

    def write_cache(self) -> None:
        try:
            write_descriptions(self._cache, self._known)
        except OSError as error:  # only costs time at the next start
            _log.warning("cannot write %s: %s", self._cache, error.strerror)

    def keep_only(self, described: Set[EngineName], found: Set[EngineName]) -> None:
        """Drop the cache's entries of engines that are gone, once all have been described."""
        if described <= self._keys.keys():
            used = {key for name in described | found for key in self._keys.get(name, ())}
            self._known = {key: self._known[key] for key in used & self._known.keys()}
            self._faults = {key: self._faults[key] for key in used & self._faults.keys()}

    def forget_faults(self, name: EngineName) -> None:
        """Forget that the loads of an engine hung or crashed."""
        for key in self._keys.get(name, ()):
            self._faults.pop(key, None)

    async def describe(self, definition: EngineDefinition, inspect: Inspect) -> Engine:
        """Describe an engine from the cache or by loading it; its fault says why it is not used."""
        name = definition.name
        self._keys[name] = set()
        self._digests.pop(name, None)
        self._interrupted.discard(name)
        unused: list[UnusedVariant] = []
        try:
            if definition.variants:
                models, unused = await self._describe_variants(definition, inspect)
            else:
                models = [await self._describe_model(definition, inspect)]
        except (LoadHung, Unavailable) as error:
            self._not_loaded.add(name)
            faulty = faulty_engine(definition, str(error))
            too_large = isinstance(error.__cause__, TooLarge)
            return replace(faulty, too_large=too_large, digest=self._digests.get(name, ""))
        except SynergaiError as error:
            self._not_loaded.discard(name)
            self._doubted.discard(name)
            faulty = faulty_engine(definition, str(error))
            if isinstance(error, TooLarge):  # for a gateway that may cut it
                return replace(faulty, too_large=True, digest=self._digests[name])
            return faulty
        # Only now: until the load has ended, one that is requested meanwhile waits for it.
        self._not_loaded.discard(name)
        self._doubted.discard(name)
        engine = _described_engine(definition, models, unused)
        if engine.unverified:
            _log.warning(
                "engine %s is served unverified: %s; %s", engine.name, engine.unverified, ADVICE
            )
        try:
            # A gateway would reject the whole worker because of one invalid engine.
            return engine_from_proto(engine_to_proto(engine))
        except InvalidInput as error:
            return faulty_engine(definition, str(error))

    async def _describe_variants(
        self, definition: EngineDefinition, inspect: Inspect
    ) -> tuple[list[Model], list[UnusedVariant]]:
        """Describe the variants of an engine, and say which cannot serve as it."""
        found: list[Model] = []
        unused: list[UnusedVariant] = []
        first_error: SynergaiError | None = None
        for variant in definition.variants:
            try:
                model = await self._describe_model(definition.of_variant(variant.name), inspect)
                if found:
                    _check_alike(model, found[0])
            except SynergaiError as error:
                _log.warning(
                    "variant %s of engine %s is not used: %s", variant.name, definition.name, error
                )
                unused.append(UnusedVariant(variant.name, printable(str(error))))
                first_error = first_error or error
            else:
                found.append(model)
        if not found and first_error is not None:
            raise first_error
        return found, unused

    async def _describe_model(self, definition: EngineDefinition, inspect: Inspect) -> Model:
        """Describe an engine with a single model, or with one of its variants."""
        async with self._reading:  # so that loads begin in the order of these calls
            try:
                found = await asyncio.to_thread(digests_of, definition)
            except OSError as error:
                self._interrupted.add(definition.name)
                raise Unavailable(
                    f"{error.filename} cannot be read: {error.strerror}; {_TRIED_SOON}"
                ) from None
        key = found.key
        self._keys[definition.name].add(key)
        self._digests.setdefault(definition.name, found.model)
        description = self._known.get(key)
        if description is None and definition.name not in self._doubted:
            description = _declared(definition)
        if description is None or definition.name in self._doubted:
            if key in self._faults:
                raise LoadHung(f"{self._faults[key]}; {_TRIED_AGAIN}")
            try:
                loaded = await inspect(definition)
            except SynergaiError as error:
                # Neither an end from outside nor a model that was loaded before says much about it.
                if description is None and isinstance(error, (LoadHung, LoadCrashed)):
                    self._faults[key] = str(error)
                    self._doubted.discard(definition.name)
                    raise
                if description is None and not isinstance(error, Unavailable):
                    raise
                self._interrupted.add(definition.name)
                raise Unavailable(f"{error}; {_TRIED_SOON}") from error
            self._known[key] = description = loaded
        differs = definition.backend in _WITHOUT_MODEL and not definition.sha256
        digest = "" if differs else found.model
        return Model(definition, description, digest, found.samples)


def _declared(definition: EngineDefinition) -> EngineDescription | None:
    """Return what a stage declares of itself; None if it has to be loaded, also to count samples.

    The gateway makes stages while an engine lacks workers, and has them loaded when there is room.
    """
    if definition.tensors is None or definition.samples or definition.max_batch > 1:
        return None
    return EngineDescription(definition.tensors.inputs, definition.tensors.outputs, samples=0)


async def inspect_in_host(
    models: ModelDirectories, memory: HostMemory | None, definition: EngineDefinition
) -> EngineDescription:
    """Describe a model, the only one of an engine or one of its variants, in an engine host."""
    variant = definition.variant and f", variant {definition.variant}"
    _log.info("inspecting engine %s%s", definition.name, variant)
    session = Session(definition.name, Configuration(1, variant=definition.variant))
    directory = await asyncio.to_thread(models.of, definition.name)
    start = partial(
        HostProcess.start, directory, session, memory=memory, load_timeout_s=_LOAD_TIMEOUT_S
    )
    try:
        host = await start()
    except CrowdedOut as crowded:
        if memory is None or not await memory.make_room(crowded.size_bytes):
            raise
        host = await start()
    await host.close()
    ready = host.ready
    return EngineDescription(
        ready.inputs, ready.outputs, ready.samples, printable(ready.unverified), ready.query_s
    )
