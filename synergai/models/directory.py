"""The model directory: one folder per engine.

A folder only needs a model file, see `synergai.models.formats.model_files`. An ``engine.toml``
beside it is optional; all of its keys are, too::

    version = "1"               # default "1"
    backend = "onnxruntime"     # default: by the model's format
    file = "model.onnx"         # default: the only model in the folder; or a SavedModel's folder
    sha256 = "9f86d0…"          # if given, refuse a model with another digest
    inputs = ["input:0"]        # tensors of a frozen graph; default: its placeholders
    outputs = ["probs:0"]       # default: the tensors that no operation consumes
    title = "MobileNet v1"      # for display, like the next two
    accuracy = 0.98
    source = "where it is from"
    preprocess = "mobilenet"    # accept encoded images, prepared like in MLPerf's reference
    postprocess = "classes"     # offer an additional output of this name
    max_batch = 8               # largest dynamic batch; default: 1, no batching

    [warmup]                    # what to try the model with, see `synergai.models.warmup`
    tokens = { shape = [1, 16] }

A ``samples.npz`` beside it is the engine's sample set, see `synergai.models.samples`.

The contents of the directory are untrusted: every path is confined to it, and an invalid entry
becomes a definition with a fault, without affecting the other engines.
"""

from __future__ import annotations

import os
import shlex
import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from synergai.domain import EngineName, validate_name
from synergai.errors import EngineUnusable, InvalidInput, NotFound
from synergai.models.definition import read_definition
from synergai.models.formats.model_files import (
    DEFINITION_FILE,
    MODEL_FORMATS,
    SAMPLES_FILE,
    SAVED_MODEL_FILE,
    backend_of,
    digest,
    find_models,
    is_frozen_graph,
    list_files,
    size_bytes,
)

if TYPE_CHECKING:
    from synergai.models.warmup import WarmUpInput


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineDefinition:
    """An engine as described by its folder. The model itself has not been opened.

    Attributes:
        name: The folder's name.
        backend: A name in the registry of backends.
        file: The model file or SavedModel folder; the engine's folder if there is no valid model.
        samples: The sample set's file, if there is one.
        sha256: The required digest of the model, hexadecimal; empty if unknown.
        inputs: Input tensors of a frozen graph; empty to leave the choice to the backend.
        outputs: Output tensors of a frozen graph; empty to leave the choice to the backend.
        title: A description, for display.
        accuracy: Share of correct answers, 0 to 1; None if unknown.
        source: The model's origin, for display.
        preprocess: How encoded images become its input, see `synergai.models.preprocess`; empty
            if it accepts tensors only.
        postprocess: The output derived on request, see `synergai.models.postprocess`; empty for
            none.
        max_batch: Largest number of queries per batch; 1 disables batching.
        warmup: What to try its inputs with; the files are in its folder.
        fault: Why the engine is unusable; empty if no fault is known.
    """

    name: EngineName
    version: str = "1"
    backend: str = ""
    file: Path
    samples: Path | None = None
    sha256: str = ""
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    title: str = ""
    accuracy: float | None = None
    source: str = ""
    preprocess: str = ""
    postprocess: str = ""
    max_batch: int = 1
    warmup: tuple[WarmUpInput, ...] = ()
    fault: str = ""

    def verified_digest(self) -> str:
        """Return the model's digest after checking it against the required one.

        Raises:
            EngineUnusable: The engine has a fault, or its model cannot be read or has the wrong
                digest.
        """
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
                f"engine {self.name!r}: {self.file.name} has the sha256 {found}, but "
                f"{DEFINITION_FILE} asks for {self.sha256}; fetch or build the file again"
            )
        return found


