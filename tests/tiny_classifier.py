"""Writer of a classifier as scikit-learn's exporter writes it by default."""

from pathlib import Path

import onnx
from onnx import TensorProto, helper

_SEQUENCE = helper.make_sequence_type_proto


def save_classifier(path: Path) -> Path:
    """Save a model of x, an FP32 [n, 3] of the scores of three classes.

    Its outputs are the label, ``probabilities``, a sequence of maps, and ``values``, a sequence of
    tensors.
    """
    key, classes = TensorProto.INT64, [0, 1, 2]
    nodes = [
        helper.make_node(
            "LinearClassifier",
            ["x"],
            ["label", "scores"],
            domain="ai.onnx.ml",
            coefficients=[1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0],
            intercepts=[0.0, 0.0, 0.0],
            classlabels_ints=classes,
        ),
        helper.make_node(
            "ZipMap",
            ["scores"],
            ["probabilities"],
            domain="ai.onnx.ml",
            classlabels_int64s=classes,
        ),
        helper.make_node("SplitToSequence", ["scores"], ["values"]),
    ]
    floats = helper.make_tensor_type_proto(TensorProto.FLOAT, None)
    probability = helper.make_tensor_type_proto(TensorProto.FLOAT, [])
    kinds = {
        "label": helper.make_tensor_type_proto(key, ["n"]),
        "probabilities": _SEQUENCE(helper.make_map_type_proto(key, probability)),
        "values": _SEQUENCE(floats),
    }
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])],
        [helper.make_value_info(name, kind) for name, kind in kinds.items()],
    )
    opsets = [helper.make_opsetid("", 13), helper.make_opsetid("ai.onnx.ml", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path
