"""The zoo's architectures as ONNX models, with the names and layouts of MLPerf's files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from onnx import TensorProto

from profiler.zoo.builders.calibration import RELU6_CEILING
from profiler.zoo.builders.layer_builder import POOL, Convolution, Dense, Weights, same_padding
from profiler.zoo.builders.mobilenet import MobileNet
from profiler.zoo.builders.onnx_detection import OUTPUTS, add_detection
from profiler.zoo.builders.onnx_graph import OnnxGraph, ValueInfo
from profiler.zoo.builders.resnet50 import ResNet50
from profiler.zoo.builders.ssd import PIXEL_SCALE

if TYPE_CHECKING:
    from collections.abc import Sequence

    import onnx

    from profiler.zoo.builders.architectures import Architecture
    from profiler.zoo.builders.layer_builder import Weights
    from profiler.zoo.builders.ssd import SsdMobileNet

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


@dataclass(frozen=True, slots=True)
class GraphTensor:
    """A tensor of the graph.

    Attributes:
        size: Side of the image; 1 if it is no longer an image.
    """

    name: str
    size: int = 1


class OnnxLayerBuilder:
    """Adds a node per layer."""

    def __init__(self, graph: OnnxGraph, weights: Weights) -> None:
        self._graph = graph
        self._weights = weights

    def convolution(self, value: GraphTensor, layer: Convolution) -> GraphTensor:
        """Add a Conv, and a Clip or Relu."""
        before, after = layer.padding(value.size)
        name = self._graph.node(
            "Conv",
            [value.name, *self._parameters(layer)],
            f"{layer.name}/convolution",
            kernel_shape=[layer.kernel, layer.kernel],
            strides=[layer.stride, layer.stride],
            pads=[before, before, after, after],
            group=layer.inputs if layer.depthwise else 1,
        )
        match layer.activation:
            case "relu6":
                name = self._graph.clip(name, 0.0, RELU6_CEILING, f"{layer.name}/Relu6")
            case "relu":
                name = self._graph.node("Relu", [name], f"{layer.name}/Relu")
            case "none":
                pass
        return GraphTensor(name, (value.size + before + after - layer.kernel) // layer.stride + 1)

    def max_pool(self, value: GraphTensor) -> GraphTensor:
        """Add a MaxPool."""
        before, after = same_padding(value.size, POOL, 2)
        name = self._graph.node(
            "MaxPool",
            [value.name],
            f"{value.name}/pool",
            kernel_shape=[POOL, POOL],
            strides=[2, 2],
            pads=[before, before, after, after],
        )
        return GraphTensor(name, -(-value.size // 2))

    def add_relu(self, name: str, value: GraphTensor, shortcut: GraphTensor) -> GraphTensor:
        """Add an Add and a Relu."""
        total = self._graph.node("Add", [value.name, shortcut.name], f"{name}/add")
        return GraphTensor(self._graph.node("Relu", [total], f"{name}/Relu"), value.size)

    def global_average(self, value: GraphTensor) -> GraphTensor:
        """Add a GlobalAveragePool and a Flatten."""
        pooled = self._graph.node("GlobalAveragePool", [value.name], f"{value.name}/average")
        return GraphTensor(self._graph.node("Flatten", [pooled], f"{value.name}/features", axis=1))

    def dense(self, value: GraphTensor, layer: Dense) -> GraphTensor:
        """Add a Gemm."""
        inputs = [value.name, *self._parameters(layer)]
        return GraphTensor(self._graph.node("Gemm", inputs, layer.name, transB=1))

    def reshape_cells(self, name: str, value: GraphTensor, depth: int) -> GraphTensor:
        """Add a Transpose to channels last, and a Reshape."""
        turned = self._graph.node("Transpose", [value.name], f"{name}/turned", perm=[0, 2, 3, 1])
        shape = self._graph.weight(f"{name}/shape", np.array([0, -1, depth], np.int64))
        return GraphTensor(self._graph.node("Reshape", [turned, shape], name))

    def concat(self, name: str, values: Sequence[GraphTensor]) -> GraphTensor:
        """Add a Concat."""
        return GraphTensor(
            self._graph.node("Concat", [value.name for value in values], name, axis=1)
        )

    def _parameters(self, layer: Convolution | Dense) -> list[str]:
        return [
            self._graph.weight(name, self._weights[name])
            for name in (f"{layer.name}/weights", f"{layer.name}/bias")
        ]
