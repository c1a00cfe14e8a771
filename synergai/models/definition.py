"""``engine.toml``: the settings that an engine's folder adds to its model file."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from synergai.domain import MAX_BATCH, Exit
from synergai.errors import InvalidInput
from synergai.models.definition_values import choice_of, fraction, quote, sha256_digest, string
from synergai.models.formats.model_files import DEFINITION_FILE, find_models, is_version
from synergai.models.variants import parse_variants
from synergai.models.warmup import parse_warmup

if TYPE_CHECKING:
    from pathlib import Path

    from synergai.models.variants import VariantKeys
    from synergai.models.warmup import WarmUpInput

MAX_DEFINITION_BYTES: Final = 64 << 10
_STRING_KEYS: Final = (
    *("name", "version", "backend", "file", "sha256", "title", "source", "stage_of"),
)
_CHOICE_KEYS: Final = {
    "preprocess": ("resnet50", "mobilenet", "ssd"),
    "postprocess": ("classes", "boxes"),
}
_LIST_KEYS: Final = ("inputs", "outputs")
_BATCH_SIZES: Final = tuple(1 << power for power in range(MAX_BATCH.bit_length()))
_KEYS: Final = (
    *("accuracy", "max_batch", "stage_end", "exit", "warmup", "variants"),
    *(*_STRING_KEYS, *_CHOICE_KEYS, *_LIST_KEYS),
)
_MAX_PLACES: Final = 1_000_000
_MODEL_KEYS: Final = (
    *("name", "version", "backend", "file", "sha256", "source", "accuracy", "variants"),
    *("stage_of", "stage_end", "exit"),
)
"""Keys that are about one model, which other versions of its engine do not have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DefinitionFile:
    """The keys of an engine.toml; empty if absent. See ``docs/guide/engines.md``.

    With variants, `file`, `sha256` and `accuracy` belong to the first one.
    """

    name: str = ""
    version: str = ""
    backend: str = ""
    file: str = ""
    sha256: str = ""
    title: str = ""
    source: str = ""
    stage_of: str = ""
    preprocess: str = ""
    postprocess: str = ""
    accuracy: float | None = None
    max_batch: int = 1
    stage_end: int = 0
    exit: Exit | None = None
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    warmup: tuple[WarmUpInput, ...] = ()
    variants: tuple[VariantKeys, ...] = ()


def read_definition(path: Path) -> DefinitionFile:
    """Read the engine.toml at `path`; a missing file is an empty one."""
    if not path.exists():
        return DefinitionFile()
    table = _read_table(path)
    for key in table:
        if key not in _KEYS:
            raise InvalidInput(
                f"{DEFINITION_FILE}: unknown key {quote(key)}; known keys: {', '.join(_KEYS)}"
            )
    strings: dict[str, str] = {key: string(key, table[key]) for key in _STRING_KEYS if key in table}
    strings |= {
        key: choice_of(key, table[key], choices)
        for key, choices in _CHOICE_KEYS.items()
        if key in table
    }
    for key in ("sha256", "stage_of"):
        if key in strings:
            strings[key] = sha256_digest(strings[key])
    keys = DefinitionFile(
        **strings,
        accuracy=fraction("accuracy", table["accuracy"]) if "accuracy" in table else None,
        max_batch=_max_batch("max_batch", table.get("max_batch", 1)),
        stage_end=_stage_end(table.get("stage_end", 0)),
        exit=_exit(table["exit"]) if "exit" in table else None,
        inputs=_name_list("inputs", table.get("inputs", [])),
        outputs=_name_list("outputs", table.get("outputs", [])),
        warmup=parse_warmup(table.get("warmup", {})),
        variants=parse_variants(table.get("variants", [])),
    )
    if not keys.variants:
        return keys
    for key in ("file", "sha256", "accuracy"):
        if key in table:
            raise InvalidInput(f"{DEFINITION_FILE}: with variants, each of them has its own {key}")
    first = keys.variants[0]
    return replace(keys, file=first.file, sha256=first.sha256, accuracy=first.accuracy)


def read_shared_definition(path: Path) -> DefinitionFile:
    """Read the engine.toml of an engine's folder on behalf of a version's folder in it.

    If the engine's folder has a model, this is version 1: the keys about that model are left out,
    which are `file`, `sha256`, `source`, `accuracy` and `variants`.
    """
    keys = read_definition(path)
    if find_models(path.parent) or (keys.file and (path.parent / keys.file).exists()):
        return replace(keys, file="", sha256="", source="", accuracy=None, variants=())
    return keys


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


def _max_batch(key: str, value: object) -> int:
    # Batches are profiled at powers of two and never exceed the largest profiled size.
    if isinstance(value, bool) or value not in _BATCH_SIZES:
        raise InvalidInput(
            f"{DEFINITION_FILE}: {key} must be one of {', '.join(map(str, _BATCH_SIZES))}, "
            f"not {quote(value)}"
        )
    return int(value)


def _stage_end(value: object) -> int:
    if not isinstance(value, int) or not 0 <= value <= _MAX_PLACES:
        raise InvalidInput(
            f"{DEFINITION_FILE}: stage_end must be a number up to {_MAX_PLACES:,}, not "
            f"{quote(value)}"
        )
    return value


def _exit(value: object) -> Exit:
    keys = Exit.__struct_fields__
    if not isinstance(value, dict) or not {"output", "threshold"} <= value.keys() <= set(keys):
        raise InvalidInput(
            f"{DEFINITION_FILE}: exit must be a table with output and threshold, and maybe "
            f"{', '.join(keys[2:])}, not {quote(value)}"
        )
    numbers = {key: fraction(f"exit.{key}", value[key]) for key in keys[1:] if key in value}
    return Exit(output=string("exit.output", value["output"]), **numbers)


def _name_list(key: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise InvalidInput(
            f"{DEFINITION_FILE}: {key} must be a list of strings, not {quote(value)}"
        )
    names = tuple(string(key, name) for name in value)
    if len(set(names)) != len(names):
        raise InvalidInput(f"{DEFINITION_FILE}: {key} contains a duplicate name")
    return names
