"""Manifests: the files of one version of an engine, named by their digests; and their packages.

The folder of an engine travels between machines as a manifest and the content of its files. Two
folders with the same files have the same manifest, byte by byte, whose SHA-256 is the digest of the
version. A manifest comes from another machine: `read_manifest` confines its paths and limits its
sizes.
"""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple

import msgspec
from msgspec import UNSET, Struct, UnsetType

from synergai.errors import InvalidInput
from synergai.models.definition import read_definition, read_shared_definition
from synergai.models.formats.model_files import (
    DEFINITION_FILE,
    MAX_MODEL_BYTES,
    MAX_MODEL_FILES,
    MODEL_FORMATS,
    PATH_RULE,
    SAMPLES_FILE,
    SAVED_MODEL_FILE,
    backend_of,
    find_models,
    is_engine_path,
    is_version,
    list_files,
)
from synergai.names import validate_name, validate_stored_version

MAX_MANIFEST_BYTES: Final = 8 << 20
MAX_ENGINE_BYTES: Final = 2 * MAX_MODEL_BYTES
"""Limit of the files of a version: the model, its samples and other files of its folder."""
_SHOWN: Final = 1024
"""Characters of a path that an error shows."""
_FORMAT: Final = 1
_SHA256: Final = re.compile(r"[0-9a-f]{64}")


class ManifestFile(Struct, frozen=True, order=True, forbid_unknown_fields=True):
    """A file of a version.

    Attributes:
        sha256: SHA-256 of its content, hexadecimal.
    """

    path: str
    sha256: str
    size: int


class Manifest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The files of one version of an engine.

    Attributes:
        model: path of the model among the files; ``.`` if the folder is a SavedModel itself.
        files: its files, sorted by path.
        weights: paths of the model's external weights among the files; unset if it has none.
    """

    backend: str
    model: str
    files: tuple[ManifestFile, ...]
    format: int = _FORMAT
    weights: tuple[str, ...] | UnsetType = UNSET

    @property
    def size(self) -> int:
        """Size of all files in bytes."""
        return sum(file.size for file in self.files)

    @property
    def contents(self) -> dict[str, int]:
        """Sizes of the contents by SHA-256; files may share one."""
        return {file.sha256: file.size for file in self.files}

    def encode(self) -> bytes:
        """Return the manifest as JSON, always the same for the same files."""
        return msgspec.json.encode(self)

    @property
    def model_sha256(self) -> str:
        """Digest of the model, as `synergai.models.formats.model_files.digest` computes it."""
        parts = {PurePosixPath(file.path): file for file in self.files}
        model = folder = PurePosixPath(self.model)
        chosen = set(parts) - {folder / DEFINITION_FILE, folder / SAMPLES_FILE}
        if model in parts:
            if not self.weights:
                return parts[model].sha256
            folder, chosen = model.parent, {model, *map(PurePosixPath, self.weights)}
        whole = hashlib.sha256()
        for path in sorted(chosen):
            if path.is_relative_to(folder):
                name = path.relative_to(folder).as_posix().encode()
                whole.update(name + b"\0" + bytes.fromhex(parts[path].sha256))
        return whole.hexdigest()


def content_digest(data: bytes) -> str:
    """Return the SHA-256 of `data`, hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def validate_sha256(text: str) -> str:
    if not _SHA256.fullmatch(text):
        raise InvalidInput("a digest must be a SHA-256 in 64 lower-case hexadecimal digits")
    return text


def read_manifest(data: bytes) -> Manifest:
    if len(data) > MAX_MANIFEST_BYTES:
        raise InvalidInput(f"a manifest has at most {MAX_MANIFEST_BYTES:,} bytes")
    try:
        manifest = msgspec.json.decode(data, type=Manifest)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidInput(f"the manifest cannot be read: {error}") from None
    if manifest.format != _FORMAT:
        raise InvalidInput(
            f"the manifest has format {manifest.format}, this release reads {_FORMAT}: upgrade it"
        )
    check_manifest(manifest)
    return manifest


def check_manifest(manifest: Manifest) -> None:
    """Check that the files of a manifest make an engine's folder."""
    validate_name(manifest.backend, "backend name")
    if not 1 <= len(manifest.files) <= MAX_MODEL_FILES:
        raise InvalidInput(f"an engine must have 1 to {MAX_MODEL_FILES:,} files")
    paths = {file.path for file in manifest.files}
    if len(paths) < len(manifest.files):
        raise InvalidInput("the manifest has a path twice")
    sizes: dict[str, int] = {}
    for file in manifest.files:
        _check_path(file.path, paths)
        validate_sha256(file.sha256)
        if file.size < 0 or sizes.setdefault(file.sha256, file.size) != file.size:
            raise InvalidInput(f"the manifest has an impossible size for {file.path!r}")
    if not 0 < manifest.size <= MAX_ENGINE_BYTES:
        raise InvalidInput(
            f"an engine must have 1 to {MAX_ENGINE_BYTES:,} bytes, not {manifest.size:,}"
        )
    saved_model = (PurePosixPath(manifest.model) / SAVED_MODEL_FILE).as_posix()
    if manifest.model not in paths and saved_model not in paths:
        raise InvalidInput("the manifest's model is not among its files")
    if not paths.issuperset(manifest.weights or ()):
        raise InvalidInput("the manifest's weights are not among its files")


