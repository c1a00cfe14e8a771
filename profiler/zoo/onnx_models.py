"""The zoo's architectures as ONNX models, with the names and layouts of MLPerf's files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from onnx import TensorProto

from profiler.zoo.architectures import (
    CENTRE_CODE,
    DETECTIONS,
    IOU_THRESHOLD,
    PIXEL_SCALE,
    SCORE_THRESHOLD,
    SIZE_CODE,
    MobileNet,
    ResNet50,
)
from profiler.zoo.calibration import RELU6_CEILING
from profiler.zoo.layer_builder import POOL, Convolution, Dense, Weights, same_padding
from profiler.zoo.onnx_graph import OnnxGraph, ValueInfo

if TYPE_CHECKING:
    from collections.abc import Sequence

    import onnx

    from profiler.zoo.architectures import Architecture, SsdMobileNet
    from profiler.zoo.layer_builder import Array


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
        total = self._graph.node("Add", [value.name, shortcut.name], f"{name}/add")
        return GraphTensor(self._graph.node("Relu", [total], f"{name}/Relu"), value.size)

    def global_average(self, value: GraphTensor) -> GraphTensor:
        pooled = self._graph.node("GlobalAveragePool", [value.name], f"{value.name}/average")
        return GraphTensor(self._graph.node("Flatten", [pooled], f"{value.name}/features", axis=1))

    def dense(self, value: GraphTensor, layer: Dense) -> GraphTensor:
        inputs = [value.name, *self._parameters(layer)]
        return GraphTensor(self._graph.node("Gemm", inputs, layer.name, transB=1))

    def reshape_cells(self, name: str, value: GraphTensor, depth: int) -> GraphTensor:
        turned = self._graph.node("Transpose", [value.name], f"{name}/turned", perm=[0, 2, 3, 1])
        shape = self._graph.weight(f"{name}/shape", np.array([0, -1, depth], np.int64))
        return GraphTensor(self._graph.node("Reshape", [turned, shape], name))

    def concat(self, name: str, values: Sequence[GraphTensor]) -> GraphTensor:
        return GraphTensor(
            self._graph.node("Concat", [value.name for value in values], name, axis=1)
        )

    def _parameters(self, layer: Convolution | Dense) -> list[str]:
        return [
            self._graph.weight(name, self._weights[name])
            for name in (f"{layer.name}/weights", f"{layer.name}/bias")
        ]


# Detections are those of TensorFlow's object detection API: sorted by score, padded with zeros.
#
# Opset 11 has an operator that suppresses within each class; the best of all classes are selected
# afterwards. Opset 8 has none. There, a loop repeatedly picks the best remaining score and clears
# the overlapping boxes of its class. The detections and their order are the same.

OUTPUTS: Final = {
    "num_detections:0": ValueInfo(shape=[1]),
    "detection_boxes:0": ValueInfo(shape=[1, DETECTIONS, 4]),
    "detection_scores:0": ValueInfo(shape=[1, DETECTIONS]),
    "detection_classes:0": ValueInfo(shape=[1, DETECTIONS]),
}
"""Outputs of MLPerf's file: the count; ymin, xmin, ymax and xmax as shares of the image;
probabilities; COCO's ids.
"""


def add_detection(
    graph: OnnxGraph, encodings: str, logits: str, anchors: Array, classes: int
) -> None:
    """Add the nodes from encoded boxes and logits to `OUTPUTS`, for one image.

    Args:
        encodings: float32 [1, anchors, 4].
        logits: float32 [1, anchors, classes], the background first.
    """
    sides = _decode_boxes(graph, encodings, anchors)
    axes = graph.constant([1, len(anchors), 1], np.int64)
    columns = [graph.node("Reshape", [side, axes]) for side in sides]
    boxes = graph.node("Concat", columns, axis=2)
    scores = _scores(graph, logits)
    if graph.opset < 11:
        score, label, place = _pick_by_loop(graph, sides, scores, len(anchors), classes)
    else:
        score, label, place = _pick_by_operator(graph, boxes, scores, len(anchors))
    found = graph.cast(
        graph.node("Greater", [score, graph.constant(SCORE_THRESHOLD)]), TensorProto.FLOAT
    )
    one = graph.constant(1, np.int64)
    ids = graph.cast(graph.node("Add", [label, one]), TensorProto.FLOAT)
    # [1, detections, 4]; clipped only now, since overlaps are computed on whole boxes.
    picked = graph.clip(graph.node("Gather", [boxes, place], axis=1), 0.0, 1.0)
    column = graph.node("Reshape", [found, graph.constant([1, DETECTIONS, 1], np.int64)])
    graph.node("Mul", [picked, column], "detection_boxes:0")
    row = graph.constant([1, DETECTIONS], np.int64)
    for values, name in ((score, "detection_scores:0"), (ids, "detection_classes:0")):
        graph.node("Reshape", [graph.node("Mul", [values, found]), row], name)
    graph.node("ReduceSum", [found], "num_detections:0", axes=[0], keepdims=1)


def _decode_boxes(graph: OnnxGraph, encodings: str, anchors: Array) -> list[str]:
    """Return the boxes' ymin, xmin, ymax and xmax: each [1, anchors]."""
    lows: list[str] = []
    highs: list[str] = []
    for axis in (0, 1):
        centre, length = anchors[:, axis], anchors[:, axis + 2]
        moved, grown = (
            graph.node("Gather", [encodings, graph.constant(index, np.int64)], axis=2)
            for index in (axis, axis + 2)
        )
        step = graph.constant(length / np.float32(CENTRE_CODE))
        middle = graph.node("Add", [graph.node("Mul", [moved, step]), graph.constant(centre)])
        ratio = graph.node("Exp", [graph.node("Div", [grown, graph.constant(SIZE_CODE)])])
        half = graph.node("Mul", [ratio, graph.constant(length / np.float32(2))])
        lows.append(graph.node("Sub", [middle, half]))
        highs.append(graph.node("Add", [middle, half]))
    return [*lows, *highs]


