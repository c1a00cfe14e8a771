"""ResNet-50 v1.5: as in MLPerf's file, a block's stride is in its 3 x 3 convolution.

The architecture is that of arXiv:1512.03385; strided convolutions are padded symmetrically.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

from profiler.zoo.builders.layer_builder import Convolution, Dense
from profiler.zoo.builders.mobilenet import CLASSES

if TYPE_CHECKING:
    from profiler.zoo.builders.layer_builder import LayerBuilder, Value

BLOCKS: Final = (3, 4, 6, 3)
"""Bottleneck blocks per stage; all stages but the first halve the image."""
EXPANSION: Final = 4
"""Ratio of a block's output channels to its inner channels."""
BRANCH_DEVIATION: Final = 0.5
"""Standard deviation of a block's residual: trained blocks change their input only partly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResNet50:
    """The classifier.

    Attributes:
        width: Channels of the stem.
        blocks: Number of blocks per stage.
    """

    family: ClassVar[str] = "resnet50"
    """The family of its preprocessing, see `synergai.models.preprocess`."""
    size: int = 224
    width: int = 64
    blocks: tuple[int, ...] = BLOCKS
    classes: int = CLASSES

    def build_layers(self, builder: LayerBuilder[Value], image: Value) -> Value:
        """Build logits [batch, classes] from an image with the mean colour subtracted."""
        stem = Convolution(
            name="conv1",
            inputs=3,
            outputs=self.width,
            kernel=7,
            stride=2,
            centred=True,
            activation="relu",
        )
        value = builder.max_pool(builder.convolution(image, stem))
        inputs = self.width
        for stage, count in enumerate(self.blocks):
            depth = self.width << stage
            for block in range(count):
                value = _bottleneck(
                    builder,
                    value,
                    f"stage{stage + 1}/block{block + 1}",
                    inputs=inputs,
                    depth=depth,
                    stride=2 if stage and not block else 1,
                )
                inputs = depth * EXPANSION
        features = builder.global_average(value)
        return builder.dense(features, Dense(name="dense", inputs=inputs, outputs=self.classes))


def _bottleneck(
    builder: LayerBuilder[Value], value: Value, name: str, *, inputs: int, depth: int, stride: int
) -> Value:
    """Build a bottleneck block: 1 x 1, 3 x 3 and 1 x 1 convolution, and a shortcut."""
    outputs = depth * EXPANSION
    shortcut = value
    if inputs != outputs or stride != 1:
        projection = Convolution(
            name=f"{name}/shortcut",
            inputs=inputs,
            outputs=outputs,
            kernel=1,
            stride=stride,
            activation="none",
        )
        shortcut = builder.convolution(value, projection)
    narrow = Convolution(
        name=f"{name}/conv1", inputs=inputs, outputs=depth, kernel=1, activation="relu"
    )
    around = Convolution(
        name=f"{name}/conv2",
        inputs=depth,
        outputs=depth,
        kernel=3,
        stride=stride,
        centred=True,
        activation="relu",
    )
    widen = Convolution(
        name=f"{name}/conv3",
        inputs=depth,
        outputs=outputs,
        kernel=1,
        activation="none",
        mean=0.0,
        deviation=BRANCH_DEVIATION,
    )
    for layer in (narrow, around, widen):
        value = builder.convolution(value, layer)
    return builder.add_relu(name, value, shortcut)
