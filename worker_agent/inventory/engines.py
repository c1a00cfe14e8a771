"""Engines as their definitions and models describe them."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from synergai.domain import Engine, Variant
from synergai.errors import EngineUnusable, InvalidInput
from synergai.models.formats.model_files import list_files
from synergai.runtime.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from synergai.domain import EngineName, TensorSpec, UnusedVariant
    from synergai.models.descriptions import EngineDescription
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


_log = logging.getLogger(__name__)


class Model(NamedTuple):
    """A model of an engine, and what loading it has found out."""

    definition: EngineDefinition
    description: EngineDescription
    digest: str
    samples_digest: str


def pending_engine(definition: EngineDefinition) -> Engine:
    """Return an engine that is yet to be described."""
    return replace(_undescribed(definition, "it is being inspected"), pending=True)


def faulty_engine(definition: EngineDefinition, fault: str, *, too_large: bool = False) -> Engine:
    """Return an engine that cannot be used, and log the reason."""
    fault = fault.removeprefix(f"engine {definition.name!r}: ")  # it is shown next to the name
    fault = printable(fault)  # file names in it may not be valid UTF-8
    _log.warning("engine %s is unusable: %s", definition.name, fault)
    return replace(_undescribed(definition, fault), too_large=too_large)


def described_engine(
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


def check_alike(model: Model, first: Model) -> None:
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
    )


def _format(tensors: Sequence[TensorSpec]) -> str:
    return ", ".join(f"{each.name} {each.kind}" for each in tensors)
