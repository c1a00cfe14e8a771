"""What the catalogue can build: the thesis's twelve engines under its names, and two small ones.

The twelve have the architectures, but not the weights, of the files that ``synergai.zoo.fetch``
knows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from synergai.domain import EngineName
from synergai.errors import NotFound

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

ProgressCallback: TypeAlias = "Callable[[float], None]"
"""Told the share of a build that is done, 0 to 1."""


class Builder(Protocol):
    """Writes a model and a sample set into a folder."""

    def __call__(
        self, folder: Path, on_progress: ProgressCallback, **options: str | int
    ) -> float | None:
        """Build; returns the accuracy on the sample set, or None where it means nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """An engine that can be built.

    Attributes:
        title: what it is, in one line.
        backend: what will run it.
        builder: ``module:function``, imported only when it is used.
        options: what the builder takes beside a folder.
        source: where its weights are from.
        preprocess: as in an engine.toml, like `postprocess`; empty if it takes no images.
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
        """The builder itself."""
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
        builder="synergai.zoo.builders.image_engines:build_onnx",
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
        builder="synergai.zoo.builders.image_engines:build_tensorflow",
        options={"architecture": architecture, "model_format": model_format},
        source=SEEDED,
        preprocess=architecture,
        postprocess="boxes" if architecture == "ssd" else "classes",
    )


RECIPES: Final = {
    recipe.name: recipe
    for recipe in (
        _onnx("resnet50", 8),
        _onnx("resnet50", 11),
        _onnx("mobilenet", 8),
        _onnx("mobilenet", 11),
        _onnx("ssd", 8),
        _onnx("ssd", 11),
        Recipe(
            name=EngineName("onnx_digits"),
            title="handwritten digits, a small CNN, opset 11",
            backend="onnxruntime",
            builder="synergai.zoo.builders.small_engines:build_digits",
            source="trained here, on scikit-learn's digits",
        ),
        Recipe(
            name=EngineName("onnx_identity"),
            title="one element in, the same out, opset 11; measures the way there and back",
            backend="onnxruntime",
            builder="synergai.zoo.builders.small_engines:build_identity",
            source="by hand",
        ),
        # Last: where TensorFlow is not installed, all others are built when these are refused.
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
