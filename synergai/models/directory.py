"""The model directory: one folder per engine.

A folder only needs a model file, see `synergai.models.formats.model_files`. This is version 1 of
the engine. Folders in it that are named by numbers are its versions, each with a model; version 1
may be one of them. An ``engine.toml`` in the model's folder is optional, see
`synergai.models.definition` and ``docs/guide/engines.md``; it may list several model files, the
variants of the engine. What to try a model with, see `synergai.models.definition`.

A ``samples.npz`` there is the engine's sample set, see `synergai.models.samples`. A version
without its own ``engine.toml`` or ``samples.npz`` uses that of the engine's folder, but not the
keys ``file``, ``sha256``, ``source``, ``accuracy`` and ``variants`` of a model that is in that
folder itself.

The contents of the directory are untrusted: every path is confined to it, and an invalid entry
becomes a definition with a fault, without affecting the other engines.
"""

from __future__ import annotations

import errno
import os
import shlex
import zlib
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from msgspec import structs

from synergai.domain import EngineName, Origin
from synergai.errors import EngineUnusable, InvalidInput, NotFound
from synergai.models.definition import VariantDefinition, read_definition, read_shared_definition
from synergai.models.formats.model_files import (
    DEFINITION_FILE,
    SAMPLES_FILE,
    SAVED_MODEL_FILE,
    backend_of,
    digest,
    find_models,
    find_only_model,
    is_version,
    list_files,
    size_bytes,
)
from synergai.names import (
    FIRST_VERSION,
    by_version,
    engine_of_stage,
    is_stage,
    split_version,
    validate_engine,
    validate_name,
    validate_version,
    versioned,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from synergai.domain import Exit
    from synergai.models.definition import DefinitionFile, StageTensors


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineDefinition:
    """A version of an engine as described by its folder. The model itself has not been opened.

    Attributes:
        name: The engine's folder, and the version's in it.
        backend: A name in the registry of backends.
        file: The model file or SavedModel folder; the engine's folder if there is no valid model.
        folder: The folder of the engine, or of this version of it; None if that was not read.
        samples: The sample set's file, if there is one.
        sha256: The required digest of the model, hexadecimal; empty if unknown.
        inputs: Input tensors of a frozen graph; empty to leave the choice to the backend.
        outputs: Output tensors of a frozen graph; empty to leave the choice to the backend.
        signature: Signature of a SavedModel or TFLite file; empty for ``serving_default``, and for
            the first graph of a TFLite file.
        title: A description, for display.
        accuracy: Share of correct answers, 0 to 1; None if unknown.
        source: The model's origin, for display.
        stage_of: Of a stage, the digest of the whole model, hexadecimal; otherwise empty.
        stage_end: Of a stage, the number of the last position in the whole model.
        exit: Of a stage, its early exit; None without any.
        tensors: Of a stage, its inputs and outputs; None if loading it has to tell.
        preprocess: How encoded images become its input, see `synergai.models.processing`; empty
            if it accepts tensors only.
        postprocess: The output derived on request, see `synergai.models.processing`; empty for
            none.
        max_batch: Largest number of queries per batch; 1 disables batching.
        routes: When the gateway may cut it; empty for its default.
        variants: Its variants, in the order of the file; empty if it has a single model. With
            variants, the attributes of the model describe the first one.
        lacking: Names of the variants whose file is not there.
        variant: The variant that this is the definition of, see `of_variant`; empty for none.
        fault: Why the engine is unusable; empty if no fault is known.
    """

    name: EngineName
    backend: str = ""
    file: Path
    folder: Path | None = None
    samples: Path | None = None
    sha256: str = ""
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    signature: str = ""
    title: str = ""
    accuracy: float | None = None
    source: str = ""
    stage_of: str = ""
    stage_end: int = 0
    exit: Exit | None = None
    tensors: StageTensors | None = None
    preprocess: str = ""
    postprocess: str = ""
    max_batch: int = 1
    routes: str = ""
    variants: tuple[VariantDefinition, ...] = ()
    lacking: tuple[str, ...] = ()
    variant: str = ""
    fault: str = ""

    @property
    def version(self) -> str:
        return split_version(self.name)[1]

    def of_variant(self, name: str) -> EngineDefinition:
        """Return the definition of the engine with only one of its variants.

        Args:
            name: The variant; empty for the first one, or for an engine without variants.
        """
        if not (name or self.variants):
            return self
        for each in self.variants:
            if name in ("", each.name):
                return replace(
                    self,
                    backend=each.backend,
                    file=each.file,
                    sha256=each.sha256,
                    accuracy=each.accuracy,
                    variants=(),
                    lacking=(),
                    variant=each.name,
                )
        if name in self.lacking:
            raise EngineUnusable(f"engine {self.name!r}: the file of variant {name!r} is missing")
        known = ", ".join(each.name for each in self.variants) or "none"
        raise EngineUnusable(f"engine {self.name!r} has no variant {name!r}; its variants: {known}")

    def verified_digest(self) -> str:
        """Return the model's digest after checking it against the required one."""
        if self.fault:
            raise EngineUnusable(f"engine {self.name!r}: {self.fault}")
        try:
            found = digest(self.file)
        except InvalidInput as error:  # changed after it was listed
            raise EngineUnusable(f"engine {self.name!r}: {error}") from error
        except OSError as error:
            raise EngineUnusable(
                f"engine {self.name!r}: {self.file.name} cannot be read: {error.strerror}"
            ) from error
        if self.sha256 and found != self.sha256:
            raise EngineUnusable(
                f"engine {self.name!r}: {self.file.name} is not the file that {DEFINITION_FILE} "
                f"asks for; restore the former file, or install another one with "
                f"{self._replace_command()!r} (its sha256 is {found}, not {self.sha256})"
            )
        return found

    def _replace_command(self) -> str:
        name, version = split_version(self.name)
        of_version = f" --version {version}" if is_version(self.file.parent.name) else ""
        return f"synergai engines add FILE --name {name}{of_version} --replace"


class ModelDirectory:
    """Reader of the engines below `path`. Nothing is cached."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    def engines(self) -> list[EngineDefinition]:
        """Return all engines, including faulty ones, sorted by name."""
        try:
            entries = sorted(self.path.iterdir())
        except OSError as error:
            raise NotFound(
                f"the model directory {self.path} cannot be read ({error.strerror}); add a "
                "model to it with 'synergai engines add FILE', build an engine into it with "
                "'synergai engines build', or name another directory"
            ) from error
        return [
            definition
            for entry in entries
            if not entry.name.startswith(".") and (entry.is_dir() or backend_of(entry))
            for definition in self._load_entry(entry)
        ]

    def get(self, name: str) -> EngineDefinition:
        """Return the engine called `name`, or the version ``NAME/N`` of one, even if faulty."""
        wanted = validate_engine(name)
        engines = self.engines()
        for definition in engines:
            if definition.name == wanted:
                return definition
        known = ", ".join(definition.name for definition in engines) or "none"
        raise NotFound(f"{self.path} has no engine {name!r}; known engines: {known}")

    def versions(self, name: str) -> list[EngineDefinition]:
        """Return the versions of an engine, also faulty ones, in ascending order."""
        found = [each for each in self.engines() if split_version(each.name)[0] == name]
        return sorted(found, key=lambda each: by_version(each.name))

    def _load_entry(self, entry: Path) -> list[EngineDefinition]:
        try:
            name = validate_name(entry.name, "engine name")
        except InvalidInput as error:
            return [_invalid("name", entry, f"folder {error}")]
        try:
            layout = self._find_layout(entry)
        except (InvalidInput, OSError):  # reported by the attempt to load it
            layout = _Layout()
        found = []
        if layout.flat:
            found.append(self._load(versioned(name, FIRST_VERSION), entry))
        for folder in layout.numbered:
            try:
                engine = versioned(name, validate_version(folder.name))
            except InvalidInput as error:
                found.append(
                    _invalid("version", folder, f"the folder {name}/{folder.name}: {error}")
                )
                continue
            if found and found[0].name == engine:
                fault = f"version {FIRST_VERSION} is both in this folder and in its {folder.name}/"
                found[0] = EngineDefinition(name=engine, file=entry, fault=fault)
            else:
                found.append(self._load(engine, folder))
        for folder in layout.misnamed:
            fault = f"the folder {name}/{folder.name} is not a version: name it by a number from 1"
            found.append(_invalid("version", folder, fault))
        return found

    def _find_layout(self, folder: Path) -> _Layout:
        self._check_confined(folder)
        if not folder.is_dir():
            return _Layout()
        folders = [each for each in folder.iterdir() if each.is_dir() and each.name[0] != "."]
        numbered = [each for each in folders if is_version(each.name)]
        if not numbered:
            return _Layout()
        file = ""
        with suppress(InvalidInput):  # reported by each version that uses it
            file = read_definition(self._check_confined(folder / DEFINITION_FILE)).file
        named = folder / file if file and (folder / file).exists() else None
        if named is not None:  # a SavedModel's folder may be called like a version
            numbered = [each for each in numbered if each != folder / Path(file).parts[0]]
        numbered.sort(key=lambda each: (int(each.name), each.name))
        flat = not numbered or named is not None or bool(find_models(folder))
        others = () if flat else sorted(each for each in folders if each not in numbered)
        return _Layout(flat, numbered, [each for each in others if find_models(each)])

    def _load(self, name: EngineName, folder: Path) -> EngineDefinition:
        """Return what `folder` describes; an invalid one is a definition with a fault."""
        try:
            return self._load_engine(name, folder)
        except InvalidInput as error:
            return EngineDefinition(name=name, file=folder, fault=str(error))
        except OSError as error:
            fault = f"{error.filename or folder} cannot be read: {error.strerror}"
            return EngineDefinition(name=name, file=folder, fault=fault)

    def _load_engine(self, name: EngineName, folder: Path) -> EngineDefinition:
        self._check_confined(folder)
        if not folder.is_dir():
            own = folder.with_suffix("") if folder.suffix else folder.with_name("NAME")
            loose, target = shlex.quote(str(folder)), shlex.quote(str(own))
            raise InvalidInput(
                f"{folder.name} is a file in the model directory; move it into a folder of its "
                f"own: mkdir -p {target} && mv {loose} {target}/"
            )
        keys = self._read_keys(name, folder)
        engine = split_version(name)[0]
        variants = self._present_variants(folder, keys)
        if variants:
            first = variants[0]
            keys = structs.replace(keys, sha256=first.sha256, accuracy=first.accuracy)
            file, backend = first.file, first.backend
        else:
            file = self._check_model(folder / keys.file if keys.file else find_only_model(folder))
            backend = keys.backend_of(file)
        keys.check_suits([each.file for each in variants] or [file])
        self._check_stage(name, keys.stage_of)
        samples = self._own_or_shared(folder, engine, SAMPLES_FILE)
        return EngineDefinition(
            name=name,
            backend=backend,
            file=file,
            folder=folder,
            samples=samples if samples.is_file() else None,
            sha256=keys.sha256.lower(),
            inputs=keys.inputs,
            outputs=keys.outputs,
            signature=keys.signature,
            title=keys.title,
            accuracy=keys.accuracy,
            source=keys.source,
            stage_of=keys.stage_of.lower(),
            stage_end=keys.stage_end,
            exit=keys.exit,
            tensors=keys.tensors,
            preprocess=keys.preprocess,
            postprocess=keys.postprocess,
            max_batch=keys.max_batch,
            routes=keys.routes,
            variants=variants,
            lacking=tuple(
                sorted({each.name for each in keys.variants} - {each.name for each in variants})
            ),
        )

    def _read_keys(self, name: EngineName, folder: Path) -> DefinitionFile:
        definition = self._own_or_shared(folder, split_version(name)[0], DEFINITION_FILE)
        read = read_definition if definition.parent == folder else read_shared_definition
        return read(definition)

    def _check_stage(self, name: EngineName, stage_of: str) -> None:
        """Check that a stage, and nothing else, is called so, and that it is of the present model.

        A directory without the whole engine may have stages of it.
        """
        if is_stage(name) != bool(stage_of):
            raise InvalidInput(
                f"{DEFINITION_FILE} has stage_of, but {split_version(name)[0]!r} is not the name "
                "of a stage"
                if stage_of
                else "its name is that of a stage: rename the folder, or make stages with "
                "'synergai engines split'"
            )
        if not stage_of:
            return
        engine = engine_of_stage(name)
        whole = self.path / split_version(engine)[0]
        if not whole.is_dir():
            return
        for definition in self._load_entry(whole):
            if definition.name != engine or definition.fault:
                continue
            model = definition.of_variant("")
            if (model.sha256 or model.verified_digest()) != stage_of:
                raise InvalidInput(
                    f"it is a stage of another model than engine {engine!r} has now; make it again "
                    f"with 'synergai engines split {engine} --at TENSOR… --replace'"
                )

    def _present_variants(
        self, folder: Path, keys: DefinitionFile
    ) -> tuple[VariantDefinition, ...]:
        variants = tuple(
            VariantDefinition(
                name=each.name,
                backend=keys.backend_of(file),
                file=self._check_model(file),
                sha256=each.sha256.lower(),
                accuracy=each.accuracy,
                origin=each.origin or Origin.DECLARED,
            )
            for each in keys.variants
            if (file := self._check_confined(folder / each.file)).exists()
        )
        if keys.variants and not variants:
            raise InvalidInput(f"none of the files of its {len(keys.variants)} variants exists")
        return variants

    def _own_or_shared(self, folder: Path, engine: str, file: str) -> Path:
        """Return a file of a version's folder, or of the engine's folder if only that has it."""
        own = self._check_confined(folder / file)
        if folder == self.path / engine or own.exists():
            return own
        shared = self._check_confined(self.path / engine / file)
        return shared if shared.exists() else own

    def _check_model(self, path: Path) -> Path:
        """Return the model at `path` once its files are confined and of valid size."""
        model = self._check_confined(path.parent if path.name == SAVED_MODEL_FILE else path)
        for file in list_files(model):
            self._check_confined(file)
        size_bytes(model)
        return model

    def _check_confined(self, path: Path) -> Path:
        """Return `path` if it is inside this directory after resolving links."""
        try:
            path.stat()
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise InvalidInput(f"{path.name!r} is a symbolic link to itself") from None
        if not path.resolve().is_relative_to(self.path.resolve()):
            raise InvalidInput(f"{path.name!r} leads outside the model directory")
        return path


class _Layout(NamedTuple):
    """Location of the versions of an engine.

    Attributes:
        flat: Whether the engine's folder itself is version 1.
        numbered: Folders that are named by numbers, by number; valid versions or not.
        misnamed: Other folders with models.
    """

    flat: bool = True
    numbered: Sequence[Path] = ()
    misnamed: Sequence[Path] = ()


def _invalid(part: str, entry: Path, fault: str) -> EngineDefinition:
    """Return a definition that reports an invalid name, itself with a valid and unique one."""
    unique = entry.name if part == "name" else f"{entry.parent.name}/{entry.name}"
    stand_in = f"invalid-{part}-{zlib.crc32(os.fsencode(unique)):08x}"
    return EngineDefinition(name=EngineName(stand_in), file=entry, fault=fault)
