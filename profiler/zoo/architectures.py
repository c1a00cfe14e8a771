"""The zoo's architectures, their input images, and their seeded weights."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Final, TypeAlias

import numpy as np

from profiler.zoo.calibration import seeded_weights
from profiler.zoo.layer_builder import Array, Convolution, Dense
from profiler.zoo.photographs import augmented_views, load_photographs, random_crops
from synergai.models.processing import FAMILIES, prepare

if TYPE_CHECKING:
    from collections.abc import Callable

    from profiler.zoo.layer_builder import LayerBuilder, Value, Weights
    from profiler.zoo.recipes import ProgressCallback
    from synergai.models.images import Pixels


IMAGENET_CLASSES: Final = 1001
"""ImageNet's 1000 classes and TensorFlow's background class before them."""
STEM: Final = 32
MOBILENET_BLOCKS: Final = (
    *((1, 64), (2, 128), (1, 128), (2, 256), (1, 256), (2, 512)),
    *(((1, 512),) * 5),
    *((2, 1024), (1, 1024)),
)
"""Stride and output channels of the 13 depthwise separable blocks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MobileNet:
    """MobileNet v1 (arXiv:1704.04861), as in TensorFlow-Slim and MLPerf.

    Attributes:
        width: Multiplier of all channel counts.
    """

    family: ClassVar[str] = "mobilenet"
    """The family of its preprocessing, see `synergai.models.processing`."""
    size: int = 224
    width: float = 1.0
    classes: int = IMAGENET_CLASSES

    def build_layers(self, builder: LayerBuilder[Value], image: Value) -> Value:
        """Build logits [batch, classes] from an image scaled to -1 to 1."""
        features = builder.global_average(_mobilenet_blocks(builder, image, self.width)[-1])
        inputs = channels(MOBILENET_BLOCKS[-1][1], self.width)
        return builder.dense(features, Dense(name="Logits", inputs=inputs, outputs=self.classes))


def _mobilenet_blocks(builder: LayerBuilder[Value], image: Value, width: float) -> list[Value]:
    """Build the 13 blocks; return the value of each."""
    inputs = channels(STEM, width)
    value = builder.convolution(
        image, Convolution(name="Conv2d_0", inputs=3, outputs=inputs, kernel=3, stride=2)
    )
    values: list[Value] = []
    for index, (stride, full_width) in enumerate(MOBILENET_BLOCKS, start=1):
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
    return max(round(full_width * width), 1)


RESNET_BLOCKS: Final = (3, 4, 6, 3)
"""Bottleneck blocks per stage; all stages but the first halve the image."""
EXPANSION: Final = 4
"""Ratio of a block's output channels to its inner channels."""
BRANCH_DEVIATION: Final = 0.5
"""Standard deviation of a block's residual: trained blocks change their input only partly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResNet50:
    """ResNet-50 v1.5: as in MLPerf's file, a block's stride is in its 3 x 3 convolution.

    The architecture is that of arXiv:1512.03385; strided convolutions are padded symmetrically.

    Attributes:
        width: Channels of the stem.
        blocks: Number of blocks per stage.
    """

    family: ClassVar[str] = "resnet50"
    """The family of its preprocessing, see `synergai.models.processing`."""
    size: int = 224
    width: int = 64
    blocks: tuple[int, ...] = RESNET_BLOCKS
    classes: int = IMAGENET_CLASSES

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


COCO_CLASSES: Final = 91
"""COCO's ids go up to 90; 0 is the background."""
BODY_MAPS: Final = (11, 13)
"""The MobileNet blocks whose outputs are the first two feature maps."""
EXTRA_MAPS: Final = ((256, 512), (128, 256), (128, 256), (64, 128))
"""Channels of the 1 x 1 and the 3 x 3 convolution, stride 2, of each further map."""
MAPS: Final = len(BODY_MAPS) + len(EXTRA_MAPS)

MIN_SCALE: Final = 0.2
MAX_SCALE: Final = 0.95
FIRST_SCALE: Final = 0.1
"""Scale of the first map's square anchor."""
RATIOS: Final = (1.0, 2.0, 0.5, 3.0, 0.3333)
FIRST_RATIOS: Final = (1.0, 2.0, 0.5)
"""Aspect ratios of the first map, which has the most cells."""

CENTRE_CODE: Final = 10.0
"""A box's centre is encoded in tenths of the anchor's height and width."""
SIZE_CODE: Final = 5.0
"""Its height and width are encoded as five times the logarithm of the ratio to the anchor's."""

