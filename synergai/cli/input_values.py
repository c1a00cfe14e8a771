"""Parsing of inference inputs given on the command line.

``NAME=VALUE`` sets one input, and ``VALUE`` alone the engine's only input. A value is
``@FILE`` (.npy, .npz, .json, an encoded image, or .txt for a text), a JSON number, list or text, or
plain text.
"""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from numpy.lib.format import MAGIC_PREFIX, read_array

from synergai.data.text_files import finite_float
from synergai.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterable

    from synergai.domain import Engine

_IMAGES: Final = frozenset((".jpg", ".jpeg", ".png"))
_SUFFIXES: Final = _IMAGES | {".npy", ".npz", ".json"}
_SHOWN: Final = 60
"""Characters of a literal that a message repeats."""
_MAX_FILE_BYTES: Final = 1 << 30


def parse_inputs(texts: Iterable[str], engine: Engine) -> dict[str, Any]:
    """Return the value of each input by name: arrays, lists, scalars, texts, or encoded images."""
    names = [spec.name for spec in engine.inputs]
    values: dict[str, Any] = {}
    for text in texts:
        for name, value in _parse(text, names, engine).items():
            if name not in names:
                raise InvalidInput(f"engine {engine.name!r} has no input {name!r}: {usage(engine)}")
            if name in values:
                raise InvalidInput(f"input {name!r} is given twice")
            values[name] = value
    if missing := [name for name in names if name not in values]:
        raise InvalidInput(f"no value for input {missing[0]!r}: {usage(engine)}")
    return values


def usage(engine: Engine) -> str:
    """Return the engine's ``--input`` options with their datatypes and shapes."""
    image = f" or {engine.inputs[0].name}=@image.jpg" if engine.preprocess else ""
    inputs = ", ".join(f"--input {spec.name}=<{spec.kind}>" for spec in engine.inputs)
    return f"it takes {inputs}{image}"


def _parse(text: str, names: list[str], engine: Engine) -> dict[str, Any]:
    # Literals may contain '=', so known names are matched first.
    name, equals, rest = text.partition("=")
    if not equals or (name not in names and text.startswith(("@", "[", "{", '"'))):
        name, rest = "", text
    datatypes = {spec.name: spec.datatype for spec in engine.inputs}
    datatype = datatypes.get(name or names[0], "")
    if rest.startswith("@"):
        value = _read(Path(rest[1:]), engine, datatype)
    else:
        value = _literal(rest, datatype)
    if isinstance(value, dict) and (not name or rest.startswith("@")):
        return _choose(value, name)
    if name:
        return {name: value}
    if len(names) != 1:
        raise InvalidInput(f"{text!r} does not name its input: {usage(engine)}")
    return {names[0]: value}


def _choose(values: dict[str, Any], name: str) -> dict[str, Any]:
    """Return all values of a file, or the one for `name`."""
    if not name:
        return values
    if name in values:
        return {name: values[name]}
    if len(values) == 1:
        return {name: next(iter(values.values()))}
    raise InvalidInput(f"the file has no {name!r}; it has {', '.join(values)}")


def _literal(text: str, datatype: str) -> Any:
    """Return the value of a JSON literal; for text inputs, of a JSON list or string only."""
    if datatype == "BYTES" and not text.startswith(("[", '"')):
        return text
    try:
        return json.loads(text, parse_float=finite_float)
    except (ValueError, RecursionError):
        if text[:1] in ("[", "{"):
            raise InvalidInput(f"{_shortened(text)} is not valid JSON") from None
        if datatype != "BYTES" and _is_input_file(text):
            raise InvalidInput(f"{text} is a file; read it with @{text}") from None
        return text


def _is_input_file(text: str) -> bool:
    """Return whether a text that is no number is the path of a file that could be read."""
    path = Path(text)
    return path.suffix.lower() in _SUFFIXES and path.is_file()


def _shortened(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…")


def _read(path: Path, engine: Engine, datatype: str) -> Any:
    suffix = path.suffix.lower()
    if not path.is_file():
        raise InvalidInput(f"{path}: {'not a regular' if path.exists() else 'no such'} file")
    if path.stat().st_size > _MAX_FILE_BYTES:
        raise InvalidInput(f"{path} is larger than {_MAX_FILE_BYTES >> 20} MiB")
    try:
        if suffix == ".npy":
            with path.open("rb") as file:
                return _array(file, "it")
        if suffix == ".npz":
            return _archive(path)
        if suffix == ".json":
            return json.loads(path.read_text("utf-8"), parse_float=finite_float)
        if suffix in _IMAGES:
            return _image(path, engine)
        if suffix == ".txt" and datatype == "BYTES":
            return path.read_bytes()
    except OSError as error:
        raise InvalidInput(f"{path}: {error.strerror or error}") from error
    except InvalidInput:
        raise
    except Exception as error:
        raise InvalidInput(f"{path} is not a readable {suffix} file: {error}") from error
    text = ", .txt" if datatype == "BYTES" else ""
    raise InvalidInput(f"{path}: not a .npy, .npz, .json{text}, .jpg or .png file")


def _array(file: IO[bytes], what: str) -> Any:
    """Return the array in a file in NumPy's format; `what` names the file in errors."""
    if file.read(len(MAGIC_PREFIX)) != MAGIC_PREFIX:
        raise ValueError(f"{what} is not an array in NumPy's format")
    file.seek(0)
    try:
        return read_array(file, allow_pickle=False)
    except ValueError as error:
        if "allow_pickle" in str(error):
            reason = "has Python objects, which are not read; save numbers or texts"
        else:
            reason = "ends before its array does, or is damaged"
        raise ValueError(f"{what} {reason}") from error


def _archive(path: Path) -> dict[str, Any]:
    arrays: dict[str, Any] = {}
    with zipfile.ZipFile(path) as archive:
        for member in archive.namelist():
            name = member.removesuffix(".npy")
            with archive.open(member) as file:
                arrays[name] = _array(file, f"its {name!r}")
    return arrays


def _image(path: Path, engine: Engine) -> bytes:
    if not engine.preprocess and engine.inputs[0].datatype != "BYTES":
        raise InvalidInput(
            f"engine {engine.name!r} takes tensors only; to send it images, "
            'set preprocess = "resnet50", "mobilenet" or "ssd" in its engine.toml'
        )
    return path.read_bytes()
