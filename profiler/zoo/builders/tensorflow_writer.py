"""Export process: ``python -m profiler.zoo.builders.tensorflow_writer``.

It reads tasks from standard input, see `profiler.zoo.builders.tensorflow_process`, and writes the
inputs' quantisation as the last line of standard output. The parent shows other output only if
the process fails.
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

from profiler.zoo.builders.architectures import ARCHITECTURES
from profiler.zoo.builders.layer_collector import LayerCollector
from profiler.zoo.builders.mobilenet import MobileNet
from profiler.zoo.builders.resnet50 import ResNet50
from profiler.zoo.builders.ssd import PIXEL_SCALE
from profiler.zoo.builders.tensorflow_layer_builder import TensorflowLayerBuilder, detections

if TYPE_CHECKING:
    from collections.abc import Callable

    from profiler.zoo.builders.architectures import Architecture

FINGERPRINT: Final = "fingerprint.pb"
"""Digests of the model, checked when TensorFlow loads it, and a random UUID."""
TFLITE_NAMES: Final = ("input", "MobilenetV1/Predictions/Reshape_1")
"""Names of input and output in MLPerf's file."""


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
    """Export the models described on standard input."""
    # TensorFlow's warnings about itself are not actionable.
    warnings.simplefilter("ignore")
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    answers = [_write(task) for task in json.load(sys.stdin)]
    sys.stdout.write(f"\n{json.dumps(answers)}\n")
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
