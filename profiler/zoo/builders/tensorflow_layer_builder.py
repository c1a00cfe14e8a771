"""Layer builder for TensorFlow. Imported only in the process that writes the models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import tensorflow as tf

from profiler.zoo.builders import ssd
from profiler.zoo.builders.calibration import RELU6_CEILING, range_name
from profiler.zoo.builders.layer_builder import POOL, Convolution, Dense, Layer, Weights

if TYPE_CHECKING:
    from collections.abc import Sequence

    from profiler.zoo.builders.layer_builder import Array

IMAGE_RANGE: Final = (-1.0, 1.0)
"""Range of MobileNet's input."""


class TensorflowLayerBuilder:
    """Builds a layer as TensorFlow operations, channels last.

    Args:
        quantised: Round weights and activations to 8 bits, as in quantisation-aware training.
    """

    def __init__(self, layers: Sequence[Layer], weights: Weights, *, quantised: bool) -> None:
        self.variables = {
            name: tf.Variable(values, name=name)
            for layer in layers
            for name, values in (
                (f"{layer.name}/weights", _kernel(layer, weights)),
                (f"{layer.name}/bias", weights[f"{layer.name}/bias"]),
            )
        }
        self._quantised = quantised
        # Variables have no value while the graph is traced.
        self._ranges = {
            name: (float(values.min()), float(values.max())) for name, values in weights.items()
        }

    def image(self, value: Any) -> Any:
        """Round the input image if quantised."""
        return self._rounded(value, *IMAGE_RANGE)

    def convolution(self, value: Any, layer: Convolution) -> Any:
        """Convolve, add the bias, activate."""
        kernel, bias = self._parameters(layer)
        stride = [1, layer.stride, layer.stride, 1]
        if layer.centred:
            pads = layer.padding(value.shape[1])
            value = tf.pad(value, [(0, 0), pads, pads, (0, 0)])
        convolve = tf.nn.depthwise_conv2d if layer.depthwise else tf.nn.conv2d
        padding = "VALID" if layer.centred else "SAME"
        result = tf.nn.bias_add(convolve(value, kernel, stride, padding), bias)
        match layer.activation:
            case "relu6":
                return self._rounded(tf.nn.relu6(result), 0.0, RELU6_CEILING)
            case "relu":
                return tf.nn.relu(result)
            case "none":
                return result

    def max_pool(self, value: Any) -> Any:
        """Max-pool windows of `POOL` with stride 2."""
        return tf.nn.max_pool2d(value, POOL, 2, "SAME")

    def add_relu(self, name: str, value: Any, shortcut: Any) -> Any:
        """Add and apply ReLU."""
        return tf.nn.relu(tf.add(value, shortcut, name))

    def global_average(self, value: Any) -> Any:
        """Average over height and width."""
        return self._rounded(tf.reduce_mean(value, [1, 2]), 0.0, RELU6_CEILING)

    def dense(self, value: Any, layer: Dense) -> Any:
        """Multiply and add the bias."""
        kernel, bias = self._parameters(layer)
        logits = tf.nn.bias_add(tf.matmul(value, kernel), bias)
        return self._rounded(logits, *self._ranges[range_name(layer)])

    def reshape_cells(self, name: str, value: Any, depth: int) -> Any:
        """Reshape to cells of `depth`."""
        return tf.reshape(value, [tf.shape(value)[0], -1, depth], name)

    def concat(self, name: str, values: Sequence[Any]) -> Any:
        """Concatenate along the second axis."""
        return tf.concat(values, 1, name)

    def _parameters(self, layer: Layer) -> tuple[Any, Any]:
        weights, bias = f"{layer.name}/weights", f"{layer.name}/bias"
        kernel = self._rounded(self.variables[weights], *self._ranges[weights])
        return kernel, self.variables[bias]

    def _rounded(self, value: Any, low: float, high: float) -> Any:
        if not self._quantised:
            return value
        return tf.quantization.fake_quant_with_min_max_args(value, low, high)


def detections(encodings: Any, logits: Any, anchors: Array) -> dict[str, Any]:
    """Decode SSD's two outputs to detections, see `profiler.zoo.builders.onnx_detection`.

    Args:
        encodings: float32 [batch, anchors, 4].
        logits: float32 [batch, anchors, classes], the background first.

    Returns:
        float32 ``num_detections`` [batch], ``detection_boxes`` [batch, detections, 4],
        ``detection_scores`` and ``detection_classes`` [batch, detections].
    """
    lows: list[Any] = []
    highs: list[Any] = []
    for axis in (0, 1):
        centre, length = anchors[:, axis], anchors[:, axis + 2]
        middle = encodings[:, :, axis] * (length / np.float32(ssd.CENTRE_CODE)) + centre
        half = tf.exp(encodings[:, :, axis + 2] / ssd.SIZE_CODE) * (length / np.float32(2))
        lows.append(middle - half)
        highs.append(middle + half)
    boxes = tf.stack([*lows, *highs], axis=2)
    picked = tf.image.combined_non_max_suppression(
        boxes[:, :, tf.newaxis],
        tf.sigmoid(logits[:, :, 1:]),
        max_output_size_per_class=ssd.DETECTIONS,
        max_total_size=ssd.DETECTIONS,
        iou_threshold=ssd.IOU_THRESHOLD,
        score_threshold=ssd.SCORE_THRESHOLD,
        clip_boxes=True,
    )
    there = tf.cast(picked.nmsed_scores > ssd.SCORE_THRESHOLD, tf.float32)
    return {
        "num_detections": tf.cast(picked.valid_detections, tf.float32),
        "detection_boxes": picked.nmsed_boxes,
        "detection_scores": picked.nmsed_scores,
        "detection_classes": (picked.nmsed_classes + 1) * there,
    }


def _kernel(layer: Layer, weights: Weights) -> Array:
    """Return the weights in TensorFlow's layout."""
    values = weights[f"{layer.name}/weights"]
    if isinstance(layer, Dense):
        return values.T
    # [out, in, height, width] to [height, width, in, out]; depthwise, [height, width, channels, 1].
    return values.transpose((2, 3, 0, 1) if layer.depthwise else (2, 3, 1, 0))
