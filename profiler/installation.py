"""Installation of engines into a model directory, atomic per engine."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from synergai.errors import InvalidInput
from synergai.models.definition import MAX_DEFINITION_BYTES, read_definition
from synergai.models.directory import ModelDirectory
from synergai.models.formats.model_files import (
    DEFINITION_FILE,
    MODEL_FORMATS,
    SAVED_MODEL_FILE,
    backend_of,
    find_models,
    has_signatures,
    is_frozen_graph,
    is_version,
    list_files,
    size_bytes,
)
from synergai.models.manifest import default_name
from synergai.names import FIRST_VERSION, validate_name, validate_version, versioned
from synergai.runtime.text import printable
from synergai.runtime.toml_file import load_toml

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from profiler.model_description import ModelDescription
    from synergai.models.directory import EngineDefinition

    Check: TypeAlias = Callable[[Path, str, ModelDescription], None]
    Value: TypeAlias = str | float | Sequence[Any] | Mapping[str, Any] | None


PREFIX: Final = ".making-"
"""Readers of the model directory skip names that begin with a dot."""


@contextmanager
def staging_folder(models: Path, name: str) -> Iterator[Path]:
    """Yield an empty folder in the model directory for this block, removed afterwards."""
    with TemporaryDirectory(
        prefix=f"{PREFIX}{name}-", dir=models, ignore_cleanup_errors=True
    ) as staging:
        yield Path(staging)


def install_staged(staging: Path, staged: Path, models: Path) -> None:
    """Install `staged`, which is an engine's folder or that of a version in it."""
    target, replaced = models / staged.relative_to(staging), staging / "replaced"
    if target.exists():
        target.rename(replaced)
    target.parent.mkdir(exist_ok=True)
    try:
        staged.rename(target)
    except OSError:
        if replaced.exists():
            replaced.rename(target)
        raise


_NO_SPACE_ERRNOS: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Errors of a full target, which are not the fault of the model being copied."""

_ADVICE: Final = (
    "choose another name with --name or another version with --version, or replace it with "
    "--replace"
)


@contextmanager
def stage_engine(
    models: Path,
    name: str,
    *,
    version: str = "",
    replace: bool = False,
    advice: str = "replace it with --replace",
) -> Iterator[Path]:
    """Yield a folder that becomes an engine, or a version of one, if the block succeeds.

    Args:
        models: The model directory; created if missing.
        version: Its version, for a folder in the engine's folder; empty for that folder itself.
        replace: Replace an existing engine of this name, or the version.
        advice: What the user can do about an existing one.

    Yields:
        The empty folder; it is removed if the block raises.
    """
    validate_name(name, "engine name")
    if version:
        validate_version(version)
    try:
        models.mkdir(parents=True, exist_ok=True)
        with staging_folder(models, name) as staging:
            _check_free(models, name, version, advice, replace=replace)
            staged = staging / name / version
            staged.mkdir(parents=True)
            if version:
                _link_shared_files(models / name, staged.parent)
            yield staged
            install_staged(staging, staged, models)
    except OSError as error:
        raise InvalidInput(f"cannot write to {models}: {error.strerror}") from error


def _check_free(models: Path, name: str, version: str, advice: str, *, replace: bool) -> None:
    engine = models / name
    if (engine / version).exists():
        if not replace:
            taken = f"version {version} of engine {name!r}" if version else f"an engine {name!r}"
            raise InvalidInput(f"{models} has {taken} already; {advice}")
    elif version == FIRST_VERSION and engine.is_dir() and find_models(engine):
        raise InvalidInput(
            f"version {version} of engine {name!r} is the model directly in {engine}; choose "
            "another version with --version"
        )


def _link_shared_files(engine: Path, staged: Path) -> None:
    """Give a staged version the files of its engine's folder that versions share, to check it."""
    if not engine.is_dir():
        return
    models = find_models(engine)
    for file in engine.iterdir():
        if file.is_file() and file not in models and file.name != DEFINITION_FILE:
            link_file(file, staged / file.name)


