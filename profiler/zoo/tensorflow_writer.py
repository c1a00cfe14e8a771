"""Export process: ``python -m profiler.zoo.tensorflow_writer``.

It reads a task from standard input, see `profiler.zoo.image_engines`, and writes the quantisation
of the input as the last line of standard output. The parent shows other output only if the process
fails.
"""

from __future__ import annotations

import json
import logging
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf.fingerprint_pb2 import FingerprintDef

from profiler.zoo.architectures import (
    ARCHITECTURES,
    CENTRE_CODE,
    DETECTIONS,
    IOU_THRESHOLD,
    PIXEL_SCALE,
    SCORE_THRESHOLD,
    SIZE_CODE,
    MobileNet,
    ResNet50,
)
from profiler.zoo.calibration import RELU6_CEILING, range_name
from profiler.zoo.image_engines import TFLITE_NAMES
from profiler.zoo.layer_builder import POOL, Convolution, Dense, Layer, LayerCollector, Weights

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from profiler.zoo.architectures import Architecture
    from profiler.zoo.layer_builder import Array


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
        return tf.nn.max_pool2d(value, POOL, 2, "SAME")

    def add_relu(self, name: str, value: Any, shortcut: Any) -> Any:
        return tf.nn.relu(tf.add(value, shortcut, name))

    def global_average(self, value: Any) -> Any:
        return self._rounded(tf.reduce_mean(value, [1, 2]), 0.0, RELU6_CEILING)

    def dense(self, value: Any, layer: Dense) -> Any:
        kernel, bias = self._parameters(layer)
        logits = tf.nn.bias_add(tf.matmul(value, kernel), bias)
        return self._rounded(logits, *self._ranges[range_name(layer)])

    def reshape_cells(self, name: str, value: Any, depth: int) -> Any:
        return tf.reshape(value, [tf.shape(value)[0], -1, depth], name)

    def concat(self, name: str, values: Sequence[Any]) -> Any:
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
    """Decode SSD's two outputs to detections, see `profiler.zoo.onnx_models`.

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
        middle = encodings[:, :, axis] * (length / np.float32(CENTRE_CODE)) + centre
        half = tf.exp(encodings[:, :, axis + 2] / SIZE_CODE) * (length / np.float32(2))
        lows.append(middle - half)
        highs.append(middle + half)
    boxes = tf.stack([*lows, *highs], axis=2)
    picked = tf.image.combined_non_max_suppression(
        boxes[:, :, tf.newaxis],
        tf.sigmoid(logits[:, :, 1:]),
        max_output_size_per_class=DETECTIONS,
        max_total_size=DETECTIONS,
        iou_threshold=IOU_THRESHOLD,
        score_threshold=SCORE_THRESHOLD,
        clip_boxes=True,
    )
    there = tf.cast(picked.nmsed_scores > SCORE_THRESHOLD, tf.float32)
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


FINGERPRINT: Final = "fingerprint.pb"
"""Digests of the model, checked when TensorFlow loads it, and a random UUID."""


class ServableModule:
    """An architecture with its weights, ready to be called and saved.

    Args:
        batch: Batch size; None for a dynamic one.

    Attributes:
        module: Holds the variables.
        serve: The function of the signature.
    """

    def __init__(
        self,
        architecture: Architecture,
        weights: dict[str, Any],
        *,
        quantised: bool = False,
        batch: int | None = None,
    ) -> None:
        collector = LayerCollector()
        architecture.build_layers(collector, None)
        builder = TensorflowLayerBuilder(collector.layers, weights, quantised=quantised)
        name, dtype, answer = _interface(architecture, builder)
        side = architecture.size
        spec = tf.TensorSpec([batch, side, side, 3], dtype, name=name)
        self.module = tf.Module()
        self.module.weights = builder.variables
        self.serve = tf.function(answer, input_signature=[spec], autograph=False)


def main() -> int:
    """Export the model described on standard input."""
    # TensorFlow's warnings about itself are not actionable.
    warnings.simplefilter("ignore")
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    sys.stdout.write(f"\n{json.dumps(_write(json.load(sys.stdin)))}\n")
    return 0


def _write(task: dict[str, Any]) -> dict[str, float] | None:
    dimensions = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in task["dimensions"].items()
    }
    architecture = ARCHITECTURES[task["family"]](**dimensions)
    weights, target = _load(task["weights"]), Path(task["target"])
    match task["format"]:
        case "saved_model":
            _save_model(ServableModule(architecture, weights, batch=_batch(architecture)), target)
        case "fake_quantised_saved_model":
            _save_model(ServableModule(architecture, weights, quantised=True), target)
        case "tflite":
            return _convert(ServableModule(architecture, weights, batch=1), target)
        case "tflite_int8":
            images = list(_load(task["images"]).values())
            return _convert(ServableModule(architecture, weights, batch=1), target, images)
    return None


def _batch(architecture: Architecture) -> int | None:
    """Return the batch size: detectors take a single image, as in the ONNX files."""
    return None if isinstance(architecture, MobileNet | ResNet50) else 1


def _interface(
    architecture: Architecture, builder: TensorflowLayerBuilder
) -> tuple[str, Any, Callable[[Any], dict[str, Any]]]:
    """Return name and dtype of the input, and the function from it to the outputs by name."""
    match architecture:
        case MobileNet():

            def mobilenet(image: Any) -> dict[str, Any]:
                logits = architecture.build_layers(builder, builder.image(image))
                return {"MobilenetV1/Predictions/Reshape_1": tf.nn.softmax(logits)}

            return "input", tf.float32, mobilenet
        case ResNet50():

            def resnet50(image: Any) -> dict[str, Any]:
                logits = architecture.build_layers(builder, image)
                return {"ArgMax": tf.argmax(logits, 1), "softmax_tensor": tf.nn.softmax(logits)}

            return "input_tensor", tf.float32, resnet50
        case _:
            anchors = architecture.anchors()

            def ssd(image: Any) -> dict[str, Any]:
                scaled = tf.cast(image, tf.float32) * np.float32(PIXEL_SCALE) - 1
                return detections(*architecture.build_layers(builder, scaled), anchors)

            return "image_tensor", tf.uint8, ssd


def _save_model(network: ServableModule, target: Path) -> None:
    tf.saved_model.save(network.module, target, signatures={"serving_default": network.serve})
    file = target / FINGERPRINT
    fingerprint = FingerprintDef.FromString(file.read_bytes())
    fingerprint.ClearField("uuid")
    file.write_bytes(fingerprint.SerializeToString(deterministic=True))


def _convert(
    network: ServableModule, target: Path, images: list[Any] | None = None
) -> dict[str, float] | None:
    """Write a TFLite file; given images, quantise it to int8 with ranges from them."""
    converter = tf.lite.TFLiteConverter.from_concrete_functions(
        [network.serve.get_concrete_function()], network.module
    )
    if images:
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
        converter.representative_dataset = lambda: ([image[np.newaxis]] for image in images)
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
        converter.inference_input_type = converter.inference_output_type = tf.int8
    from tensorflow.lite.tools import flatbuffer_utils

    model = flatbuffer_utils.convert_bytearray_to_object(converter.convert())
    (graph,) = model.subgraphs
    for index, name in zip((*graph.inputs, *graph.outputs), TFLITE_NAMES, strict=True):
        graph.tensors[index].name = name.encode()
    target.write_bytes(flatbuffer_utils.convert_object_to_bytearray(model))
    if not images:
        return None
    quantisation = graph.tensors[graph.inputs[0]].quantization
    (scale,), (zero_point,) = quantisation.scale, quantisation.zeroPoint
    return {"scale": float(scale), "zero_point": int(zero_point)}


def _load(path: str) -> dict[str, Any]:
    with np.load(path) as archive:
        return dict(archive)


if __name__ == "__main__":
    sys.exit(main())