def _check_path(path: str, paths: set[str]) -> None:
    if not is_engine_path(path):
        raise InvalidInput(
            f"{path[:_SHOWN]!r} is not a path of an engine's file: it must be {PATH_RULE}"
        )
    parts = path.split("/")
    for count in range(1, len(parts)):
        if "/".join(parts[:count]) in paths:
            raise InvalidInput(f"the manifest has {path!r} in a folder that is a file")


class Package(NamedTuple):
    """A version of an engine, ready to be sent.

    Attributes:
        paths: a file with each content, by SHA-256.
    """

    manifest: Manifest
    paths: dict[str, Path]


def packed_name(source: Path) -> str:
    """Return the name under which a model file, a SavedModel or an engine's folder is pushed."""
    source = source.absolute()
    is_of_version = source.is_dir() and is_version(source.name)
    return default_name(source.parent if is_of_version else source)


def default_name(source: Path) -> str:
    """Return the name of a folder or file; a file called ``model`` is named after its folder."""
    source = source.absolute()  # "." has no name
    name = source.name if source.is_dir() else source.stem
    if name == "model" and not source.is_dir():
        name = source.parent.name or name
    try:
        return validate_name(name, "engine name")
    except InvalidInput as error:
        raise InvalidInput(f"{error}; give it one with --name") from None


def pack(source: Path, name: str, version: int) -> Package:
    """Return the package of a model file, a SavedModel or an engine's folder.

    All files of a folder belong to it, except hidden ones and other versions. A version's folder
    has the ``engine.toml`` and ``samples.npz`` of the engine's folder unless it has its own. Files
    are read once, to compute their digests.
    """
    validate_name(name, "engine name")
    validate_stored_version(version)
    try:
        return _pack(source)
    except OSError as error:
        raise InvalidInput(f"{error.filename or source} cannot be read: {error.strerror}") from None


def _pack(source: Path) -> Package:
    if source.is_dir():
        folder, files = source, _files_below(source)
        shared = _shared_files(source)
        definition = shared.get(DEFINITION_FILE, source / DEFINITION_FILE)
        model, backend = _model_of(source, definition)
    else:
        if not backend_of(source):
            raise InvalidInput(f"{source} is not a model; supported are {MODEL_FORMATS}")
        folder, files, shared = source.parent, list_files(source), {}
        model, backend = source, backend_of(source)
    entries, paths = [], {}
    named = {file.relative_to(folder).as_posix(): file for file in files} | shared
    for path, file in named.items():
        sha256 = _sha256(file)
        entries.append(ManifestFile(path, sha256, file.stat().st_size))
        paths[sha256] = file
    weights = [] if model.is_dir() else list_files(model)[1:]
    manifest = Manifest(
        backend=backend,
        model=model.relative_to(folder).as_posix(),
        files=tuple(sorted(entries)),
        weights=tuple(file.relative_to(folder).as_posix() for file in weights) or UNSET,
    )
    check_manifest(manifest)
    return Package(manifest, paths)


def _shared_files(folder: Path) -> dict[str, Path]:
    """Return the files that a version's folder shares with other versions."""
    folder = folder.absolute()
    if not is_version(folder.name):
        return {}
    return {
        name: file
        for name in (DEFINITION_FILE, SAMPLES_FILE)
        if (file := folder.parent / name).is_file() and not (folder / name).exists()
    }


def _model_of(folder: Path, definition: Path) -> tuple[Path, str]:
    keys = read_definition(definition)
    if definition.parent != folder:
        shared = read_shared_definition(definition)
        if (keys.file, keys.sha256) != (shared.file, shared.sha256):
            # The file is sent as it is, and would ask for the model of version 1.
            what = "variants" if keys.variants else "file or sha256"
            raise InvalidInput(
                f"{definition} has the {what} of version 1: push the model file of "
                f"{folder}, or give this folder an {DEFINITION_FILE} of its own"
            )
    present = (each.file for each in keys.variants if (folder / each.file).exists())
    if file := next(present, keys.file):
        model = folder / file
        model = model.parent if model.name == SAVED_MODEL_FILE else model
    else:
        models = find_models(folder)
        if len(models) != 1:
            found = f"several models ({', '.join(each.name for each in models)})"
            raise InvalidInput(
                f"{folder} has {found if models else 'no model'}; push a model file, a version's "
                f"folder, or a folder with one model ({MODEL_FORMATS})"
            )
        model = models[0]
    backend = keys.backend or backend_of(model)
    if not backend:
        raise InvalidInput(
            f'no backend is known for {model}; set backend = "…" in {DEFINITION_FILE}'
        )
    return model, backend


def _files_below(folder: Path) -> list[Path]:
    found: list[Path] = []
    for current, folders, names in os.walk(folder, onerror=_raise):
        here = Path(current)
        folders[:] = [
            each
            for each in folders
            if not (each.startswith(".") or (here == folder and is_version(each)))
        ]
        for each in (*folders, *names):
            if (here / each).is_symlink():
                raise InvalidInput(f"{here / each} is a link; replace it with what it leads to")
        found += [here / each for each in names if not each.startswith(".")]
        if len(found) > MAX_MODEL_FILES:
            raise InvalidInput(f"{folder} has more than {MAX_MODEL_FILES:,} files")
    for path in found:
        if not path.is_file():  # reading a named pipe would block
            raise InvalidInput(f"{path} is not a regular file")
    return found


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _raise(error: OSError) -> None:
    raise error