class ModelDirectory:
    """Reader of the engines below `path`. Nothing is cached."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    def engines(self) -> list[EngineDefinition]:
        """Return all engines, including faulty ones, sorted by name.

        Raises:
            NotFound: The directory cannot be read.
        """
        try:
            entries = sorted(self.path.iterdir())
        except OSError as error:
            raise NotFound(
                f"the model directory {self.path} cannot be read ({error.strerror}); build an "
                "engine into it with 'synergai engines build', or name another directory"
            ) from error
        return [
            self._load_entry(entry)
            for entry in entries
            if not entry.name.startswith(".") and (entry.is_dir() or backend_of(entry))
        ]

    def get(self, name: str) -> EngineDefinition:
        """Return the engine called `name`, even if it is faulty.

        Raises:
            NotFound: There is no such engine.
        """
        validate_name(name, "engine name")
        engines = self.engines()
        for definition in engines:
            if definition.name == name:
                return definition
        known = ", ".join(definition.name for definition in engines) or "none"
        raise NotFound(f"{self.path} has no engine {name!r}; known engines: {known}")

    def _load_entry(self, entry: Path) -> EngineDefinition:
        try:
            name = EngineName(validate_name(entry.name, "engine name"))
        except InvalidInput as error:
            # A valid, unique name under which the fault can be reported.
            stand_in = EngineName(f"invalid-name-{zlib.crc32(os.fsencode(entry.name)):08x}")
            return EngineDefinition(name=stand_in, file=entry, fault=f"folder {error}")
        try:
            return self._load_engine(name, entry)
        except InvalidInput as error:
            return EngineDefinition(name=name, file=entry, fault=str(error))
        except OSError as error:
            fault = f"{error.filename or entry} cannot be read: {error.strerror}"
            return EngineDefinition(name=name, file=entry, fault=fault)

    def _load_engine(self, name: EngineName, folder: Path) -> EngineDefinition:
        self._check_confined(folder)
        if not folder.is_dir():
            own = folder.with_suffix("") if folder.suffix else folder.with_name("NAME")
            loose, target = shlex.quote(str(folder)), shlex.quote(str(own))
            raise InvalidInput(
                f"{folder.name} is a file in the model directory; move it into a folder of its "
                f"own: mkdir -p {target} && mv {loose} {target}/"
            )
        keys = read_definition(self._check_confined(folder / DEFINITION_FILE))
        if keys.name not in ("", name):
            raise InvalidInput(
                f"{DEFINITION_FILE} names the engine {keys.name!r}, but the folder is "
                f"called {name!r}; rename the folder or correct the file"
            )
        file = self._check_model(folder / keys.file if keys.file else _find_only_model(folder))
        backend = keys.backend or backend_of(file)
        if not backend:
            raise InvalidInput(
                f"no backend is known for the suffix of {file.name!r}; "
                f'set backend = "…" in {DEFINITION_FILE}'
            )
        if (keys.inputs or keys.outputs) and not is_frozen_graph(file):
            raise InvalidInput(
                f"{DEFINITION_FILE}: inputs and outputs are for frozen graphs only; "
                f"{file.name} declares its own"
            )
        samples = self._check_confined(folder / SAMPLES_FILE)
        return EngineDefinition(
            name=name,
            version=validate_name(keys.version or "1", "engine version"),
            backend=validate_name(backend, "backend name"),
            file=file,
            samples=samples if samples.is_file() else None,
            sha256=keys.sha256,
            inputs=keys.inputs,
            outputs=keys.outputs,
            title=keys.title,
            accuracy=keys.accuracy,
            source=keys.source,
            preprocess=keys.preprocess,
            postprocess=keys.postprocess,
            max_batch=keys.max_batch,
            warmup=tuple(self._locate_file(folder, each) for each in keys.warmup),
        )

    def _locate_file(self, folder: Path, given: WarmUpInput) -> WarmUpInput:
        """Return `given` with the path of its file, once that is confined."""
        if given.file is None:
            return given
        file = self._check_confined(folder / given.file)
        if not file.is_file():
            raise InvalidInput(
                f"{DEFINITION_FILE}: the file of warmup.{given.name}, {str(given.file)!r}, does "
                "not exist"
            )
        return replace(given, file=file)

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
            target = path.resolve()
        except RuntimeError as error:  # raised by pathlib before Python 3.13
            raise InvalidInput(f"{path.name!r} is a symbolic link to itself") from error
        if not target.is_relative_to(self.path.resolve()):
            raise InvalidInput(f"{path.name!r} leads outside the model directory")
        return path


def _find_only_model(folder: Path) -> Path:
    models = find_models(folder)
    match models:
        case [model]:
            return model
        case []:
            raise InvalidInput(f"the folder has no model file ({MODEL_FORMATS})")
        case _:
            raise InvalidInput(
                f"the folder has several model files ({', '.join(path.name for path in models)}); "
                f'set file = "…" in {DEFINITION_FILE}'
            )
