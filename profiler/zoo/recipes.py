"""The zoo: recipes of the thesis's twelve engines and two small ones, and their building.

The twelve have the architectures of the files in `profiler.zoo.listing`, but not their weights.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from profiler.installation import stage_engine, write_definition
from synergai.domain import EngineName
from synergai.errors import EngineUnusable, NotFound
from synergai.models.directory import ModelDirectory
from synergai.models.formats.model_files import DEFINITION_FILE, digest, find_models

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from profiler.installation import Value
    from synergai.models.directory import EngineDefinition


ProgressCallback: TypeAlias = "Callable[[float], None]"
"""Called with the completed fraction of a build, 0 to 1."""


class Builder(Protocol):
    """Writes a model and a sample set into a folder."""

    def __call__(
        self, folder: Path, on_progress: ProgressCallback, **options: str | int
    ) -> float | None:
        """Build; return the accuracy on the sample set, or None if it is meaningless."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """An engine that can be built.

    Attributes:
        builder: ``module:function``, imported on demand.
        options: Keyword arguments of the builder.
        preprocess: As in an engine.toml, like `postprocess`; empty if it accepts tensors only.
    """

    name: EngineName
    title: str
    backend: str
    builder: str
    options: Mapping[str, str | int] = field(default_factory=dict)
    source: str
    preprocess: str = ""
    postprocess: str = ""

    def load_builder(self) -> Builder:
        module, _, function = self.builder.partition(":")
        builder: Builder = getattr(import_module(module), function)
        return builder


SEEDED: Final = "seeded weights, calibrated on two photographs; not trained"
TITLES: Final = {
    "resnet50": "ResNet-50 v1.5, 224 x 224",
    "mobilenet": "MobileNet v1 1.0, 224 x 224",
    "ssd": "SSD on MobileNet v1, 300 x 300",
}


def _onnx(architecture: str, opset: int) -> Recipe:
    return Recipe(
        name=EngineName(f"onnx_{architecture}_op{opset}"),
        title=f"{TITLES[architecture]}, opset {opset}",
        backend="onnxruntime",
        builder="profiler.zoo.image_engines:build_onnx",
        options={"architecture": architecture, "opset": opset},
        source=SEEDED,
        preprocess=architecture,
        postprocess="boxes" if architecture == "ssd" else "classes",
    )


def _tensorflow(name: str, architecture: str, model_format: str, remark: str = "") -> Recipe:
    return Recipe(
        name=EngineName(name),
        title=TITLES[architecture] + remark,
        backend="tflite" if model_format.startswith("tflite") else "tensorflow",
        builder="profiler.zoo.image_engines:build_tensorflow",
        options={"architecture": architecture, "model_format": model_format},
        source=SEEDED,
        preprocess=architecture,
        postprocess="boxes" if architecture == "ssd" else "classes",
    )


RECIPES: Final = {
    recipe.name: recipe
    for recipe in (
        *(_onnx(architecture, opset) for architecture in TITLES for opset in (8, 11)),
        Recipe(
            name=EngineName("onnx_digits"),
            title="handwritten digits, a small CNN, opset 11",
            backend="onnxruntime",
            builder="profiler.zoo.small_engines:build_digits",
            source="trained on scikit-learn's digits",
        ),
        Recipe(
            name=EngineName("onnx_identity"),
            title="identity of one element, opset 11; measures the round trip",
            backend="onnxruntime",
            builder="profiler.zoo.small_engines:build_identity",
            source="hand-written",
        ),
        # Last, so that all others are built even if TensorFlow is not installed.
        _tensorflow("tf_resnet50", "resnet50", "saved_model"),
        _tensorflow("tf_mobilenet", "mobilenet", "saved_model"),
        _tensorflow(
            "tf_mobilenet_q", "mobilenet", "fake_quantised_saved_model", ", rounded to 8 bits"
        ),
        _tensorflow("tf_ssd", "ssd", "saved_model"),
        _tensorflow("tfl_mobilenet", "mobilenet", "tflite"),
        _tensorflow("tfl_mobilenet_q", "mobilenet", "tflite_int8", ", 8-bit integers"),
    )
}


def find_recipe(name: str) -> Recipe:
    try:
        return RECIPES[EngineName(name)]
    except KeyError:
        raise NotFound(f"the zoo has no engine {name!r}; it has: {', '.join(RECIPES)}") from None


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
