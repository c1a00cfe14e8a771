"""What the architectures are drawn on.

An architecture is written once, as a function that draws its layers on a canvas. The canvases make
of it what they are for: `layer_collector` lists the layers, `calibration` finds weights,
`onnx_layer_builder` and `tensorflow_layer_builder` write models. So all back ends compute the same
network, and a small one in a test is drawn by the code that draws the large ones.

Weights are a plain dict of float32 arrays that knows no runtime: ``NAME/weights`` is
[out, in, height, width] for a convolution (a depthwise one has in = 1) and [out, in] for a dense
layer, ``NAME/bias`` is [out].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, Protocol, TypeAlias, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

Value = TypeVar("Value")
"""What flows between layers on a canvas."""
Array: TypeAlias = "NDArray[np.float32]"
Weights: TypeAlias = "dict[str, Array]"
Activation: TypeAlias = Literal["relu", "relu6", "none"]

POOL: Final = 3
"""Side of the square of which `LayerBuilder.max_pool` takes the maximum, with stride 2."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Convolution:
    """A convolution, batch normalisation folded into its weights and bias, and an activation.

    Attributes:
        inputs: channels.
        outputs: channels; as many as inputs if it is depthwise.
        kernel: side of the square.
        depthwise: one filter per channel.
        centred: padded alike on all sides; otherwise as TensorFlow's SAME does it.
        mean: of what it gives on photographs before the activation, to be calibrated to. Where most
            of it is positive, dozens of layers do not blow a small difference up.
        deviation: the standard deviation of the same.
    """

    name: str
    inputs: int
    outputs: int
    kernel: int
    stride: int = 1
    depthwise: bool = False
    centred: bool = False
    activation: Activation = "relu6"
    mean: float = 1.5
    deviation: float = 1.0

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Of the weights: [out, in, height, width]."""
        return (self.outputs, 1 if self.depthwise else self.inputs, self.kernel, self.kernel)

    def padding(self, size: int) -> tuple[int, int]:
        """Pixels to add before and after an image's side of `size`."""
        if self.centred:
            return (self.kernel - 1) // 2, (self.kernel - 1) // 2
        return same_padding(size, self.kernel, self.stride)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dense:
    """The readout of a classifier: logits of all classes from pooled features."""

    name: str
    inputs: int
    outputs: int

    @property
    def shape(self) -> tuple[int, int]:
        """Of the weights: [out, in]."""
        return (self.outputs, self.inputs)


Layer: TypeAlias = Convolution | Dense


class LayerBuilder(Protocol[Value]):
    """Draws layers; images are square."""

    def convolution(self, value: Value, layer: Convolution) -> Value:
        """Convolve, add the bias, activate."""

    def max_pool(self, value: Value) -> Value:
        """Maxima of squares of `POOL`, stride 2, padded as TensorFlow's SAME."""

    def add_relu(self, name: str, value: Value, shortcut: Value) -> Value:
        """The sum of two, through ReLU."""

    def global_average(self, value: Value) -> Value:
        """The mean over the image: [batch, channels]."""

    def dense(self, value: Value, layer: Dense) -> Value:
        """Logits [batch, classes]."""

    def reshape_cells(self, name: str, value: Value, depth: int) -> Value:
        """An image's channels cut into parts of `depth`: [batch, parts, depth], pixel by pixel."""

    def concat(self, name: str, values: Sequence[Value]) -> Value:
        """Cells one after another along the second axis."""


class Buildable(Protocol):
    """An architecture, as far as it can be drawn."""

    def build_layers(self, builder: LayerBuilder[Value], image: Value) -> object:
        """Draw all layers, from the image on; what the last of them give."""


def same_padding(size: int, kernel: int, stride: int) -> tuple[int, int]:
    """TensorFlow's SAME padding before and after: the odd pixel goes after."""
    total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
    return total // 2, total - total // 2
