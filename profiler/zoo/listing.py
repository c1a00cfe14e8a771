"""Listing of the engines in a model directory and of the zoo's other engines.

No model is loaded for it: an engine that is present may still fail to load.
"""

from __future__ import annotations

import hashlib
import tomllib
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import msgspec

from profiler.zoo.recipes import RECIPES
from synergai.domain import EngineName  # noqa: TC001 - msgspec reads it
from synergai.errors import EngineUnusable, InvalidInput, NotFound
from synergai.models.directory import ModelDirectory
from synergai.models.formats.inspect import check
from synergai.models.formats.model_files import size_bytes

if TYPE_CHECKING:
    from pathlib import Path

    from profiler.installation import Value
    from profiler.zoo.recipes import Recipe
    from synergai.models.directory import EngineDefinition


class Published(msgspec.Struct, frozen=True, kw_only=True):
    """A published model file.

    Attributes:
        url: URL of the file, or of the archive that contains it.
        md5: MD5 of the file, hexadecimal; empty if none was published.
        accuracy: Published top-1 accuracy on ImageNet, 0 to 1; None for detection.
        inputs: Input tensors of a frozen graph; empty for formats that declare them.
        outputs: Output tensors of a frozen graph; empty for formats that declare them.
    """

    name: EngineName
    url: str
    md5: str = ""
    title: str
    accuracy: float | None = None
    preprocess: str
    postprocess: str
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()

    @property
    def keys(self) -> dict[str, Value]:
        """What the definition of the engine says."""
        return {
            "title": self.title,
            "accuracy": self.accuracy,
            "source": self.url,
            "preprocess": self.preprocess,
            "postprocess": self.postprocess,
        }

    def check(self, file: Path) -> None:
        """Check that a file is the published one, as far as its digest was published.

        Raises:
            InvalidInput: It is another file.
        """
        if not self.md5 or not file.is_file():
            return
        with file.open("rb") as content:
            # MD5 protects against corruption, not against an attacker.
            found = hashlib.file_digest(content, _md5).hexdigest()
        if found != self.md5:
            raise InvalidInput(
                f"{file} has the MD5 {found}, but {self.md5} was published for {self.name!r}: "
                f"download it again from {self.url}"
            )


def _md5() -> Any:
    return hashlib.md5(usedforsecurity=False)


PUBLISHED: Final = tuple(
    msgspec.convert(
        tomllib.loads(files("profiler.zoo").joinpath("published.toml").read_text("utf-8"))["files"],
        list[Published],
    )
)


def find_published(name: str) -> Published:
    for file in PUBLISHED:
        if file.name == name:
            return file
    names = ", ".join(file.name for file in PUBLISHED)
    raise NotFound(f"there is no recipe {name!r}, only: {names}")


State: TypeAlias = Literal["present", "unusable", "not built"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineListing:
    """An engine that is present or can be built.

    Attributes:
        state: Present as far as visible without loading it, present but unusable, or not built.
        fault: Why it is unusable; otherwise empty.
        size_bytes: Size of the model; None if not present.
        accuracy: Share of correct answers of these weights, 0 to 1; None if unknown.
        samples: The sample set's file; None if there is none.
        variants: Names of its variants whose file is there; the size is that of all of them.
        lacking: Names of those whose file is missing.
        without_accuracy: Names of those whose accuracy the engine's folder does not say.
    """

    name: str
    title: str
    state: State
    fault: str = ""
    backend: str
    size_bytes: int | None = None
    accuracy: float | None = None
    source: str
    version: str = ""
    file: str | None = None
    samples: str | None = None
    variants: tuple[str, ...] = ()
    lacking: tuple[str, ...] = ()
    without_accuracy: tuple[str, ...] = ()
    sha256: str = ""
    preprocess: str = ""
    postprocess: str = ""


def list_engines(models: Path) -> list[EngineListing]:
    """Return all engines in `models`, which need not exist, and all of the zoo, sorted by name."""
    found = [_checked(each) for each in ModelDirectory(models).engines()] if models.is_dir() else []
    names = {definition.name for definition in found}
    rows = list(map(_list_present, found))
    rows += [_list_unbuilt(recipe) for recipe in RECIPES.values() if recipe.name not in names]
    return sorted(rows, key=lambda row: row.name)


def _list_present(definition: EngineDefinition) -> EngineListing:
    return EngineListing(
        name=definition.name,
        title=definition.title,
        state="unusable" if definition.fault else "present",
        fault=definition.fault,
        backend=definition.backend,
        size_bytes=_size(definition),
        accuracy=definition.accuracy,
        source=definition.source,
        version=definition.version,
        file=str(definition.file),
        samples=str(definition.samples) if definition.samples else None,
        variants=tuple(variant.name for variant in definition.variants),
        lacking=definition.lacking,
        without_accuracy=tuple(each.name for each in definition.variants if each.accuracy is None),
        sha256=definition.sha256,
        preprocess=definition.preprocess,
        postprocess=definition.postprocess,
    )


def _checked(definition: EngineDefinition) -> EngineDefinition:
    """Return a definition with a fault if all its files are damaged or others than it asks for."""
    if definition.fault:
        return definition
    models = [definition.of_variant(each.name) for each in definition.variants] or [definition]
    fault = ""
    for model in models:
        try:
            if model.sha256:
                model.verified_digest()
            else:
                check(model.file)
        except (EngineUnusable, InvalidInput) as error:
            fault = fault or str(error).removeprefix(f"engine {definition.name!r}: ")
        else:
            return definition
    return replace(definition, fault=fault)


def _list_unbuilt(recipe: Recipe) -> EngineListing:
    return EngineListing(
        name=recipe.name,
        title=recipe.title,
        state="not built",
        backend=recipe.backend,
        source=recipe.source,
        preprocess=recipe.preprocess,
        postprocess=recipe.postprocess,
    )


def _size(definition: EngineDefinition) -> int | None:
    if definition.fault:
        return None
    try:
        models = [variant.file for variant in definition.variants] or [definition.file]
        return sum(map(size_bytes, models))
    except (InvalidInput, OSError):  # changed after it was listed
        return None
