"""Making of 8-bit variants of an engine's ONNX models.

New variants are made in a hidden copy of the engine and checked there in engine hosts. Their files
are moved into the folder ``variants`` of the engine before its engine.toml names them, so that the
engine can be loaded at every instant, and an interruption leaves it as it was.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from msgspec.structs import replace

from profiler.installation import link_file, staging_folder, write_definition
from profiler.zoo.int8 import quantise
from synergai.domain import MAX_VARIANTS, Origin
from synergai.errors import EngineUnusable, InvalidInput
from synergai.models.definition import VariantKeys, read_definition, read_other_keys
from synergai.models.directory import ModelDirectory
from synergai.models.formats.model_files import DEFINITION_FILE, SAMPLES_FILE, digest
from synergai.models.samples import load_samples
from synergai.names import split_version

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from synergai.domain import TensorSpec
    from synergai.models.directory import EngineDefinition

FULL: Final = "full"
"""Name of an engine's only model once it has variants."""
INT8: Final = "int8"
FOLDER: Final = "variants"
"""Folder in the engine's, in which readers of the model directory look for no model."""
_SUFFIX: Final = ".onnx"
_DIGEST_CHARS: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedVariant:
    """Results of running a variant.

    Attributes:
        unverified: why it is not known to work; empty if it is.
        labelled: number of labelled samples that it was run on.
        correct: number of these that it answered correctly.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    unverified: str = ""
    labelled: int = 0
    correct: int = 0


VariantCheck: TypeAlias = "Callable[[Path, str, str], CheckedVariant]"
"""Runs a variant of an engine in a model directory on the engine's samples, in an engine host."""


def make_variants(
    models: Path,
    name: str,
    check: VariantCheck,
    say: Callable[[str], object] = lambda _: None,
) -> EngineDefinition:
    """Add an 8-bit variant of each model of an engine; return the engine."""
    definition, folder = _find(models, name)
    try:
        with staging_folder(models, split_version(name)[0]) as staging:
            workshop = _Workshop(definition, folder, staging, check, say)
            workshop.make()
            _install(workshop.folder, folder)
    except OSError as error:
        raise InvalidInput(f"cannot write to {models}: {error.strerror}") from error
    return ModelDirectory(models).get(name)


def remove_variant(models: Path, name: str, variant: str) -> EngineDefinition:
    """Remove a variant of an engine, and its file if it was made here; return the engine."""
    definition, folder = _find(models, name)
    if variant not in definition.lacking:
        definition.of_variant(variant)  # raises an error if there is none
    if not any(each.name != variant for each in definition.variants):
        raise InvalidInput(f"{variant!r} is the only variant of engine {name!r}")
    kept = [each for each in _variants(definition, folder) if each.name != variant]
    try:
        with staging_folder(models, split_version(name)[0]) as staging:
            _write(folder, staging, kept)
            _install(staging, folder)
    except OSError as error:
        raise InvalidInput(f"cannot write to {models}: {error.strerror}") from error
    return ModelDirectory(models).get(name)


