"""The engines that this machine has, described by the models themselves.

What a model takes and gives is found by loading it once in a host of its own. The answer is
kept in a small file under the digests of what was loaded, so that the next start is quick, for as
long as the engine is there and has not changed. The directory may change at any time: what its
files look like tells which engines to look at again.
"""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from synergai.domain import Configuration, Engine, EngineName, Session, TensorSpec
from synergai.errors import InvalidInput, SynergaiError
from synergai.models.directory import EngineDefinition, ModelDirectory
from synergai.models.formats.model_files import digest, list_files
from synergai.protocol.converters import engine_from_proto, engine_to_proto
from synergai.runtime.atomic_file import write_atomic
from synergai.runtime.text import printable
from worker_agent.hosts.process import HostProcess

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    Inspect: TypeAlias = Callable[[EngineDefinition], Awaitable["Description"]]
    _Snapshot: TypeAlias = tuple[EngineDefinition, tuple[tuple[int, ...], ...]]
    """A definition, and of each file its inode, size and time of change."""

_PATIENCE_S: Final = 60.0
"""An engine that loads for longer would keep the whole worker from its gateway."""
_CACHE_FORMAT: Final = 1

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Description:
    """What only loading a model and its samples can tell."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    samples: int

    @classmethod
    def parse(cls, fields: dict[str, Any]) -> Description:
        """From what the cache keeps of it."""
        inputs, outputs = (
            tuple(TensorSpec(t["name"], t["datatype"], tuple(t["shape"])) for t in fields[side])
            for side in ("inputs", "outputs")
        )
        return cls(inputs, outputs, int(fields["samples"]))


class Inventory:
    """Describes the engines of a model directory.

    Args:
        models: the model directory.
        cache: file for what was found before; it may be missing.
        inspect: describes a model, by loading it once if nothing else is given.
    """

    def __init__(self, models: Path, cache: Path, inspect: Inspect | None = None) -> None:
        self._models = models
        self._cache = cache
        self._inspect = self._load_once if inspect is None else inspect
        # As described, and as at the last look, which may have been at a file half copied.
        self._described: dict[EngineName, _Snapshot] = {}
        self._looked: dict[EngineName, _Snapshot] = {}
        # What the description of each is kept under.
        self._keys: dict[EngineName, str] = {}

    async def engines(self) -> dict[EngineName, Engine]:
        """All engines, those that cannot be used included, with the reason as their fault.

        Raises:
            NotFound: the model directory is not there.
        """
        self._looked = self._described = await asyncio.to_thread(_scan, self._models)
        return await self._describe_all(self._looked)

    async def changed(self) -> dict[EngineName, Engine | None]:
        """The engines that have changed since they were described; None for those that are gone.

        An engine has changed once it looks different than described, and the same in two calls
        one after the other: a large file takes a while to be copied.

        Raises:
            NotFound: the model directory is not there.
        """
        looked, before = await asyncio.to_thread(_scan, self._models), self._looked
        self._looked = looked
        changed = {
            name: look
            for name, look in looked.items()
            if look == before.get(name) and look != self._described.get(name)
        }
        gone = self._described.keys() - looked.keys() - before.keys()
        kept = {name: look for name, look in self._described.items() if name not in gone}
        self._described = kept | changed
        return {**dict.fromkeys(gone), **await self._describe_all(changed)}

    async def _describe_all(self, looks: dict[EngineName, _Snapshot]) -> dict[EngineName, Engine]:
        if not looks:
            return {}
        known = self._read_cache()
        found = {name: await self._describe(look[0], known) for name, look in looks.items()}
        there = {self._keys[name] for name in self._described.keys() & self._keys.keys()}
        self._write_cache({key: known[key] for key in there & known.keys()})
        return found

    async def _describe(
        self, definition: EngineDefinition, known: dict[str, Description]
    ) -> Engine:
        """Describe one engine, from what is `known` or by loading it; and add to `known`."""
        try:
            key, file_digest = await asyncio.to_thread(_digests, definition)
            if key not in known:
                known[key] = await self._inspect(definition)
            self._keys[definition.name] = key
        except SynergaiError as error:
            return _faulty(definition, str(error))
        except OSError as error:
            return _faulty(definition, f"{error.filename} cannot be read: {error.strerror}")
        engine = Engine(
            name=definition.name,
            version=definition.version,
            backend=definition.backend,
            inputs=known[key].inputs,
            outputs=known[key].outputs,
            digest=file_digest,
            samples=known[key].samples,
            preprocess=definition.preprocess,
            postprocess=definition.postprocess,
            max_batch=definition.max_batch,
        )
        try:
            # A gateway would refuse the whole worker over one engine that cannot be said.
            return engine_from_proto(engine_to_proto(engine))
        except InvalidInput as error:
            return _faulty(definition, str(error))

    async def _load_once(self, definition: EngineDefinition) -> Description:
        _log.info("inspecting engine %s", definition.name)
        session = Session(definition.name, Configuration(1))
        host = await HostProcess.start(self._models, session, load_timeout_s=_PATIENCE_S)
        await host.close()
        return Description(host.ready.inputs, host.ready.outputs, host.ready.samples)

    def _read_cache(self) -> dict[str, Description]:
        """What was found before; nothing if the file is missing, damaged or of another form."""
        try:
            content = json.loads(self._cache.read_text("utf-8"))
            if content["format"] != _CACHE_FORMAT:
                return {}
            return {key: Description.parse(fields) for key, fields in content["engines"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return {}

    def _write_cache(self, known: dict[str, Description]) -> None:
        engines = {key: asdict(description) for key, description in known.items()}
        try:
            write_atomic(self._cache, json.dumps({"format": _CACHE_FORMAT, "engines": engines}))
        except OSError as error:  # costs time at the next start, and no engine now
            _log.warning("cannot write %s: %s", self._cache, error.strerror)


def _scan(models: Path) -> dict[EngineName, _Snapshot]:
    """What the engines' files look like; of one that cannot be looked at, what is wrong."""
    return {
        definition.name: (definition, _stamps(definition))
        for definition in ModelDirectory(models).engines()
    }


def _stamps(definition: EngineDefinition) -> tuple[tuple[int, ...], ...]:
    if definition.fault:
        return ()
    samples = [definition.samples] if definition.samples else []
    try:
        stats = [path.stat() for path in (*list_files(definition.file), *samples)]
    except (InvalidInput, OSError):  # it is changing this very moment
        return ()
    return tuple((stat.st_ino, stat.st_size, stat.st_mtime_ns) for stat in stats)


def _digests(definition: EngineDefinition) -> tuple[str, str]:
    """What the description depends on, and the model file's own digest."""
    of_file = definition.verified_digest()
    of_samples = digest(definition.samples) if definition.samples else ""
    processing = f"{definition.preprocess}:{definition.postprocess}"
    tensors = f"{','.join(definition.inputs)}:{','.join(definition.outputs)}"
    # Whether a model allows of batches shows when it is loaded, too.
    key = f"{definition.backend}:{of_file}:{of_samples}:{processing}:{tensors}"
    return f"{key}:{definition.max_batch}", of_file


def _faulty(definition: EngineDefinition, fault: str) -> Engine:
    fault = printable(fault)  # a name of a file that is no text could not be told the gateway
    _log.warning("engine %s cannot be used: %s", definition.name, fault)
    return Engine(
        name=definition.name,
        version=definition.version,
        backend=definition.backend,
        inputs=(),
        outputs=(),
        fault=fault,
    )