def link_file(source: Path, target: Path) -> None:
    """Give a file another path, as a copy if the file system has no links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def write_definition(folder: Path, keys: Mapping[str, Value]) -> None:
    """Write engine.toml, omitting keys whose value is None or empty."""
    for key, value in keys.items():
        for text in _strings(value):
            if not text.isprintable():
                raise InvalidInput(f"the {key} contains control characters: {text!r}")
    given = {k: each for k, each in keys.items() if each is not None and each not in ("", (), [])}
    tables = given.pop("variants", ())
    lines = [f"{key} = {_to_toml(value)}\n" for key, value in given.items()]
    for table in cast("Sequence[Mapping[str, Value]]", tables):
        lines.append("\n[[variants]]\n")
        lines += [f"{key} = {_to_toml(value)}\n" for key, value in table.items()]
    (folder / DEFINITION_FILE).write_text("".join(lines), "utf-8")


def _strings(value: Any) -> Sequence[str]:
    match value:
        case str():
            return [value]
        case float() | int() | None:
            return []
        case Mapping():
            return [text for each in value.values() for text in _strings(each)]
        case _:
            return [text for each in value for text in _strings(each)]


def _to_toml(value: Value) -> str:
    if isinstance(value, Mapping):
        pairs = (f"{json.dumps(key)} = {_to_toml(each)}" for key, each in value.items())
        return f"{{{', '.join(pairs)}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_to_toml, value))}]"
    # A printable JSON string is a valid TOML basic string.
    return json.dumps(value, ensure_ascii=False)


def add_model(
    models: Path,
    source: Path,
    *,
    name: str | None = None,
    version: str = "",
    inputs: Sequence[str] = (),
    outputs: Sequence[str] = (),
    keys: Mapping[str, Value] = MappingProxyType({}),
    signature: str = "",
    replace: bool = False,
    check: Check | None = None,
) -> EngineDefinition:
    """Copy a user's model into the model directory and record its digest.

    Args:
        source: The model file, or a SavedModel's folder.
        name: The engine's name; by default the source's name without its suffix.
        version: Its version, which is put into its own folder and keeps the settings of the
            engine's folder that versions share; empty for the engine's folder itself.
        inputs: Input tensors of a frozen graph; by default its placeholders.
        outputs: Output tensors of a frozen graph; by default those that no operation consumes.
        keys: What else its definition says, such as its title and pre-processing.
        signature: Signature of a SavedModel or TFLite file; by default, see `EngineDefinition`.
        replace: Replace an existing engine of this name, or the version.
        check: Called before the engine is installed with the directory that it is in, its name and
            the model's description; it is not installed if this raises an error.
    """
    from profiler.model_description import describe

    source = source.parent if source.name == SAVED_MODEL_FILE else source
    # Before the model directory is made.
    _check_source(source, has_ends=bool(inputs or outputs), has_signature=bool(signature))
    source_path = source.absolute()  # "." has no name
    if name is None:
        name = default_name(source_path)
    engine = versioned(name, version or FIRST_VERSION)
    with stage_engine(models, name, version=version, replace=replace, advice=_ADVICE) as folder:
        model = folder / source_path.name
        _copy_model(source_path, folder)
        shared = _shared_keys(models / name, model) if version else {}
        signature = signature or shared.get("signature", "")
        # Describe the copy: the source may have changed since.
        description = describe(model, signature)
        write_definition(
            folder,
            {
                **shared,
                "file": model.name,
                "sha256": description.digest,
                "inputs": inputs or shared.get("inputs"),
                "outputs": outputs or shared.get("outputs"),
                "signature": signature,
                "source": printable(os.fspath(source)),
                **keys,
            },
        )
        if check is not None:
            check(folder.parent.parent if version else folder.parent, engine, description)
    return ModelDirectory(models).get(engine)


def _check_source(source: Path, *, has_ends: bool, has_signature: bool) -> None:
    """Check that `source` is a model for which its tensors, or a signature, may be chosen."""
    if not backend_of(source):
        raise InvalidInput(f"{source} is not a model; supported are {MODEL_FORMATS}")
    if not source.exists():
        raise InvalidInput(f"{str(source)!r} does not exist")
    if has_ends and not is_frozen_graph(source):
        raise InvalidInput(
            f"{source} declares its own inputs and outputs; omit --inputs and --outputs"
        )
    if has_signature and not has_signatures(source):
        raise InvalidInput(f"{source} has no signatures; omit --signature")


_MODEL_KEYS: Final = (
    *("backend", "file", "sha256", "source", "accuracy", "variants"),
    *("stage_of", "stage_end", "exit", "tensors"),
)
"""Keys that are about one model, which other versions of its engine do not have."""


def read_shared_keys(path: Path) -> dict[str, Any]:
    """Return the keys of an engine's engine.toml that a new version has as well, as in the file."""
    if not path.exists():
        return {}
    read_definition(path)
    return {key: each for key, each in _read_table(path).items() if key not in _MODEL_KEYS}


def read_other_keys(folder: Path) -> dict[str, Any]:
    """Return the keys of an engine's folder that are not about its models, as in the file."""
    own = folder / DEFINITION_FILE
    if not own.exists():
        return read_shared_keys(folder.parent / DEFINITION_FILE) if is_version(folder.name) else {}
    read_definition(own)
    of_models = ("file", "sha256", "accuracy", "variants")
    return {key: each for key, each in _read_table(own).items() if key not in of_models}


def _read_table(path: Path) -> dict[str, Any]:
    return load_toml(path, DEFINITION_FILE, MAX_DEFINITION_BYTES)


def _shared_keys(folder: Path, model: Path) -> dict[str, Any]:
    """Return the keys of an engine's folder that a new version has as well, and that suit it."""
    shared = read_shared_keys(folder / DEFINITION_FILE)
    fits = dict.fromkeys(("inputs", "outputs"), is_frozen_graph(model))
    fits["signature"] = has_signatures(model)
    return {key: shared[key] for key in shared if fits.get(key, True)}


def _copy_model(source: Path, folder: Path) -> None:
    try:
        size_bytes(source)
        for part in list_files(source):
            copied = folder / part.relative_to(source.parent)
            copied.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(part, copied)
    except OSError as error:
        if error.errno in _NO_SPACE_ERRNOS:
            raise
        raise InvalidInput(f"{source} cannot be read: {error.strerror}") from error
