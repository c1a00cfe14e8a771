"""The engines that this machine has, described by the models themselves.

What a model takes and gives is found by loading it once in a host of its own. The answer is
kept in a small file under the digests of what was loaded, so that the next start is quick.
"""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from engines.model_directory import EngineDefinition, ModelDirectory
from engines.model_files import digest
from synergai.domain import Configuration, Engine, EngineName, Session, TensorSpec
from synergai.errors import InvalidInput, SynergaiError
from synergai.wire import engine_from_proto, engine_to_proto
from worker_agent.host_process import HostProcess

if TYPE_CHECKING:
    from pathlib import Path

_PATIENCE_S: Final = 60.0
"""An engine that loads for longer would keep the whole worker from its gateway."""
_CACHE_FORMAT: Final = 1

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Description:
    """What only loading a model and its samples can tell."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    samples: int

    @classmethod
    def parse(cls, fields: dict[str, Any]) -> _Description:
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
    """

    def __init__(self, models: Path, cache: Path) -> None:
        self._models = models
        self._cache = cache

    async def engines(self) -> dict[EngineName, Engine]:
        """All engines, those that cannot be used included, with the reason as their fault.

        Raises:
            NotFound: the model directory is not there.
        """
        known = self._read_cache()
        definitions = await asyncio.to_thread(ModelDirectory(self._models).engines)
        found = [await self._describe(definition, known) for definition in definitions]
        self._write_cache(known)
        return {engine.name: engine for engine in found}

    async def _describe(
        self, definition: EngineDefinition, known: dict[str, _Description]
    ) -> Engine:
        """Describe one engine, from what is `known` or by loading it; and add to `known`."""
        try:
            key, file_digest = await asyncio.to_thread(_digests, definition)
            if key not in known:
                known[key] = await self._inspect(definition)
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
        )
        try:
            # A gateway would refuse the whole worker over one engine that cannot be said.
            return engine_from_proto(engine_to_proto(engine))
        except InvalidInput as error:
            return _faulty(definition, str(error))

    async def _inspect(self, definition: EngineDefinition) -> _Description:
        _log.info("inspecting engine %s", definition.name)
        session = Session(definition.name, Configuration(1))
        host = await HostProcess.start(self._models, session, load_timeout_s=_PATIENCE_S)
        await host.close()
        return _Description(host.ready.inputs, host.ready.outputs, host.ready.samples)

    def _read_cache(self) -> dict[str, _Description]:
        """What was found before; nothing if the file is missing, damaged or of another form."""
        try:
            content = json.loads(self._cache.read_text("utf-8"))
            if content["format"] != _CACHE_FORMAT:
                return {}
            return {key: _Description.parse(fields) for key, fields in content["engines"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return {}

    def _write_cache(self, known: dict[str, _Description]) -> None:
        engines = {key: asdict(description) for key, description in known.items()}
        temporary = self._cache.with_suffix(".new")
        temporary.write_text(json.dumps({"format": _CACHE_FORMAT, "engines": engines}), "utf-8")
        temporary.replace(self._cache)


def _digests(definition: EngineDefinition) -> tuple[str, str]:
    """What the description depends on, and the model file's own digest."""
    of_file = definition.verified_digest()
    of_samples = digest(definition.samples) if definition.samples else ""
    processing = f"{definition.preprocess}:{definition.postprocess}"
    return f"{definition.backend}:{of_file}:{of_samples}:{processing}", of_file


def _faulty(definition: EngineDefinition, fault: str) -> Engine:
    _log.warning("engine %s cannot be used: %s", definition.name, fault)
    return Engine(
        name=definition.name,
        version=definition.version,
        backend=definition.backend,
        inputs=(),
        outputs=(),
        fault=fault,
    )