def _scores(graph: OnnxGraph, logits: str) -> str:
    """Return the probabilities of all classes but the background: [1, classes, anchors]."""
    turned = graph.node("Transpose", [logits], perm=[0, 2, 1])
    everything = np.iinfo(np.int64).max
    if graph.opset < 10:
        foreground = graph.node("Slice", [turned], axes=[1], starts=[1], ends=[everything])
    else:
        bounds = [graph.constant([bound], np.int64) for bound in (1, everything, 1)]
        foreground = graph.node("Slice", [turned, *bounds])
    return graph.node("Sigmoid", [foreground])


def _pick_by_operator(
    graph: OnnxGraph, boxes: str, scores: str, anchors: int
) -> tuple[str, str, str]:
    """Return score, class and anchor of each detection, [detections]; a score of 0 means none."""
    selected = graph.node(
        "NonMaxSuppression",
        [
            boxes,
            scores,
            graph.constant([DETECTIONS], np.int64),
            graph.constant([IOU_THRESHOLD]),
            graph.constant([SCORE_THRESHOLD]),
        ],
    )
    label, place = (
        graph.node("Gather", [selected, graph.constant(column, np.int64)], axis=1)
        for column in (1, 2)
    )
    first = graph.node("Mul", [label, graph.constant(anchors, np.int64)])
    flat = graph.node("Reshape", [scores, graph.constant([-1], np.int64)])
    score = graph.node("Gather", [flat, graph.node("Add", [first, place])])
    # TopK of too few values is an error, so pad with zeros.
    nothing, nowhere = np.zeros(DETECTIONS, np.float32), np.zeros(DETECTIONS, np.int64)
    padded = graph.node("Concat", [score, graph.constant(nothing)], axis=0)
    best, order = graph.nodes(
        "TopK",
        [padded, graph.constant([DETECTIONS], np.int64)],
        ["best_scores", "best_places"],
        axis=0,
    )
    label, place = (
        graph.node(
            "Gather",
            [graph.node("Concat", [each, graph.constant(nowhere, np.int64)], axis=0), order],
        )
        for each in (label, place)
    )
    return best, label, place


