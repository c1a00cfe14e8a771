"""The model directory: one folder per engine, into which anybody may drop a model file.

A folder needs nothing but its model, see ``synergai.models.formats.model_files``. An
``engine.toml`` beside it may say more::

    version = "1"               # default "1"
    backend = "onnxruntime"     # default: by the model's format
    file = "model.onnx"         # default: the only model in the folder; a SavedModel's folder too
    sha256 = "9f86d0…"          # if given, a model with another digest is refused
    inputs = ["input:0"]        # tensors of a frozen graph; default: its placeholders
    outputs = ["probs:0"]       # and what nothing consumes
    title = "MobileNet v1"      # for people, like the two that follow
    accuracy = 0.98
    source = "where it is from"
    preprocess = "mobilenet"    # takes encoded images too, prepared as MLPerf's reference does it
    postprocess = "classes"     # gives an output of this name as well, to whoever asks for it
    max_batch = 8               # requests that wait may be computed together; default: 1, alone

A ``samples.npz`` beside it is the engine's sample set, see ``synergai.models.samples``. What is in
the directory is not trusted: every path is confined to it, and an entry that cannot be right
becomes a definition with a fault instead of hiding the others.
"""

from __future__ import annotations

import os
import zlib
from dataclasses import dataclass
from pathlib import Path

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


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineDefinition:
    """An engine as its folder describes it; the model itself has not been opened.

    Attributes:
        name: the folder's name.
        backend: name in the registry of backends.
        file: the model file or a SavedModel's folder; the engine's, if a fault leaves no model.
        samples: the sample set's file, if there is one.
        sha256: the digest that the model must have, hexadecimal; empty if unknown.
        inputs: tensors that a frozen graph takes; empty leaves that to the backend.
        outputs: tensors that a frozen graph gives; empty leaves that to the backend.
        title: what it is, for people.
        accuracy: share of right answers, 0 to 1; None if unknown.
        source: where it comes from, for people.
        preprocess: how encoded images become its input, see ``synergai.models.preprocess``; empty:
            it takes tensors only.
        postprocess: what is made of its outputs on request, see ``synergai.models.postprocess``;
            empty: nothing.
        max_batch: how many queries may be computed together; 1: each by itself.
        fault: why it cannot be used; empty when nothing speaks against it so far.
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
    fault: str = ""

    def verified_digest(self) -> str:
        """Digest of the model, checked against the one that it must have.

        Raises:
            EngineUnusable: there is a fault, the model cannot be read, or it is another one.
        """
        if self.fault:
            raise EngineUnusable(f"engine {self.name!r}: {self.fault}")
        try:
            found = digest(self.file)
        except InvalidInput as error:  # changed since it was looked at
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
    """Reads the engines below `path`. Nothing is cached: what is there now is what counts."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    def engines(self) -> list[EngineDefinition]:
        """All engines in order of their names, faulty ones included.

        Raises:
            NotFound: the directory is not there.
        """
        try:
            entries = sorted(self.path.iterdir())
        except OSError as error:
            raise NotFound(
                f"the model directory {self.path} cannot be read ({error.strerror}); build an "
                "engine into it with 'synergai engines build', or name another with --models"
            ) from error
        return [
            self._load_entry(entry)
            for entry in entries
            if not entry.name.startswith(".") and (entry.is_dir() or backend_of(entry))
        ]

    def get(self, name: str) -> EngineDefinition:
        """The engine called `name`, faulty or not.

        Raises:
            NotFound: there is none.
        """
        validate_name(name, "engine name")
        engines = self.engines()
        for definition in engines:
            if definition.name == name:
                return definition
        known = ", ".join(definition.name for definition in engines) or "none"
        raise NotFound(f"{self.path} has no engine {name!r}; there are: {known}")

    def _load_entry(self, entry: Path) -> EngineDefinition:
        try:
            name = EngineName(validate_name(entry.name, "engine name"))
        except InvalidInput as error:
            # The name must be valid wherever the fault is shown, and differ from all others.
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
            raise InvalidInput(
                f"{folder.name} lies in the model directory itself; give it a folder of its own, "
                f"for example with 'synergai engines add {folder}'"
            )
        keys = read_definition(self._check_confined(folder / DEFINITION_FILE))
        if keys.name not in ("", name):
            raise InvalidInput(
                f"{DEFINITION_FILE} is for the engine {keys.name!r}, but the folder is "
                f"called {name!r}; rename the folder or correct the file"
            )
        file = self._check_model(folder / keys.file if keys.file else _find_only_model(folder))
        backend = keys.backend or backend_of(file)
        if not backend:
            raise InvalidInput(
                f"{file.name!r} does not tell its backend by its suffix; "
                f'write backend = "…" into {DEFINITION_FILE}'
            )
        if (keys.inputs or keys.outputs) and not is_frozen_graph(file):
            raise InvalidInput(
                f"{DEFINITION_FILE}: inputs and outputs are named for frozen graphs; "
                f"{file.name} tells its own"
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
        )

    def _check_model(self, path: Path) -> Path:
        """The model at `path`, all of whose files are in this directory and of sane sizes."""
        model = self._check_confined(path.parent if path.name == SAVED_MODEL_FILE else path)
        for file in list_files(model):
            self._check_confined(file)
        size_bytes(model)
        return model

    def _check_confined(self, path: Path) -> Path:
        """Return `path` if it leads into this directory, whatever links are on the way."""
        try:
            target = path.resolve()
        except RuntimeError as error:  # how pathlib reports it before Python 3.13
            raise InvalidInput(f"{path.name!r} is a link that leads to itself") from error
        if not target.is_relative_to(self.path.resolve()):
            raise InvalidInput(f"{path.name!r} leads outside of the model directory")
        return path


def _find_only_model(folder: Path) -> Path:
    models = find_models(folder)
    match models:
        case [model]:
            return model
        case []:
            raise InvalidInput(f"there is no model file ({MODEL_FORMATS}) in the folder")
        case _:
            raise InvalidInput(
                f"there are several model files ({', '.join(path.name for path in models)}); "
                f'write file = "…" into {DEFINITION_FILE}'
            )
