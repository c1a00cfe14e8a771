"""Packages: the manifest of a model or an engine's folder on this machine, with its files."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import NamedTuple

from msgspec import UNSET

from synergai.errors import InvalidInput
from synergai.models.definition import read_definition, read_shared_definition
from synergai.models.formats.model_files import (
    DEFINITION_FILE,
    MAX_MODEL_FILES,
    MODEL_FORMATS,
    SAMPLES_FILE,
    SAVED_MODEL_FILE,
    backend_of,
    find_models,
    is_version,
    list_files,
    why_no_model,
)
from synergai.models.manifest import Manifest, ManifestFile, check_manifest
from synergai.names import validate_name, validate_stored_version


class Package(NamedTuple):
    """A version of an engine, ready to be sent.

    Attributes:
        paths: a file with each content, by SHA-256.
    """

    manifest: Manifest
    paths: dict[str, Path]


def packed_name(source: Path) -> str:
    """Return the name of the engine that a model file, a SavedModel or an engine's folder is.

    That of its ``engine.toml``, or else the one under which `add_model` would install it.
    """
    source = source.absolute()
    if not source.is_dir():
        return default_name(source)
    engine = source.parent if is_version(source.name) else source
    own = source / DEFINITION_FILE
    keys = read_definition(own if own.exists() else engine / DEFINITION_FILE)
    return keys.name or default_name(engine)


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
    has the ``engine.toml``, ``samples.npz`` and warm-up files of the engine's folder unless it has
    its own. Files are read once, to compute their digests.
    """
    validate_name(name, "engine name")
    validate_stored_version(version)
    try:
        return _pack(source, name, version)
    except OSError as error:
        raise InvalidInput(f"{error.filename or source} cannot be read: {error.strerror}") from None


def _pack(source: Path, name: str, version: int) -> Package:
    if source.is_dir():
        folder, files = source, _files_below(source)
        shared = _shared_files(source)
        definition = shared.get(DEFINITION_FILE, source / DEFINITION_FILE)
        model, backend = _model_of(source, definition, name, version)
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
    own = folder / DEFINITION_FILE
    keys = read_definition(own if own.exists() else folder.parent / DEFINITION_FILE)
    warmup = [each.file.as_posix() for each in keys.warmup.values() if each.file is not None]
    names = (DEFINITION_FILE, SAMPLES_FILE, *warmup)
    shared = {name: folder.parent / name for name in names}
    return {
        name: file
        for name, file in shared.items()
        if file.is_file() and not (folder / name).exists()
    }


def _model_of(folder: Path, definition: Path, name: str, version: int) -> tuple[Path, str]:
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
    if keys.name not in ("", name):
        raise InvalidInput(
            f"{definition} names the engine {keys.name!r}: push it with --name {keys.name}, or "
            "remove the key"
        )
    if keys.version not in ("", str(version)):
        raise InvalidInput(
            f"{definition} is of version {keys.version}: push it with --version {keys.version}, or "
            "remove the key"
        )
    present = (each.file for each in keys.variants if (folder / each.file).exists())
    if file := next(present, keys.file):
        model = folder / file
        model = model.parent if model.name == SAVED_MODEL_FILE else model
    else:
        models = find_models(folder)
        if not models and (reason := why_no_model(folder)):
            raise InvalidInput(f"{folder} cannot be pushed: {reason}")
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
