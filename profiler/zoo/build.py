"""Building of zoo engines into a model directory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from profiler.zoo.recipes import RECIPES, find_recipe
from synergai.errors import EngineUnusable
from synergai.models.directory import ModelDirectory
from synergai.models.formats.model_files import DEFINITION_FILE, digest, find_models
from synergai.models.installation import stage_engine, write_definition

if TYPE_CHECKING:
    from pathlib import Path

    from profiler.zoo.recipes import ProgressCallback
    from synergai.models.directory import EngineDefinition
    from synergai.models.installation import Value

__all__ = ["RECIPES", "build", "find_recipe", "is_built"]


def is_built(name: str, models: Path) -> bool:
    """Return whether the engine is in the model directory and intact."""
    if not (models / name / DEFINITION_FILE).exists():
        return False
    try:
        definition = ModelDirectory(models).get(name)
        definition.verified_digest()
        for variant in definition.variants:
            definition.of_variant(variant.name).verified_digest()
    except EngineUnusable:
        return False
    return not definition.lacking


def build(
    name: str, models: Path, on_progress: ProgressCallback = lambda _: None
) -> EngineDefinition:
    """Build a zoo engine into the model directory, replacing an older one.

    A recipe yields the same bytes each time on the same kind of machine.
    """
    recipe = find_recipe(name)
    builder = recipe.load_builder()
    with stage_engine(models, name, replace=True) as folder:
        accuracy = builder(folder, on_progress, **recipe.options)
        (file,) = find_models(folder)
        keys: dict[str, Value] = {
            "file": file.name,
            "sha256": digest(file),
            "accuracy": accuracy,
            "title": recipe.title,
            "source": recipe.source,
            "preprocess": recipe.preprocess,
            "postprocess": recipe.postprocess,
        }
        write_definition(folder, keys)
    on_progress(1.0)
    return ModelDirectory(models).get(name)
