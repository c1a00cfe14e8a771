"""Snapshots of the engines in the model directories, which tell whether an engine has changed."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from synergai.errors import InvalidInput
from synergai.models.formats.model_files import list_files

if TYPE_CHECKING:
    from pathlib import Path

    from synergai.domain import EngineName
    from synergai.models.directories import ModelDirectories
    from synergai.models.directory import EngineDefinition


class Stamp(NamedTuple):
    """State of a file; a file with the same one has the same content."""

    inode: int
    size_bytes: int
    modified_ns: int


class EngineSnapshot(NamedTuple):
    """An engine as it was found; without stamps if it has a fault, or was being changed."""

    definition: EngineDefinition
    stamps: tuple[Stamp, ...]

    @property
    def size_bytes(self) -> int:
        """Total size of its files."""
        return sum(stamp.size_bytes for stamp in self.stamps)


def take_snapshots(models: ModelDirectories) -> dict[EngineName, EngineSnapshot]:
    """Return a snapshot of every engine."""
    return {each.name: EngineSnapshot(each, stamps_of(each)) for each in models.engines()}


def stamps_of(definition: EngineDefinition) -> tuple[Stamp, ...]:
    """Return the states of an engine's files; empty if it has a fault, or they change."""
    if definition.fault:
        return ()
    try:
        models = [each.file for each in definition.variants] or [definition.file]
        files = [file for model in models for file in list_files(model)]
        stats = [path.stat() for path in (*files, *_inputs(definition))]
    except (InvalidInput, OSError):
        return ()
    return tuple(Stamp(stat.st_ino, stat.st_size, stat.st_mtime_ns) for stat in stats)


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


def _inputs(definition: EngineDefinition) -> list[Path]:
    """Return the files with inputs for the model."""
    samples = [definition.samples] if definition.samples else []
    return samples + [given.file for given in definition.warmup.values() if given.file is not None]
