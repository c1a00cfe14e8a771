"""Puts engines into a model directory: whole or not at all."""

from __future__ import annotations

import errno
import json
import os
import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, TypeAlias

from synergai.domain import validate_name
from synergai.errors import InvalidInput
from synergai.models.directory import ModelDirectory
from synergai.models.formats.model_files import (
    DEFINITION_FILE,
    MODEL_FORMATS,
    SAVED_MODEL_FILE,
    backend_of,
    is_frozen_graph,
    is_saved_model,
    list_files,
    size_bytes,
)
from synergai.models.staging import install_staged, staging_folder
from synergai.runtime.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from synergai.models.directory import EngineDefinition

    Value: TypeAlias = str | float | Sequence[str] | None

_NO_SPACE_ERRNOS: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""What copying a model fails with where the copy has no room: no fault of the model's."""


@contextmanager
def stage_engine(models: Path, name: str, *, replace: bool = False) -> Iterator[Path]:
    """A folder that becomes the engine `name` when the block ends well, and vanishes if not.

    Args:
        models: the model directory; created if it is not there.
        name: of the engine.
        replace: whether an engine of this name may be there already.

    Raises:
        InvalidInput: the name is not one, or taken, or nothing can be written there.
    """
    validate_name(name, "engine name")
    try:
        models.mkdir(parents=True, exist_ok=True)
        with staging_folder(models, name) as staging:
            if (models / name).exists() and not replace:
                raise InvalidInput(
                    f"{models} has an engine {name!r} already; choose another name with --name, "
                    "or replace it with --replace"
                )
            staged = staging / name
            staged.mkdir()
            yield staged
            install_staged(staging, staged, models)
    except OSError as error:
        raise InvalidInput(f"cannot write to {models}: {error.strerror}") from error


def write_definition(folder: Path, keys: Mapping[str, Value]) -> None:
    """Write engine.toml; keys whose value is None or empty are left out.

    Raises:
        InvalidInput: a text has control characters, which no reader of the file accepts.
    """
    for key, value in keys.items():
        for text in _strings(value):
            if not text.isprintable():
                raise InvalidInput(f"the {key} has control characters: {text!r}")
    lines = [
        f"{key} = {_to_toml(value)}\n"
        for key, value in keys.items()
        if value is not None and value not in ("", (), [])
    ]
    (folder / DEFINITION_FILE).write_text("".join(lines), "utf-8")


def _strings(value: Value) -> Sequence[str]:
    match value:
        case str():
            return [value]
        case float() | int() | None:
            return []
        case _:
            return value


def _to_toml(value: Value) -> str:
    # A printable JSON string is a TOML basic string, and a list of them a list.
    return json.dumps(value, ensure_ascii=False)


def add_model(
    models: Path,
    source: Path,
    *,
    name: str | None = None,
    title: str = "",
    inputs: Sequence[str] = (),
    outputs: Sequence[str] = (),
    replace: bool = False,
) -> EngineDefinition:
    """Copy a user's model into the model directory and record its digest.

    Args:
        models: the model directory.
        source: the model file, or a SavedModel's folder.
        name: of the engine; by default the source's, without a suffix.
        title: what it is, for people.
        inputs: tensors that a frozen graph takes; by default its placeholders.
        outputs: tensors that a frozen graph gives; by default what nothing in it consumes.
        replace: whether an engine of this name may be replaced.

    Raises:
        InvalidInput: the model is not there, is none, needs further files, or tells its inputs
            and outputs itself.
    """
    from synergai.models.formats.inspect import describe

    source = source.parent if source.name == SAVED_MODEL_FILE else source
    if not backend_of(source):
        raise InvalidInput(f"{source} is no model file: {MODEL_FORMATS} can be added")
    if (inputs or outputs) and not is_frozen_graph(source):
        raise InvalidInput(f"{source} tells its inputs and outputs itself; leave them out")
    source_path = source.absolute()  # "." has no name
    if name is None:
        name = source_path.name if is_saved_model(source) else source_path.stem
    with stage_engine(models, name, replace=replace) as folder:
        model = folder / source_path.name
        try:
            size_bytes(source)
            for part in list_files(source):
                copied = model / part.relative_to(source)
                copied.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(part, copied)
        except OSError as error:
            if error.errno in _NO_SPACE_ERRNOS:
                raise
            raise InvalidInput(f"{source} cannot be read: {error.strerror}") from error
        # What is described and recorded is the copy: the source may change meanwhile.
        description = describe(model)
        if description.contents.external_data:
            raise InvalidInput(
                f"{source} keeps weights in other files; save it as one file first, with "
                "onnx.save_model(model, path, save_as_external_data=False)"
            )
        write_definition(
            folder,
            {
                "file": model.name,
                "sha256": description.digest,
                "inputs": inputs,
                "outputs": outputs,
                "title": title,
                "source": printable(os.fspath(source)),
            },
        )
    return ModelDirectory(models).get(name)
