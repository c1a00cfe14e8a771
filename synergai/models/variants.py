"""``[[variants]]`` of an engine.toml: several model files of one engine.

The variants of an engine differ in accuracy and speed. They have the same inputs and outputs, and
the sample set of their folder, so that a client need not know which of them answers::

    [[variants]]
    name = "full"
    file = "full.onnx"
    sha256 = "9f86d0…"          # if given, refuse a model with another digest
    accuracy = 0.884            # share of right answers, if known
    origin = "measured"         # of the accuracy: measured, published or declared, the default

    [[variants]]
    name = "int8"
    file = "int8.onnx"

The first one describes the engine. A machine need not have all of the files.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final

from synergai.domain import MAX_VARIANTS, Origin
from synergai.errors import InvalidInput
from synergai.models.definition_values import choice_of, fraction, quote, sha256_digest, string
from synergai.models.formats.model_files import DEFINITION_FILE, is_version
from synergai.versions import validate_variant

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_KEYS: Final = ("name", "file", "sha256", "accuracy", "origin")
_ORIGINS: Final = tuple(origin.value for origin in Origin)


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantKeys:
    """One entry of ``[[variants]]``.

    Attributes:
        file: path of the model below the engine's folder.
        sha256: required digest of the model, hexadecimal; empty for any.
        accuracy: share of right answers, 0 to 1; None if it is not known.
        origin: where the accuracy comes from.
    """

    name: str
    file: str
    sha256: str = ""
    accuracy: float | None = None
    origin: Origin = Origin.DECLARED

    def to_table(self) -> dict[str, str | float]:
        """Return the entry as in the file."""
        table: dict[str, str | float] = {"name": self.name, "file": self.file}
        if self.sha256:
            table["sha256"] = self.sha256
        if self.accuracy is not None:
            table |= {"accuracy": self.accuracy, "origin": self.origin.value}
        return table


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantDefinition:
    """A variant whose model file is there. The model has not been opened.

    Attributes:
        backend: a name in the registry of backends.
        file: the model file or SavedModel folder.
        sha256: as of `VariantKeys`, like the next two.
    """

    name: str
    backend: str
    file: Path
    sha256: str = ""
    accuracy: float | None = None
    origin: Origin = Origin.DECLARED


def parse_variants(value: object) -> tuple[VariantKeys, ...]:
    """Return the entries of ``[[variants]]``."""
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise InvalidInput(
            f"{DEFINITION_FILE}: variants must be tables, each below a line [[variants]], "
            f"not {quote(value)}"
        )
    if len(value) > MAX_VARIANTS:
        raise InvalidInput(f"{DEFINITION_FILE}: an engine has at most {MAX_VARIANTS} variants")
    variants = tuple(map(_parse, value))
    for key in ("name", "file"):
        _check_distinct(key, [getattr(each, key) for each in variants])
    return variants


def _parse(table: Mapping[str, object]) -> VariantKeys:
    for key in table:
        if key not in _KEYS:
            raise InvalidInput(
                f"{DEFINITION_FILE}: unknown key {quote(key)} of a variant; known keys: "
                f"{', '.join(_KEYS)}"
            )
    for key in ("name", "file"):
        if key not in table:
            raise InvalidInput(f"{DEFINITION_FILE}: a variant has no {key}")
    try:
        name = validate_variant(string("name", table["name"]))
    except InvalidInput as error:
        raise InvalidInput(f"{DEFINITION_FILE}: {error}") from None
    where = f"of variant {name!r}"
    if "origin" in table and "accuracy" not in table:
        raise InvalidInput(f"{DEFINITION_FILE}: the origin {where} is that of its accuracy")
    file = string(f"the file {where}", table["file"])
    path = PurePosixPath(file)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise InvalidInput(
            f"{DEFINITION_FILE}: the file {where} has to be in the engine's folder, not "
            f"{quote(file)}"
        )
    if is_version(path.parts[0]):
        raise InvalidInput(
            f"{DEFINITION_FILE}: the file {where} is in the folder of another version, "
            f"{quote(file)}"
        )
    return VariantKeys(
        name=name,
        file=path.as_posix(),
        sha256=sha256_digest(string(f"the sha256 {where}", table["sha256"]))
        if "sha256" in table
        else "",
        accuracy=fraction(f"the accuracy {where}", table["accuracy"])
        if "accuracy" in table
        else None,
        origin=Origin(choice_of(f"the origin {where}", table.get("origin", "declared"), _ORIGINS)),
    )


def _check_distinct(key: str, values: Sequence[str]) -> None:
    seen: set[str] = set()
    for value in values:
        if value in seen:
            raise InvalidInput(f"{DEFINITION_FILE}: two variants have the {key} {quote(value)}")
        seen.add(value)
