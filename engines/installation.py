"""Puts engines into a model directory: whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING

from engines.model_directory import ModelDirectory
from engines.model_files import BACKENDS, DEFINITION_FILE
from synergai.domain import checked_name
from synergai.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterator

    from engines.model_directory import EngineDefinition


@contextmanager
def installing(models: Path, name: str, *, replace: bool = False) -> Iterator[Path]:
    """A folder that becomes the engine `name` when the block ends well, and vanishes if not.

    Args:
        models: the model directory; created if it is not there.
        name: of the engine.
        replace: whether an engine of this name may be there already.

    Raises:
        InvalidInput: the name is not one, or taken, or nothing can be written there.
    """
    checked_name(name, "engine name")
    target = models / name
    try:
        models.mkdir(parents=True, exist_ok=True)
        # Readers skip names that begin with a dot.
        work = Path(mkdtemp(prefix=f".{name}-", dir=models))
    except OSError as error:
        raise InvalidInput(f"cannot write to {models}: {error.strerror}") from error
    try:
        work.chmod(0o755)
        made = work / name
        made.mkdir()
        if target.exists() and not replace:
            raise InvalidInput(
                f"{models} has an engine {name!r} already; choose another name with --name, "
                "or replace it with --replace"
            )
        yield made
        if target.exists():
            target.rename(work / "replaced")
        made.rename(target)
    except OSError as error:
        raise InvalidInput(f"cannot write to {models}: {error.strerror}") from error
    finally:
        shutil.rmtree(work, ignore_errors=True)


def write_definition(folder: Path, keys: dict[str, str | float | None]) -> None:
    """Write engine.toml; keys whose value is None or empty are left out.

    Raises:
        InvalidInput: a text has control characters, which no reader of the file accepts.
    """
    for key, value in keys.items():
        if isinstance(value, str) and not value.isprintable():
            raise InvalidInput(f"the {key} has control characters: {value!r}")
    lines = [f"{key} = {_toml(value)}\n" for key, value in keys.items() if value not in (None, "")]
    (folder / DEFINITION_FILE).write_text("".join(lines), "utf-8")


def _toml(value: str | float | None) -> str:
    # A printable JSON string is a TOML basic string.
    return json.dumps(value, ensure_ascii=False)


def add(
    models: Path, source: Path, *, name: str | None = None, title: str = "", replace: bool = False
) -> EngineDefinition:
    """Copy a user's model file into the model directory and record its digest.

    Args:
        models: the model directory.
        source: the model file.
        name: of the engine; by default the file's, without its suffix.
        title: what it is, for people.
        replace: whether an engine of this name may be replaced.

    Raises:
        InvalidInput: the file is not there, is no model, or needs further files.
    """
    from engines.inspect import describe

    if source.suffix not in BACKENDS:
        raise InvalidInput(f"{source} is no model file: {', '.join(BACKENDS)} can be added")
    name = source.stem if name is None else name
    with installing(models, name, replace=replace) as folder:
        file = folder / source.name
        try:
            shutil.copyfile(source, file)
        except OSError as error:
            raise InvalidInput(f"{source} cannot be read: {error.strerror}") from error
        # What is described and recorded is the copy: the source may change meanwhile.
        description = describe(file, str(source))
        if description.external_data:
            raise InvalidInput(
                f"{source} keeps weights in other files; save it as one file first, with "
                "onnx.save_model(model, path, save_as_external_data=False)"
            )
        keys = {"file": file.name, "sha256": description.digest, "title": title}
        shown = "".join(each if each.isprintable() else "?" for each in os.fspath(source))
        write_definition(folder, {**keys, "source": shown})
    return ModelDirectory(models).get(name)
