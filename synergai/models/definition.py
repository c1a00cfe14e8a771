"""``engine.toml``: the settings that an engine's folder adds to its model file."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from synergai.domain import MAX_BATCH
from synergai.errors import InvalidInput
from synergai.models.formats.model_files import DEFINITION_FILE, find_models
from synergai.models.warmup import parse_warmup

if TYPE_CHECKING:
    from pathlib import Path

    from synergai.models.warmup import WarmUpInput

MAX_DEFINITION_BYTES: Final = 64 << 10
_MAX_QUOTED_CHARS: Final = 80
"""Longest quotation of an invalid value in an error message."""

_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_STRING_KEYS: Final = ("name", "version", "backend", "file", "sha256", "title", "source")
_CHOICE_KEYS: Final = {
    "preprocess": ("resnet50", "mobilenet", "ssd"),
    "postprocess": ("classes", "boxes"),
}
_LIST_KEYS: Final = ("inputs", "outputs")
_BATCH_SIZES: Final = tuple(1 << power for power in range(MAX_BATCH.bit_length()))
_KEYS: Final = ("accuracy", "max_batch", "warmup", *_STRING_KEYS, *_CHOICE_KEYS, *_LIST_KEYS)


_MODEL_KEYS: Final = ("name", "version", "backend", "file", "sha256", "source", "accuracy")
"""Keys that are about one model, which other versions of its engine do not have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DefinitionFile:
    """The keys of an engine.toml; empty if absent. See ``docs/engines.md``."""

    name: str = ""
    version: str = ""
    backend: str = ""
    file: str = ""
    sha256: str = ""
    title: str = ""
    source: str = ""
    preprocess: str = ""
    postprocess: str = ""
    accuracy: float | None = None
    max_batch: int = 1
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    warmup: tuple[WarmUpInput, ...] = ()


def read_definition(path: Path) -> DefinitionFile:
    """Read the engine.toml at `path`; a missing file is an empty one.

    Raises:
        InvalidInput: The file is not TOML, or a key is unknown or invalid.
        OSError: The file cannot be read.
    """
    if not path.exists():
        return DefinitionFile()
    table = _read_table(path)
    for key in table:
        if key not in _KEYS:
            raise InvalidInput(
                f"{DEFINITION_FILE}: unknown key {_quote(key)}; known keys: {', '.join(_KEYS)}"
            )
    strings: dict[str, str] = {
        key: _string(key, table[key]) for key in _STRING_KEYS if key in table
    }
    strings |= {key: _choice_of(key, table[key]) for key in _CHOICE_KEYS if key in table}
    if "sha256" in strings:
        strings["sha256"] = _sha256(strings["sha256"])
    return DefinitionFile(
        **strings,
        accuracy=_fraction("accuracy", table["accuracy"]) if "accuracy" in table else None,
        max_batch=_max_batch("max_batch", table.get("max_batch", 1)),
        inputs=_name_list("inputs", table.get("inputs", [])),
        outputs=_name_list("outputs", table.get("outputs", [])),
        warmup=parse_warmup(table.get("warmup", {})),
    )


def read_shared_definition(path: Path) -> DefinitionFile:
    """Read the engine.toml of an engine's folder on behalf of a version's folder in it.

    If the engine's folder has a model, this is version 1: the keys about that model are left out,
    which are `file`, `sha256`, `source` and `accuracy`.

    Raises:
        InvalidInput: The file is not TOML, or a key is unknown or invalid.
        OSError: The file cannot be read.
    """
    keys = read_definition(path)
    if find_models(path.parent) or (keys.file and (path.parent / keys.file).exists()):
        return replace(keys, file="", sha256="", source="", accuracy=None)
    return keys


def read_shared_keys(path: Path) -> dict[str, Any]:
    """Return the keys of an engine's engine.toml that a new version has as well, as in the file.

    Raises:
        InvalidInput: The file is not TOML, or a key is unknown or invalid.
        OSError: The file cannot be read.
    """
    if not path.exists():
        return {}
    read_definition(path)
    return {key: each for key, each in _read_table(path).items() if key not in _MODEL_KEYS}


def _read_table(path: Path) -> dict[str, Any]:
    if not path.is_file():  # reading a named pipe would block
        raise InvalidInput(f"{DEFINITION_FILE} is not a regular file")
    if path.stat().st_size > MAX_DEFINITION_BYTES:
        raise InvalidInput(f"{DEFINITION_FILE} is larger than {MAX_DEFINITION_BYTES:,} bytes")
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except ValueError as error:  # TOMLDecodeError or UnicodeDecodeError
        raise InvalidInput(f"{DEFINITION_FILE} is not TOML: {error}") from error
    except RecursionError as error:
        raise InvalidInput(f"{DEFINITION_FILE} is nested too deeply") from error


def _string(key: str, value: object) -> str:
    if not isinstance(value, str) or not value:
        raise InvalidInput(f"{DEFINITION_FILE}: {key} must be a string, not {_quote(value)}")
    if not value.isprintable():  # invalid in paths and unsafe on a terminal
        raise InvalidInput(f"{DEFINITION_FILE}: {key} contains control characters: {_quote(value)}")
    return value


def _choice_of(key: str, value: object) -> str:
    if value not in _CHOICE_KEYS[key]:
        raise InvalidInput(
            f"{DEFINITION_FILE}: {key} must be one of {', '.join(_CHOICE_KEYS[key])}, "
            f"not {_quote(value)}"
        )
    return str(value)


def _sha256(value: str) -> str:
    if not _SHA256.fullmatch(value.lower()):
        raise InvalidInput(f"{DEFINITION_FILE}: sha256 must be 64 hexadecimal digits")
    return value.lower()


def _fraction(key: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InvalidInput(f"{DEFINITION_FILE}: {key} must be a number, not {_quote(value)}")
    if not 0 <= value <= 1:
        raise InvalidInput(f"{DEFINITION_FILE}: {key} must be from 0 to 1, not {_quote(value)}")
    return float(value)


def _max_batch(key: str, value: object) -> int:
    # Batches are profiled at powers of two and never exceed the largest profiled size.
    if isinstance(value, bool) or value not in _BATCH_SIZES:
        raise InvalidInput(
            f"{DEFINITION_FILE}: {key} must be one of {', '.join(map(str, _BATCH_SIZES))}, "
            f"not {_quote(value)}"
        )
    return int(value)


def _name_list(key: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise InvalidInput(
            f"{DEFINITION_FILE}: {key} must be a list of strings, not {_quote(value)}"
        )
    names = tuple(_string(key, name) for name in value)
    if len(set(names)) != len(names):
        raise InvalidInput(f"{DEFINITION_FILE}: {key} contains a duplicate name")
    return names


def _quote(value: object) -> str:
    """Return `value` shortened for an error message."""
    try:
        text = repr(value)
    except ValueError:  # a hexadecimal TOML integer with thousands of digits
        return "a number that is too large"
    return text if len(text) <= _MAX_QUOTED_CHARS else f"{text[:_MAX_QUOTED_CHARS]}…"
