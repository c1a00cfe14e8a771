"""Origin of an engine as entries record it, and the entries that are stale because of it."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, NamedTuple

from synergai.errors import SynergaiError
from synergai.models.directory import ModelDirectory
from synergai.models.formats.model_files import digest
from synergai.names import engine_of_stage
from synergai.profiles.dictionary import ConfigurationDictionary
from worker_agent.providers import runtime_version

if TYPE_CHECKING:
    from pathlib import Path

    from synergai.domain import EngineName
    from synergai.models.directory import EngineDefinition
    from synergai.profiles.dictionary import ProfileEntry


class EngineOrigin(NamedTuple):
    """Origin of an engine's figures.

    Attributes:
        digest: SHA-256 of the model file; empty if it cannot be read.
        runtime: inference runtime and its version; empty if not known.
    """

    digest: str = ""
    runtime: str = ""


class EngineOrigins:
    """Origins of the engines of a model directory, each found once."""

    def __init__(self, models: Path) -> None:
        self._directory = ModelDirectory(models)
        self._known: dict[tuple[str, str], EngineOrigin] = {}
        self._samples: dict[str, str] = {}

    def of(self, engine: EngineName, variant: str = "") -> EngineOrigin:
        """Return the origin of an engine, or of one variant of it.

        Nothing is known of one that is not in the directory.
        """
        key = engine, variant
        if key not in self._known:
            try:
                definition = self._directory.get(engine).of_variant(variant)
                self._known[key] = EngineOrigin(
                    definition.verified_digest(), runtime_version(definition.backend)
                )
            except (SynergaiError, OSError):
                self._known[key] = EngineOrigin()
        return self._known[key]

    def samples_of(self, engine: EngineName) -> str:
        """Return the SHA-256 of an engine's sample set; empty if it has none that can be read."""
        if engine not in self._samples:
            try:
                samples = self._directory.get(engine).samples
                self._samples[engine] = "" if samples is None else digest(samples)
            except (SynergaiError, OSError):
                self._samples[engine] = ""
        return self._samples[engine]

    def is_stale(self, entry: ProfileEntry) -> bool:
        """Return whether an entry is of another model file or runtime than the engine has now."""
        return entry.is_stale(*self.of(entry.engine, entry.configuration.variant))


def present_entries(
    dictionary: ConfigurationDictionary, models: Path, model: EngineDefinition
) -> tuple[ConfigurationDictionary, int]:
    """Return the entries of an engine and its stages, and how many others are of another file."""
    origins = EngineOrigins(models)
    entries = [
        entry
        for entry in dictionary
        if engine_of_stage(entry.engine) == model.name
        and entry.configuration.variant in ("", model.variant)
    ]
    present = [
        entry
        for entry in entries
        if not entry.is_stale(origins.of(entry.engine, entry.configuration.variant).digest, "")
    ]
    return ConfigurationDictionary(present), len(entries) - len(present)


def agent_version() -> str:
    """Return the version of SynergAI; empty if it is not installed as a package."""
    try:
        return version("synergai")
    except PackageNotFoundError:
        return ""
