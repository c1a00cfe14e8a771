"""``engine.toml``: the settings that an engine's folder adds to its model file.

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

from collections import Counter
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Final, Literal

from msgspec import Meta, Struct, structs

from synergai.domain import MAX_BATCH, MAX_VARIANTS, Exit, Origin, TensorSpec
from synergai.errors import InvalidInput
from synergai.models.formats.model_files import (
    DEFINITION_FILE,
    SAMPLES_FILE,
    backend_of,
    find_models,
    has_signatures,
    is_frozen_graph,
    is_version,
)
from synergai.names import validate_name, validate_variant
from synergai.runtime.toml_file import read_toml

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


ADVICE: Final = f"add a {SAMPLES_FILE} (docs/guide/engines.md)"
"""Advice for an unverified engine."""
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


MAX_DEFINITION_BYTES: Final = 64 << 10
_BATCH_SIZES: Final = tuple(1 << power for power in range(MAX_BATCH.bit_length()))
Text = Annotated[str, Meta(min_length=1)]


class StageTensors(Struct, frozen=True, forbid_unknown_fields=True):
    """The inputs and outputs of a stage, by which it is described before it is loaded."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]


class DefinitionFile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The keys of an engine.toml; empty if absent. See ``docs/guide/engines.md``.

    With variants, `file`, `sha256` and `accuracy` belong to the first one.
    """

    backend: Text = ""
    file: Text = ""
    sha256: Sha256 = ""
    title: Text = ""
    source: Text = ""
    stage_of: Sha256 = ""
    preprocess: Literal["", "resnet50", "mobilenet", "ssd"] = ""
    postprocess: Literal["", "classes", "boxes"] = ""
    accuracy: Share | None = None
    max_batch: int = 1
    routes: Literal["", "never", "needed", "auto"] = ""
    stage_end: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    exit: Exit | None = None
    tensors: StageTensors | None = None
    inputs: tuple[Text, ...] = ()
    outputs: tuple[Text, ...] = ()
    signature: Text = ""
    variants: Annotated[tuple[VariantKeys, ...], Meta(max_length=MAX_VARIANTS)] = ()

    def __post_init__(self) -> None:
        check_printable(self)
        if self.max_batch not in _BATCH_SIZES:
            # Batches are profiled at powers of two and never exceed the largest profiled size.
            raise ValueError(f"max_batch must be one of {', '.join(map(str, _BATCH_SIZES))}")
        for key, names in (("inputs", self.inputs), ("outputs", self.outputs)):
            _check_distinct(f"{key} has the name", names)
        _check_distinct("two variants have the name", [each.name for each in self.variants])
        files = [str(PurePosixPath(each.file)) for each in self.variants]
        _check_distinct("two variants have the file", files)

    def backend_of(self, file: Path) -> str:
        """Return the backend of the engine's model `file`."""
        backend = self.backend or backend_of(file)
        if not backend:
            raise InvalidInput(
                f"no backend is known for the suffix of {file.name!r}; "
                f'set backend = "…" in {DEFINITION_FILE}'
            )
        return validate_name(backend, "backend name")

    def check_suits(self, files: Sequence[Path]) -> None:
        """Check that the keys are for models such as the engine's `files`."""
        name = files[0].name
        if (self.inputs or self.outputs) and not is_frozen_graph(files[0]):
            raise InvalidInput(
                f"{DEFINITION_FILE}: inputs and outputs are for frozen graphs only; "
                f"{name} declares its own"
            )
        if self.signature and not any(map(has_signatures, files)):
            raise InvalidInput(
                f"{DEFINITION_FILE}: signature is for SavedModels and TFLite files, not for {name}"
            )
        if self.exit is not None and not self.stage_of:
            raise InvalidInput(
                f"{DEFINITION_FILE}: exit is for stages; make some with 'synergai engines exits'"
            )
        if self.tensors is not None and not self.stage_of:
            raise InvalidInput(f"{DEFINITION_FILE}: tensors is for stages")


def _check_distinct(fault: str, values: Sequence[str]) -> None:
    for value, count in Counter(values).items():
        if count > 1:
            raise ValueError(f"{fault} {value!r} twice")


def read_definition(path: Path) -> DefinitionFile:
    """Read the engine.toml at `path`; a missing file is an empty one."""
    if not path.exists():
        return DefinitionFile()
    keys = read_toml(path, DefinitionFile, DEFINITION_FILE, MAX_DEFINITION_BYTES)
    if not keys.variants:
        return keys
    for key in ("file", "sha256", "accuracy"):
        if getattr(keys, key) not in ("", None):
            raise InvalidInput(f"{DEFINITION_FILE}: with variants, each of them has its own {key}")
    first = keys.variants[0]
    return structs.replace(keys, file=first.file, sha256=first.sha256, accuracy=first.accuracy)


def read_shared_definition(path: Path) -> DefinitionFile:
    """Read the engine.toml of an engine's folder on behalf of a version's folder in it.

    If the engine's folder has a model, this is version 1: the keys about that model are left out,
    which are `file`, `sha256`, `source`, `accuracy` and `variants`.
    """
    keys = read_definition(path)
    if find_models(path.parent) or (keys.file and (path.parent / keys.file).exists()):
        return structs.replace(keys, file="", sha256="", source="", accuracy=None, variants=())
    return keys
