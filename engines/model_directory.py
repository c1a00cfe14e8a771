"""The model directory: one folder per engine, into which anybody may drop a model file.

A folder needs nothing but its model file. An ``engine.toml`` beside it may say more::

    version = "1"               # default "1"
    backend = "onnxruntime"     # default: by the file's suffix
    file = "model.onnx"         # default: the only model file in the folder
    sha256 = "9f86d0…"          # if given, a file with another digest is refused
    title = "MobileNet v1"      # for people, like the two that follow
    accuracy = 0.98
    source = "where it is from"

A ``samples.npz`` beside it is the engine's sample set, see ``engines.samples``. What is in the
directory is not trusted: every path is confined to it, and an entry that cannot be right becomes
a definition with a fault instead of hiding the others.
"""

from __future__ import annotations

import hashlib
import os
import re
import tomllib
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from synergai.domain import EngineName, checked_name
from synergai.errors import EngineUnusable, InvalidInput, NotFound

BACKENDS: Final = {".onnx": "onnxruntime"}
"""Backend by the suffix of a model file."""
DEFINITION_FILE: Final = "engine.toml"
SAMPLES_FILE: Final = "samples.npz"
MAX_MODEL_BYTES: Final = 2 << 30
"""What one protobuf message, and so one ONNX file, can hold."""
MAX_DEFINITION_BYTES: Final = 64 << 10

_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_TEXTS: Final = ("name", "version", "backend", "file", "sha256", "title", "source")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineDefinition:
    """An engine as its folder describes it; the model itself has not been opened.

    Attributes:
        name: the folder's name.
        backend: name in the registry of backends.
        file: the model file; the folder, if a fault leaves no file.
        samples: the sample set's file, if there is one.
        sha256: the digest that the file must have, hexadecimal; empty if unknown.
        title: what it is, for people.
        accuracy: share of right answers, 0 to 1; None if unknown.
        source: where it comes from, for people.
        fault: why it cannot be used; empty when nothing speaks against it so far.
    """

    name: EngineName
    version: str = "1"
    backend: str = ""
    file: Path
    samples: Path | None = None
    sha256: str = ""
    title: str = ""
    accuracy: float | None = None
    source: str = ""
    fault: str = ""

    def verified_digest(self) -> str:
        """Digest of the model file, checked against the one that it must have.

        Raises:
            EngineUnusable: there is a fault, the file cannot be read, or it is another one.
        """
        if self.fault:
            raise EngineUnusable(f"engine {self.name!r}: {self.fault}")
        try:
            found = digest(self.file)
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
            self._define(entry)
            for entry in entries
            if not entry.name.startswith(".") and (entry.is_dir() or entry.suffix in BACKENDS)
        ]

    def get(self, name: str) -> EngineDefinition:
        """The engine called `name`, faulty or not.

        Raises:
            NotFound: there is none.
        """
        checked_name(name, "engine name")
        engines = self.engines()
        for definition in engines:
            if definition.name == name:
                return definition
        known = ", ".join(definition.name for definition in engines) or "none"
        raise NotFound(f"{self.path} has no engine {name!r}; there are: {known}")

    def _define(self, entry: Path) -> EngineDefinition:
        try:
            name = EngineName(checked_name(entry.name, "engine name"))
        except InvalidInput as error:
            # The name must be valid wherever the fault is shown, and differ from all others.
            stand_in = EngineName(f"invalid-name-{zlib.crc32(os.fsencode(entry.name)):08x}")
            return EngineDefinition(name=stand_in, file=entry, fault=f"folder {error}")
        try:
            return self._read(name, entry)
        except InvalidInput as error:
            return EngineDefinition(name=name, file=entry, fault=str(error))
        except OSError as error:
            fault = f"{error.filename or entry} cannot be read: {error.strerror}"
            return EngineDefinition(name=name, file=entry, fault=fault)

    def _read(self, name: EngineName, folder: Path) -> EngineDefinition:
        self._confined(folder)
        if not folder.is_dir():
            raise InvalidInput(
                f"{folder.name} lies in the model directory itself; give it a folder of its own, "
                f"for example with 'synergai engines add {folder}'"
            )
        texts, accuracy = _read_definition(self._confined(folder / DEFINITION_FILE))
        if texts.get("name", name) != name:
            raise InvalidInput(
                f"{DEFINITION_FILE} is for the engine {texts['name']!r}, but the folder is "
                f"called {name!r}; rename the folder or correct the file"
            )
        file = self._confined(folder / texts["file"] if "file" in texts else _only_model(folder))
        if not file.is_file():
            raise InvalidInput(f"the model file {file.name!r} is not there")
        size = file.stat().st_size
        if not 0 < size <= MAX_MODEL_BYTES:
            raise InvalidInput(
                f"{file.name} has {size:,} bytes; a model has 1 to {MAX_MODEL_BYTES:,}"
            )
        backend = texts.get("backend") or BACKENDS.get(file.suffix, "")
        if not backend:
            raise InvalidInput(
                f"{file.name!r} does not tell its backend by its suffix; "
                f'write backend = "…" into {DEFINITION_FILE}'
            )
        sha256 = texts.get("sha256", "").lower()
        if sha256 and not _SHA256.fullmatch(sha256):
            raise InvalidInput(f"{DEFINITION_FILE}: sha256 has 64 hexadecimal digits")
        samples = self._confined(folder / SAMPLES_FILE)
        return EngineDefinition(
            name=name,
            version=checked_name(texts.get("version", "1"), "engine version"),
            backend=checked_name(backend, "backend name"),
            file=file,
            samples=samples if samples.is_file() else None,
            sha256=sha256,
            title=texts.get("title", ""),
            accuracy=accuracy,
            source=texts.get("source", ""),
        )

    def _confined(self, path: Path) -> Path:
        """Return `path` if it leads into this directory, whatever links are on the way."""
        try:
            target = path.resolve()
        except RuntimeError as error:  # how pathlib reports it before Python 3.13
            raise InvalidInput(f"{path.name!r} is a link that leads to itself") from error
        if not target.is_relative_to(self.path.resolve()):
            raise InvalidInput(f"{path.name!r} leads outside of the model directory")
        return path


