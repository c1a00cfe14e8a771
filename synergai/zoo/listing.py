"""What there is to serve: the engines in a model directory, and what the catalogue has beyond them.

No model is opened for it: an engine that is present may still turn out to be one that cannot be
loaded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from synergai.errors import InvalidInput
from synergai.models.directory import ModelDirectory
from synergai.models.formats.model_files import size_bytes
from synergai.zoo.fetch.published import PUBLISHED
from synergai.zoo.recipes import RECIPES

if TYPE_CHECKING:
    from pathlib import Path

    from synergai.models.directory import EngineDefinition
    from synergai.zoo.recipes import Recipe

State: TypeAlias = Literal["present", "unusable", "not built"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineListing:
    """An engine that is there, or that could be.

    Attributes:
        state: present as far as can be seen without loading it, there but unusable, or known to
            the catalogue only.
        fault: why it is unusable; else empty.
        backend: what runs it.
        size_bytes: of the model; None if it is not there.
        accuracy: share of right answers of these weights, 0 to 1; None if unknown.
        published_accuracy: of the weights that MLPerf published under this name, whatever weights
            these are: top-1 on ImageNet; None if there are none, or for detection.
        published_map: the same for detection: mean average precision on COCO.
        source: where the weights are from, or would be.
        samples: the file of the sample set; None if it has none.
    """

    name: str
    title: str
    state: State
    fault: str = ""
    backend: str
    size_bytes: int | None = None
    accuracy: float | None = None
    published_accuracy: float | None = None
    published_map: float | None = None
    source: str
    version: str = ""
    file: str | None = None
    samples: str | None = None
    sha256: str = ""
    preprocess: str = ""
    postprocess: str = ""


def list_engines(models: Path) -> list[EngineListing]:
    """All engines in `models`, which may be missing, and all of the catalogue, by name."""
    found = ModelDirectory(models).engines() if models.is_dir() else []
    names = {definition.name for definition in found}
    rows = [list_present(definition) for definition in found]
    rows += [_list_unbuilt(recipe) for recipe in RECIPES.values() if recipe.name not in names]
    return sorted(rows, key=lambda row: row.name)


def list_present(definition: EngineDefinition) -> EngineListing:
    """An engine of the model directory."""
    accuracy, precision = _published_accuracy(definition.name)
    return EngineListing(
        name=definition.name,
        title=definition.title,
        state="unusable" if definition.fault else "present",
        fault=definition.fault,
        backend=definition.backend,
        size_bytes=_size(definition),
        accuracy=definition.accuracy,
        published_accuracy=accuracy,
        published_map=precision,
        source=definition.source,
        version=definition.version,
        file=str(definition.file),
        samples=str(definition.samples) if definition.samples else None,
        sha256=definition.sha256,
        preprocess=definition.preprocess,
        postprocess=definition.postprocess,
    )


def _list_unbuilt(recipe: Recipe) -> EngineListing:
    accuracy, precision = _published_accuracy(recipe.name)
    return EngineListing(
        name=recipe.name,
        title=recipe.title,
        state="not built",
        backend=recipe.backend,
        published_accuracy=accuracy,
        published_map=precision,
        source=recipe.source,
        preprocess=recipe.preprocess,
        postprocess=recipe.postprocess,
    )


def _published_accuracy(name: str) -> tuple[float | None, float | None]:
    """Top-1 and mean average precision of the published weights."""
    for each in PUBLISHED:
        if each.name == name:
            return each.accuracy, each.mean_average_precision
    return None, None


def _size(definition: EngineDefinition) -> int | None:
    if definition.fault:
        return None
    try:
        return size_bytes(definition.file)
    except (InvalidInput, OSError):  # changed since it was looked at
        return None
