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
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta, Struct, structs

from synergai.domain import Origin
from synergai.models.formats.model_files import is_version
from synergai.versions import validate_variant

if TYPE_CHECKING:
    from pathlib import Path

Sha256 = Annotated[str, Meta(pattern="^[0-9a-fA-F]{64}$")]
Share = Annotated[float, Meta(ge=0, le=1)]


def check_printable(keys: Struct) -> None:
    """Check that texts are safe in paths and on terminals."""
    for key, value in structs.asdict(keys).items():
        for text in value if isinstance(value, tuple | dict) else (value,):
            if isinstance(text, str) and not text.isprintable():
                raise ValueError(f"{key} contains control characters: {text[:80]!r}")


class VariantKeys(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One entry of ``[[variants]]``.

    Attributes:
        file: path of the model below the engine's folder.
        sha256: required digest of the model, hexadecimal; empty for any.
        accuracy: share of right answers; None if it is not known.
        origin: where the accuracy comes from; None without one.
    """

    name: str
    file: str
    sha256: Sha256 = ""
    accuracy: Share | None = None
    origin: Origin | None = None

    def __post_init__(self) -> None:
        check_printable(self)
        validate_variant(self.name)
        if self.origin is not None and self.accuracy is None:
            raise ValueError(f"the origin of variant {self.name!r} is that of its accuracy")
        path = PurePosixPath(self.file)
        where = f"the file of variant {self.name!r}"
        if path.is_absolute() or ".." in path.parts or not path.parts:
            raise ValueError(f"{where} has to be in the engine's folder, not {self.file!r}")
        if is_version(path.parts[0]):
            raise ValueError(f"{where} is in the folder of another version, {self.file!r}")

    def to_table(self) -> dict[str, str | float]:
        """Return the entry as in the file."""
        table: dict[str, str | float] = {"name": self.name, "file": self.file}
        if self.sha256:
            table["sha256"] = self.sha256
        if self.accuracy is not None:
            table["accuracy"] = self.accuracy
        if self.origin is not None:
            table["origin"] = self.origin.value
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
