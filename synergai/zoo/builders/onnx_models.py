"""The zoo's architectures as ONNX models, with the names and layouts of MLPerf's files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from onnx import TensorProto

from synergai.zoo.builders.mobilenet import MobileNet
from synergai.zoo.builders.onnx_detection import OUTPUTS, add_detection
from synergai.zoo.builders.onnx_graph import OnnxGraph, ValueInfo
from synergai.zoo.builders.onnx_layer_builder import GraphTensor, OnnxLayerBuilder
from synergai.zoo.builders.resnet50 import ResNet50
from synergai.zoo.builders.ssd import PIXEL_SCALE

if TYPE_CHECKING:
    import onnx

    from synergai.zoo.builders.architectures import Architecture
    from synergai.zoo.builders.layer_builder import Weights
    from synergai.zoo.builders.ssd import SsdMobileNet

BATCH: Final = "batch"


def onnx_model(architecture: Architecture, weights: Weights, opset: int) -> onnx.ModelProto:
    """Return the architecture as an ONNX model of opset 8 or 11."""
    match architecture:
        case MobileNet():
            return _mobilenet(architecture, weights, opset)
        case ResNet50():
            return _resnet50(architecture, weights, opset)
        case _:
            return _ssd(architecture, weights, opset)


def _mobilenet(network: MobileNet, weights: Weights, opset: int) -> onnx.ModelProto:
    graph = OnnxGraph("mobilenet_v1", opset)
    logits = network.build_layers(
        OnnxLayerBuilder(graph, weights), GraphTensor("input:0", network.size)
    )
    answer = graph.node("Softmax", [logits.name], "MobilenetV1/Predictions/Reshape_1:0", axis=1)
    return graph.model(
        {"input:0": ValueInfo(shape=[BATCH, 3, network.size, network.size])},
        {answer: ValueInfo(shape=[BATCH, network.classes])},
    )


def _resnet50(network: ResNet50, weights: Weights, opset: int) -> onnx.ModelProto:
    graph = OnnxGraph("resnet50_v1", opset)
    logits = network.build_layers(
        OnnxLayerBuilder(graph, weights), GraphTensor("input_tensor:0", network.size)
    )
    answer = graph.node("ArgMax", [logits.name], "ArgMax:0", axis=1, keepdims=0)
    probabilities = graph.node("Softmax", [logits.name], "softmax_tensor:0", axis=1)
    return graph.model(
        {"input_tensor:0": ValueInfo(shape=[BATCH, 3, network.size, network.size])},
        {
            answer: ValueInfo(shape=[BATCH], element=TensorProto.INT64),
            probabilities: ValueInfo(shape=[BATCH, network.classes]),
        },
    )


def _ssd(network: SsdMobileNet, weights: Weights, opset: int) -> onnx.ModelProto:
    graph = OnnxGraph("ssd_mobilenet_v1", opset)
    pixels = graph.cast("image_tensor:0", TensorProto.FLOAT)
    channels_first = graph.node("Transpose", [pixels], perm=[0, 3, 1, 2])
    scaled = graph.node("Mul", [channels_first, graph.constant(PIXEL_SCALE)])
    image = graph.node("Sub", [scaled, graph.constant(1.0)])
    encodings, logits = network.build_layers(
        OnnxLayerBuilder(graph, weights), GraphTensor(image, network.size)
    )
    add_detection(graph, encodings.name, logits.name, network.anchors(), network.classes - 1)
    shape = [1, network.size, network.size, 3]
    return graph.model(
        {"image_tensor:0": ValueInfo(shape=shape, element=TensorProto.UINT8)}, OUTPUTS
    )