def digest(path: Path) -> str:
    """Sha256 of a file of any size, hexadecimal.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _only_model(folder: Path) -> Path:
    models = sorted(path for path in folder.iterdir() if path.suffix in BACKENDS)
    match models:
        case [model]:
            return model
        case []:
            raise InvalidInput(f"there is no model file ({', '.join(BACKENDS)}) in the folder")
        case _:
            raise InvalidInput(
                f"there are several model files ({', '.join(path.name for path in models)}); "
                f'write file = "…" into {DEFINITION_FILE}'
            )


def _read_definition(path: Path) -> tuple[dict[str, str], float | None]:
    """The texts in engine.toml by their keys, and the accuracy."""
    if not path.exists():
        return {}, None
    if not path.is_file():  # to read from a named pipe would be to wait for ever
        raise InvalidInput(f"{DEFINITION_FILE} is no file")
    if path.stat().st_size > MAX_DEFINITION_BYTES:
        raise InvalidInput(f"{DEFINITION_FILE} is larger than {MAX_DEFINITION_BYTES:,} bytes")
    try:
        table = tomllib.loads(path.read_text("utf-8"))
    except ValueError as error:  # TOMLDecodeError and UnicodeDecodeError alike
        raise InvalidInput(f"{DEFINITION_FILE} is not TOML: {error}") from error
    except RecursionError as error:
        raise InvalidInput(f"{DEFINITION_FILE} is nested too deeply") from error
    accuracy = table.pop("accuracy", None)
    if accuracy is not None:
        if isinstance(accuracy, bool) or not isinstance(accuracy, (int, float)):
            raise InvalidInput(f"{DEFINITION_FILE}: accuracy must be a number, not {accuracy!r}")
        accuracy = float(accuracy)
        if not 0 <= accuracy <= 1:
            raise InvalidInput(f"{DEFINITION_FILE}: accuracy is from 0 to 1, not {accuracy}")
    for key, value in table.items():
        if key not in _TEXTS:
            raise InvalidInput(
                f"{DEFINITION_FILE}: unknown key {key!r}; there are: accuracy, {', '.join(_TEXTS)}"
            )
        if not isinstance(value, str) or not value:
            raise InvalidInput(f"{DEFINITION_FILE}: {key} must be a text, not {value!r}")
        if not value.isprintable():  # neither a path nor a screen takes a NUL or an escape
            raise InvalidInput(f"{DEFINITION_FILE}: {key} has control characters: {value!r}")
    return table, accuracy