def _pick_by_loop(
    graph: OnnxGraph, sides: Sequence[str], scores: str, anchors: int, classes: int
) -> tuple[str, str, str]:
    """Do the same as `_pick_by_operator` with a loop."""
    heights, widths = (graph.node("Sub", [sides[axis + 2], sides[axis]]) for axis in (0, 1))
    areas = graph.node("Mul", [heights, widths])
    body = _loop_body(sides, areas, anchors, classes)
    rounds = graph.constant(DETECTIONS, np.int64)
    again = graph.constant(True, np.bool_)
    _, *picked = graph.nodes(
        "Loop",
        [rounds, again, scores],
        ["left_scores", "picked_scores", "picked_classes", "picked_places"],
        body=body,
    )
    shape = graph.constant([DETECTIONS], np.int64)
    score, label, place = (graph.node("Reshape", [each, shape]) for each in picked)
    return score, label, place


def _loop_body(sides: Sequence[str], areas: str, anchors: int, classes: int) -> onnx.GraphProto:
    """Pick the best of the scores [1, classes, anchors], and clear the ones it suppresses.

    `sides` and `areas`, each [1, anchors], belong to the surrounding graph.
    """
    body = OnnxGraph("round", 8)
    flat = body.node("Reshape", ["scores", body.constant([-1], np.int64)])
    best = body.node("ArgMax", [flat], axis=0)
    body.node("Gather", [flat, best], "score")
    count = body.constant(anchors, np.int64)
    body.node("Div", [best, count], "class")
    place = body.node("Sub", [best, body.node("Mul", ["class", count])], "place")
    covered = _overlaps(body, sides, areas, place)
    numbers = body.constant(np.arange(classes).reshape(1, classes, 1), np.int64)
    affected = body.cast(body.node("Equal", [numbers, "class"]), TensorProto.FLOAT)
    cleared = body.node("Mul", [affected, covered])
    kept = body.node("Sub", [body.constant(1.0), cleared])
    body.node("Mul", ["scores", kept], "scores_left")
    body.node("Identity", ["go_on"], "goes_on")
    scores = ValueInfo(shape=[1, classes, anchors])
    picked = ValueInfo(shape=[1], element=TensorProto.INT64)
    return body.body(
        {
            "round": ValueInfo(shape=[], element=TensorProto.INT64),
            "go_on": ValueInfo(shape=[], element=TensorProto.BOOL),
            "scores": scores,
        },
        {
            "goes_on": ValueInfo(shape=[], element=TensorProto.BOOL),
            "scores_left": scores,
            "score": ValueInfo(shape=[1]),
            "class": picked,
            "place": picked,
        },
    )


def _overlaps(body: OnnxGraph, sides: Sequence[str], areas: str, place: str) -> str:
    """Return 1 for boxes that overlap the one at `place` too much, else 0: [1, anchors]."""
    own = [body.node("Gather", [side, place], axis=1) for side in sides]
    lengths: list[str] = []
    for axis in (0, 1):
        end = body.node("Min", [sides[axis + 2], own[axis + 2]])
        start = body.node("Max", [sides[axis], own[axis]])
        lengths.append(body.node("Relu", [body.node("Sub", [end, start])]))
    shared = body.node("Mul", lengths)
    both = body.node("Add", [areas, body.node("Gather", [areas, place], axis=1)])
    overlap = body.node("Div", [shared, body.node("Sub", [both, shared])])
    over = body.node("Greater", [overlap, body.constant(IOU_THRESHOLD)])
    return body.cast(over, TensorProto.FLOAT)
