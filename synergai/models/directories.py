"""The model directories of an agent: the user's own, and the one with what it has fetched."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from synergai.errors import NotFound
from synergai.models.directory import ModelDirectory
from synergai.names import split_version

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from synergai.domain import EngineName
    from synergai.models.directory import EngineDefinition


class ModelDirectories(NamedTuple):
    """Two model directories; of a version that both have, the user's own is used.

    Attributes:
        own: the user's model directory.
        fetched: the directory of fetched engines, which may not exist; None without one.
    """

    own: Path
    fetched: Path | None = None

    def engines(self) -> list[EngineDefinition]:
        """Return all engines, also faulty ones."""
        own = self.own_engines()
        names = {definition.name for definition in own}
        if self.fetched is not None:
            with suppress(NotFound):
                own += [
                    each
                    for each in ModelDirectory(self.fetched).engines()
                    if each.name not in names
                ]
        return own

    def own_engines(self) -> list[EngineDefinition]:
        """Return the user's engines; none without a directory, which may be made later."""
        return ModelDirectory(self.own).engines() if self.own.exists() else []

    def of(self, engine: EngineName) -> Path:
        if self.fetched is None or not self.fetched_of((engine,)):
            return self.own
        return self.fetched

    def fetched_of(self, engines: Iterable[EngineName]) -> list[EngineName]:
        """Return the engines whose fetched version is used."""
        if self.fetched is None:
            return []
        found = [engine for engine in engines if self.folder(engine).is_dir()]
        own: set[EngineName] = set()
        if found:
            with suppress(NotFound):  # what cannot be read is not used
                own = {definition.name for definition in self.own_engines()}
        return [engine for engine in found if engine not in own]

    def folder(self, engine: EngineName) -> Path:
        """Return the folder of a fetched version, which need not exist."""
        if self.fetched is None:
            raise ValueError("there is no directory of fetched engines")
        name, version = split_version(engine)
        return self.fetched / name / version
