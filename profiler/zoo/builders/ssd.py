"""SSD (arXiv:1512.02325) on MobileNet v1, 300 x 300, as in ``ssd_mobilenet_v1_coco``.

The body yields six feature maps. For each, one 1 x 1 convolution encodes boxes relative to anchors,
another the class scores. They are decoded in `profiler.zoo.builders.onnx_models` and
`profiler.zoo.builders.tensorflow_writer`, with the constants below.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

import numpy as np

from profiler.zoo.builders.layer_builder import Array, Convolution
from profiler.zoo.builders.mobilenet import BLOCKS, blocks, channels

if TYPE_CHECKING:
    from profiler.zoo.builders.layer_builder import LayerBuilder, Value

CLASSES: Final = 91
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
    """The detector.

    Attributes:
        width: Multiplier of all channel counts.
    """

    family: ClassVar[str] = "ssd"
    """The family of its preprocessing, see `synergai.models.preprocess`."""
    size: int = 300
    width: float = 1.0
    classes: int = CLASSES

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
        body = blocks(builder, image, self.width)
        maps = [(body[each - 1], channels(BLOCKS[each - 1][1], self.width)) for each in BODY_MAPS]
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