PIXEL_SCALE: Final = 2.0 / 255.0
"""The network's input is the pixel value times this, minus 1: from -1 to 1."""
IOU_THRESHOLD: Final = 0.6
SCORE_THRESHOLD: Final = 1e-8
DETECTIONS: Final = 100
"""Limit of detections per class, and of all classes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SsdMobileNet:
    """SSD (arXiv:1512.02325) on MobileNet v1, 300 x 300, as in ``ssd_mobilenet_v1_coco``.

    The body yields six feature maps. For each, one 1 x 1 convolution encodes boxes relative to
    anchors, another the class scores. They are decoded in `profiler.zoo.onnx_models` and
    `profiler.zoo.tensorflow_writer`, with the constants above.

    Attributes:
        width: Multiplier of all channel counts.
    """

    family: ClassVar[str] = "ssd"
    """The family of its preprocessing, see `synergai.models.processing`."""
    size: int = 300
    width: float = 1.0
    classes: int = COCO_CLASSES

    def build_layers(self, builder: LayerBuilder[Value], image: Value) -> tuple[Value, Value]:
        """Build encoded boxes [batch, anchors, 4] and logits [batch, anchors, classes].

        The image is scaled to -1 to 1.
        """
        boxes: list[Value] = []
        logits: list[Value] = []
        for index, (value, inputs) in enumerate(self._maps(builder, image)):
            anchors = len(FIRST_RATIOS) if index == 0 else len(RATIOS) + 1
            name = f"BoxPredictor_{index}"
            box = Convolution(
                name=f"{name}/BoxEncodingPredictor",
                inputs=inputs,
                outputs=anchors * 4,
                kernel=1,
                activation="none",
                mean=0.0,
            )
            score = Convolution(
                name=f"{name}/ClassPredictor",
                inputs=inputs,
                outputs=anchors * self.classes,
                kernel=1,
                activation="none",
                # Like a trained detector, find nothing in most places.
                mean=-5.0,
                deviation=1.5,
            )
            boxes.append(builder.reshape_cells(f"{name}/boxes", builder.convolution(value, box), 4))
            logits.append(
                builder.reshape_cells(
                    f"{name}/scores", builder.convolution(value, score), self.classes
                )
            )
        return builder.concat("box_encodings", boxes), builder.concat("class_logits", logits)

    def _maps(self, builder: LayerBuilder[Value], image: Value) -> list[tuple[Value, int]]:
        """Build the feature maps; return them with their channels."""
        body = _mobilenet_blocks(builder, image, self.width)
        maps = [
            (body[each - 1], channels(MOBILENET_BLOCKS[each - 1][1], self.width))
            for each in BODY_MAPS
        ]
        value, inputs = maps[-1]
        for index, (narrow, wide) in enumerate(EXTRA_MAPS, start=2):
            between, outputs = channels(narrow, self.width), channels(wide, self.width)
            first = Convolution(name=f"Extra_{index}_1x1", inputs=inputs, outputs=between, kernel=1)
            second = Convolution(
                name=f"Extra_{index}_3x3", inputs=between, outputs=outputs, kernel=3, stride=2
            )
            value = builder.convolution(builder.convolution(value, first), second)
            inputs = outputs
            maps.append((value, inputs))
        return maps

    def grids(self) -> list[int]:
        """Return the side of each feature map: 19, 10, 5, 3, 2 and 1 at 300 pixels."""
        sides = [-(-self.size // 16)]
        while len(sides) < MAPS:
            sides.append(-(-sides[-1] // 2))
        return sides

    def anchors(self) -> Array:
        """Return float32 [anchors, 4]: centre y and x, height and width, as shares of the image."""
        scales = [*np.linspace(MIN_SCALE, MAX_SCALE, MAPS), 1.0]
        found: list[Array] = []
        for index, side in enumerate(self.grids()):
            if index == 0:
                shapes = [(FIRST_SCALE, 1.0), *((scales[0], ratio) for ratio in FIRST_RATIOS[1:])]
            else:
                shapes = [(scales[index], ratio) for ratio in RATIOS]
                shapes.append(((scales[index] * scales[index + 1]) ** 0.5, 1.0))
            centres = (np.arange(side) + 0.5) / side
            y, x = np.meshgrid(centres, centres, indexing="ij")
            cells = np.empty((side, side, len(shapes), 4), np.float32)
            cells[..., 0], cells[..., 1] = y[:, :, None], x[:, :, None]
            cells[..., 2] = [scale / ratio**0.5 for scale, ratio in shapes]
            cells[..., 3] = [scale * ratio**0.5 for scale, ratio in shapes]
            found.append(cells.reshape(-1, 4))
        return np.concatenate(found)


def from_pixels(pixels: Array) -> Array:
    """Scale pixels from 0 to 255 to the network's input, -1 to 1."""
    return np.asarray(pixels * np.float32(PIXEL_SCALE) - np.float32(1))


Classifier: TypeAlias = MobileNet | ResNet50
Architecture: TypeAlias = Classifier | SsdMobileNet

ARCHITECTURES: Final[dict[str, Callable[..., Architecture]]] = {
    each.family: each for each in (MobileNet, ResNet50, SsdMobileNet)
}
"""By the name of their family, see `synergai.models.processing`."""
RANDOM_CROPS: Final = 10
"""Per photograph, in addition to its views."""


def calibrated_weights(architecture: Architecture, on_progress: ProgressCallback) -> Weights:
    """Return seeded weights, calibrated on views and random crops of the photographs."""
    seen = [
        (*augmented_views(photograph), *random_crops(photograph, RANDOM_CROPS))
        for photograph in load_photographs()
    ]
    images = [network_input(architecture, pixels) for parts in seen for pixels in parts]
    labels = [index for index, parts in enumerate(seen) for _ in parts]
    return seeded_weights(architecture, np.concatenate(images), np.array(labels), on_progress)


def network_input(architecture: Architecture, pixels: Pixels) -> Array:
    """Return the first layer's input for an image: float32 [1, 3, size, size]."""
    family = replace(FAMILIES[architecture.family], size=architecture.size)
    prepared = prepare(family, pixels).transpose(2, 0, 1)[np.newaxis].astype(np.float32)
    return from_pixels(prepared) if isinstance(architecture, SsdMobileNet) else prepared
