"""The ``[warmup]`` table of engine.toml: what to try a model with that has no sample set.

Each entry is named after an input of the model::

    [warmup]
    tokens = { shape = [1, 16], value = 1 }
    text = { value = "12.5" }
    image = { file = "image.npy" }
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from synergai.errors import InvalidInput
from synergai.models.formats.model_files import DEFINITION_FILE, SAMPLES_FILE

ADVICE: Final = (
    f"add a {SAMPLES_FILE}, or a [warmup] table with shapes or values that the model accepts to "
    f"its {DEFINITION_FILE} (docs/guide/engines.md)"
)
"""Advice for an unverified engine."""

_KEYS: Final = ("shape", "value", "file")
_MAX_RANK: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmUpInput:
    """Shape and values to try for one input of a model; anything not given is generated.

    Attributes:
        value: The value of all its elements; None if not given.
        file: An .npy file with the whole input; None if not given.
    """

    name: str
    shape: tuple[int, ...] | None = None
    value: bool | int | float | str | None = None
    file: Path | None = None


def parse_warmup(table: object) -> tuple[WarmUpInput, ...]:
    """Return the entries of a ``[warmup]`` table."""
    if not isinstance(table, dict):
        raise InvalidInput(f"{DEFINITION_FILE}: warmup must be a table with an entry per input")
    return tuple(_parse_entry(name, entry) for name, entry in table.items())


def _parse_entry(name: str, entry: object) -> WarmUpInput:
    where = f"{DEFINITION_FILE}: warmup.{name}"
    if not name or not name.isprintable():
        raise InvalidInput(f"{DEFINITION_FILE}: warmup has the invalid input name {name!r}")
    if not isinstance(entry, dict) or not entry or not entry.keys() <= set(_KEYS):
        raise InvalidInput(f"{where} must be a table with keys of {', '.join(_KEYS)}")
    if "file" in entry and len(entry) > 1:
        raise InvalidInput(f"{where}: the array in the file has its own shape and values")
    return WarmUpInput(
        name=name,
        shape=_shape(where, entry["shape"]) if "shape" in entry else None,
        value=_value(where, entry["value"]) if "value" in entry else None,
        file=_file(where, entry["file"]) if "file" in entry else None,
    )


def _shape(where: str, value: Any) -> tuple[int, ...]:
    if (
        not isinstance(value, list)
        or len(value) > _MAX_RANK
        or not all(type(size) is int and 0 <= size < 1 << 63 for size in value)
    ):
        raise InvalidInput(f"{where}: shape must be a list of sizes, such as [1, 16]")
    return tuple(value)


def _value(where: str, value: Any) -> bool | int | float | str:
    if not isinstance(value, bool | int | float | str):
        raise InvalidInput(f"{where}: value must be a number, a string, true or false")
    return value


def _file(where: str, value: Any) -> Path:
    if not isinstance(value, str) or not value.isprintable() or not value.endswith(".npy"):
        raise InvalidInput(f"{where}: file must be the name of an .npy file in the engine's folder")
    return Path(value)
