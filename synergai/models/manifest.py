"""Manifests: the files of one version of an engine, named by their digests.

The folder of an engine travels between machines as a manifest and the content of its files. Two
folders with the same files have the same manifest, byte by byte, whose SHA-256 is the digest of the
version. A manifest comes from another machine: `read_manifest` confines its paths and limits its
sizes.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import PurePosixPath
from typing import Final

import msgspec
from msgspec import UNSET, Struct, UnsetType

from synergai.errors import InvalidInput
from synergai.models.formats.model_files import (
    DEFINITION_FILE,
    MAX_MODEL_BYTES,
    MAX_MODEL_FILES,
    PATH_RULE,
    SAMPLES_FILE,
    SAVED_MODEL_FILE,
    is_engine_path,
)
from synergai.names import validate_name

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
    """Return `text` if it is a SHA-256 in hexadecimal digits."""
    if not _SHA256.fullmatch(text):
        raise InvalidInput("a digest must be a SHA-256 in 64 lower-case hexadecimal digits")
    return text


def read_manifest(data: bytes) -> Manifest:
    """Read a manifest from another machine."""
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
