"""The interface between network architectures and the back ends that build their layers.

An architecture is written once, as a function that calls a `LayerBuilder` for each layer. Its
implementations list the layers (`LayerCollector`), determine weights (`calibration`), or write
models (`onnx_models`, `tensorflow_writer`). So all back ends build the same network,
and tests of small networks cover the code of the large ones.

Weights are a dict of float32 arrays, independent of any runtime: ``NAME/weights`` is
[out, in, height, width] for a convolution (in = 1 if it is depthwise) and [out, in] for a dense
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
"""The value type that flows between the layers."""
Array: TypeAlias = "NDArray[np.float32]"
Weights: TypeAlias = "dict[str, Array]"
Activation: TypeAlias = Literal["relu", "relu6", "none"]

POOL: Final = 3
"""Window size of `LayerBuilder.max_pool`, whose stride is 2."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Convolution:
    """A convolution with folded batch normalisation, and an activation.

    Attributes:
        outputs: Output channels; equal to `inputs` if depthwise.
        depthwise: Whether there is one filter per channel.
        centred: Whether padding is symmetric; otherwise it is TensorFlow's SAME.
        mean: Target mean of the pre-activations in calibration. A positive mean keeps dozens of
            layers from amplifying small differences.
        deviation: Target standard deviation of the pre-activations.
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
        """Shape of the weights: [out, in, height, width]."""
        return (self.outputs, 1 if self.depthwise else self.inputs, self.kernel, self.kernel)

    def padding(self, size: int) -> tuple[int, int]:
        """Return the padding before and after a side of `size` pixels."""
        if self.centred:
            return (self.kernel - 1) // 2, (self.kernel - 1) // 2
        return same_padding(size, self.kernel, self.stride)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dense:
    """A classifier's readout: logits of all classes from pooled features."""

    name: str
    inputs: int
    outputs: int

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the weights: [out, in]."""
        return (self.outputs, self.inputs)


Layer: TypeAlias = Convolution | Dense


class LayerBuilder(Protocol[Value]):
    """Builds layers on square images."""

    def convolution(self, value: Value, layer: Convolution) -> Value:
        """Convolve, add the bias, activate."""

    def max_pool(self, value: Value) -> Value:
        """Max-pool windows of `POOL` with stride 2 and TensorFlow's SAME padding."""

    def add_relu(self, name: str, value: Value, shortcut: Value) -> Value:
        """Add two values and apply ReLU."""

    def global_average(self, value: Value) -> Value:
        """Average over the image: [batch, channels]."""

    def dense(self, value: Value, layer: Dense) -> Value:
        """Compute logits [batch, classes]."""

    def reshape_cells(self, name: str, value: Value, depth: int) -> Value:
        """Split each pixel's channels into cells of `depth`: [batch, cells, depth]."""

    def concat(self, name: str, values: Sequence[Value]) -> Value:
        """Concatenate along the second axis."""


class Buildable(Protocol):
    """An architecture whose layers can be built."""

    def build_layers(self, builder: LayerBuilder[Value], image: Value) -> object:
        """Build all layers on `image`; return the value of the last ones."""


def same_padding(size: int, kernel: int, stride: int) -> tuple[int, int]:
    """Return TensorFlow's SAME padding before and after; the odd pixel goes after."""
    total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
    return total // 2, total - total // 2


class LayerCollector:
    """Collects the layers in order and computes nothing."""

    def __init__(self) -> None:
        self.layers: list[Layer] = []

    def convolution(self, value: None, layer: Convolution) -> None:  # noqa: ARG002 - as in LayerBuilder
        self.layers.append(layer)

    def dense(self, value: None, layer: Dense) -> None:  # noqa: ARG002 - as in LayerBuilder
        self.layers.append(layer)

    def max_pool(self, value: None) -> None:
        """Has no weights, so it is not collected."""

    def add_relu(self, name: str, value: None, shortcut: None) -> None:
        """Has no weights, so it is not collected."""

    def global_average(self, value: None) -> None:
        """Has no weights, so it is not collected."""

    def reshape_cells(self, name: str, value: None, depth: int) -> None:
        """Has no weights, so it is not collected."""

    def concat(self, name: str, values: Sequence[None]) -> None:
        """Has no weights, so it is not collected."""
