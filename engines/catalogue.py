"""The catalogue: engines that can be built here without downloading anything."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from engines.installation import installing, write_definition
from engines.model_directory import ModelDirectory
from engines.model_files import DEFINITION_FILE
from synergai.domain import EngineName
from synergai.errors import EngineUnusable, NotFound

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from engines.model_directory import EngineDefinition

Report: TypeAlias = "Callable[[float], None]"
"""Told the share of a build that is done, 0 to 1."""


class Builder(Protocol):
    """Writes a model file and a sample set into a folder."""

    def __call__(self, folder: Path, report: Report) -> float | None:
        """Build; returns the accuracy on the sample set, or None where it means nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """An engine that can be built.

    Attributes:
        title: what it is, in one line.
        builder: ``module:function``, imported only when it is used.
        source: where its weights are from.
    """

    name: EngineName
    title: str
    builder: str
    source: str

    def load(self) -> Builder:
        """The builder itself."""
        module, _, function = self.builder.partition(":")
        builder: Builder = getattr(import_module(module), function)
        return builder


RECIPES: Final = {
    recipe.name: recipe
    for recipe in (
        Recipe(
            name=EngineName("onnx_mobilenet_op11"),
            title="MobileNet v1 1.0 224, ONNX opset 11",
            builder="engines.builders.onnx_engines:build_mobilenet",
            source="seeded weights, calibrated on photographs; not trained",
        ),
        Recipe(
            name=EngineName("onnx_digits"),
            title="handwritten digits, a small CNN, ONNX opset 11",
            builder="engines.builders.onnx_engines:build_digits",
            source="trained here on scikit-learn's digits",
        ),
        Recipe(
            name=EngineName("onnx_identity"),
            title="one element in, the same out; measures the way there and back",
            builder="engines.builders.onnx_engines:build_identity",
            source="written by hand",
        ),
    )
}


def recipe(name: str) -> Recipe:
    """The recipe for `name`.

    Raises:
        NotFound: there is none.
    """
    try:
        return RECIPES[EngineName(name)]
    except KeyError:
        raise NotFound(
            f"the catalogue has no engine {name!r}; it has: {', '.join(RECIPES)}"
        ) from None


def is_built(name: str, models: Path) -> bool:
    """Whether the engine is in the model directory, undamaged."""
    if not (models / name / DEFINITION_FILE).exists():
        return False
    try:
        ModelDirectory(models).get(name).verified_digest()
    except EngineUnusable:
        return False
    return True


def build(name: str, models: Path, report: Report = lambda _: None) -> EngineDefinition:
    """Build an engine of the catalogue into the model directory, in place of an older one.

    The same recipe gives the same bytes each time on one kind of machine.

    Raises:
        NotFound: the catalogue does not have it.
        InvalidInput: nothing can be written there.
    """
    from engines.inspect import describe

    wanted = recipe(name)
    builder = wanted.load()
    with installing(models, name, replace=True) as folder:
        accuracy = builder(folder, report)
        (file,) = folder.glob("*.onnx")
        write_definition(
            folder,
            {
                "file": file.name,
                "sha256": describe(file).digest,
                "title": wanted.title,
                "accuracy": accuracy,
                "source": wanted.source,
            },
        )
    report(1.0)
    return ModelDirectory(models).get(name)