class _Workshop:
    """Makes variants in a copy of an engine.

    Args:
        staging: an empty folder, which becomes the model directory of the copy.
    """

    def __init__(
        self,
        definition: EngineDefinition,
        original: Path,
        staging: Path,
        check: VariantCheck,
        say: Callable[[str], object],
    ) -> None:
        self._definition = definition
        self._original = original
        self._staging = staging
        self._name = split_version(definition.name)[0]
        self.folder = staging / self._name
        self._check = check
        self._say = say
        self._variants = _variants(definition, original)
        self._made: list[str] = []

    def make(self) -> None:
        """Make the variants, check them, and describe them in the copy's engine.toml."""
        sources = self._definition.variants or (self._definition,)
        if not any(each.file.suffix == _SUFFIX for each in sources):
            raise InvalidInput(
                f"engine {self._definition.name!r} is not an ONNX model: variants can be made of "
                "ONNX models only"
            )
        if self._definition.samples is None:
            raise InvalidInput(
                f"engine {self._definition.name!r} has no {SAMPLES_FILE} to calibrate 8-bit "
                "integers on; put one into its folder, with an array for each input of the model"
            )
        wanted = self._wanted()
        if not wanted:
            known = ", ".join(each.name for each in self._variants)
            raise InvalidInput(
                f"engine {self._definition.name!r} has these variants already: {known}; to make "
                "one again, remove it first with --remove"
            )
        self._copy()
        first = self._definition.of_variant("").variant or FULL
        like = self._measure(first)
        self._quantise(wanted, like)
        self._write()
        for name in self._made:
            _check_alike(name, self._measure(name), like)
        self._write()

    def _copy(self) -> None:
        """Give the copy the files of the engine, as links where possible."""
        (self.folder / FOLDER).mkdir(parents=True)
        files = {self._original / each.file: each.file for each in self._variants}
        if self._definition.samples is not None:
            files[self._definition.samples] = SAMPLES_FILE
        for given in self._definition.warmup.values():
            if given.file is not None:
                files[given.file] = given.file.name
        for file, name in files.items():
            if file.is_file():
                target = self.folder / name
                target.parent.mkdir(parents=True, exist_ok=True)
                link_file(file, target)
        self._write()

    def _measure(self, name: str) -> CheckedVariant:
        """Check a variant, and set its accuracy if there are labels."""
        self._say(f"checking {name}")
        checked = self._check(self._staging, self._name, name)
        if checked.labelled:
            position = self._position(name)
            self._variants[position] = replace(
                self._variants[position],
                accuracy=round(checked.correct / checked.labelled, 6),
                origin=Origin.MEASURED,
            )
        return checked

    def _wanted(self) -> dict[str, VariantKeys]:
        """Return the models to quantise, by the name of the variant that is made of each."""
        found: dict[str, VariantKeys] = {}
        for each in self._variants:
            name = INT8 if each.name == FULL else f"{each.name}-{INT8}"
            source = self._original / each.file
            if _is_int8(each.name) or source.suffix != _SUFFIX or not source.is_file():
                continue
            if not self._has(name):
                found[name] = each
        return found

    def _quantise(self, wanted: Mapping[str, VariantKeys], like: CheckedVariant) -> None:
        samples = load_samples(self._definition, like.inputs).inputs
        refused: InvalidInput | None = None
        for name, each in wanted.items():
            self._say(f"quantising {each.name}")
            file = self.folder / FOLDER / f"{name}{_SUFFIX}"
            try:
                quantise(self.folder / each.file, file, samples)
            except InvalidInput as error:  # such as one that is quantised already
                refused = refused or error
            else:
                self._add(name, file)
        if refused is not None and not self._made:
            raise refused

    def _add(self, name: str, file: Path) -> None:
        """Add a variant, or replace the one of this name; its file is named by its digest."""
        found = digest(file)
        target = file.with_name(f"{name}-{found[:_DIGEST_CHARS]}{_SUFFIX}")
        file.replace(target)
        keys = VariantKeys(name=name, file=f"{FOLDER}/{target.name}", sha256=found)
        if self._has(name):
            self._variants[self._position(name)] = keys
        elif len(self._variants) < MAX_VARIANTS:
            self._variants.append(keys)
        else:
            raise InvalidInput(f"an engine has at most {MAX_VARIANTS} variants")
        self._made.append(name)

    def _has(self, name: str) -> bool:
        return any(each.name == name for each in self._variants)

    def _position(self, name: str) -> int:
        return [each.name for each in self._variants].index(name)

    def _write(self) -> None:
        _write(self._original, self.folder, self._variants)


def _find(models: Path, name: str) -> tuple[EngineDefinition, Path]:
    """Return a usable engine and its folder."""
    definition = ModelDirectory(models).get(name)
    if definition.fault or definition.folder is None:
        raise EngineUnusable(f"engine {name!r}: {definition.fault}")
    return definition, definition.folder


def _variants(definition: EngineDefinition, folder: Path) -> list[VariantKeys]:
    """Return the variants of an engine; if it has none, its only model as one."""
    if not definition.variants:
        return [
            VariantKeys(
                name=FULL,
                file=definition.file.relative_to(folder).as_posix(),
                sha256=definition.verified_digest(),
                accuracy=definition.accuracy,
            )
        ]
    own = folder / DEFINITION_FILE
    return list(read_definition(own if own.exists() else folder.parent / DEFINITION_FILE).variants)


def _write(original: Path, folder: Path, variants: Sequence[VariantKeys]) -> None:
    """Write an engine.toml with the variants, and otherwise the keys of the original folder."""
    keys = read_other_keys(original)
    write_definition(folder, keys | {"variants": [each.to_table() for each in variants]})


def _install(staged: Path, folder: Path) -> None:
    """Move new files, and then engine.toml, into an engine's folder; remove unused files."""
    variants = folder / FOLDER
    made = sorted((staged / FOLDER).glob(f"*{_SUFFIX}"))
    if made:
        variants.mkdir(exist_ok=True)
    for file in made:
        if not (variants / file.name).exists():
            file.replace(variants / file.name)
    (staged / DEFINITION_FILE).replace(folder / DEFINITION_FILE)
    used = {folder / each.file for each in read_definition(folder / DEFINITION_FILE).variants}
    for file in variants.glob(f"*{_SUFFIX}"):
        if file not in used:
            file.unlink()


def _is_int8(name: str) -> bool:
    return name == INT8 or name.endswith(f"-{INT8}")


def _check_alike(name: str, checked: CheckedVariant, like: CheckedVariant) -> None:
    """Check that a new variant can serve as its engine."""
    for what in ("inputs", "outputs"):
        if getattr(checked, what) != getattr(like, what):
            raise InvalidInput(f"variant {name!r} was made with other {what} than its engine's")
    if checked.unverified and not like.unverified:
        raise InvalidInput(f"variant {name!r} does not work: {checked.unverified}")
