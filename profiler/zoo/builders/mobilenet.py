"""MobileNet v1 (arXiv:1704.04861), as in TensorFlow-Slim and MLPerf."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

from profiler.zoo.builders.layer_builder import Convolution, Dense

if TYPE_CHECKING:
    from profiler.zoo.builders.layer_builder import LayerBuilder, Value

CLASSES: Final = 1001
"""ImageNet's 1000 classes and TensorFlow's background class before them."""
STEM: Final = 32
BLOCKS: Final = (
    *((1, 64), (2, 128), (1, 128), (2, 256), (1, 256), (2, 512)),
    *(((1, 512),) * 5),
    *((2, 1024), (1, 1024)),
)
"""Stride and output channels of the 13 depthwise separable blocks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MobileNet:
    """The classifier.

    Attributes:
        width: Multiplier of all channel counts.
    """

    family: ClassVar[str] = "mobilenet"
    """The family of its preprocessing, see `synergai.models.preprocess`."""
    size: int = 224
    width: float = 1.0
    classes: int = CLASSES

    def build_layers(self, builder: LayerBuilder[Value], image: Value) -> Value:
        """Build logits [batch, classes] from an image scaled to -1 to 1."""
        features = builder.global_average(blocks(builder, image, self.width)[-1])
        inputs = channels(BLOCKS[-1][1], self.width)
        return builder.dense(features, Dense(name="Logits", inputs=inputs, outputs=self.classes))


def blocks(builder: LayerBuilder[Value], image: Value, width: float) -> list[Value]:
    """Build the 13 blocks; return the value of each."""
    inputs = channels(STEM, width)
    value = builder.convolution(
        image, Convolution(name="Conv2d_0", inputs=3, outputs=inputs, kernel=3, stride=2)
    )
    values: list[Value] = []
    for index, (stride, full_width) in enumerate(BLOCKS, start=1):
        outputs = channels(full_width, width)
        depthwise = Convolution(
            name=f"Conv2d_{index}_depthwise",
            inputs=inputs,
            outputs=inputs,
            kernel=3,
            stride=stride,
            depthwise=True,
        )
        pointwise = Convolution(
            name=f"Conv2d_{index}_pointwise", inputs=inputs, outputs=outputs, kernel=1
        )
        value = builder.convolution(builder.convolution(value, depthwise), pointwise)
        values.append(value)
        inputs = outputs
    return values


def channels(full_width: int, width: float) -> int:
    """Return the number of channels at a width multiplier."""
    return max(round(full_width * width), 1)
