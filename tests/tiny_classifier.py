"""Writer of a classifier as scikit-learn's exporter writes it by default."""

from pathlib import Path

from onnx import TensorProto, helper

from tests.tiny_onnx import floats, new_model, save_model

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
    scores = helper.make_tensor_type_proto(TensorProto.FLOAT, None)
    probability = helper.make_tensor_type_proto(TensorProto.FLOAT, [])
    kinds = {
        "label": helper.make_tensor_type_proto(key, ["n"]),
        "probabilities": _SEQUENCE(helper.make_map_type_proto(key, probability)),
        "values": _SEQUENCE(scores),
    }
    outputs = [helper.make_value_info(name, kind) for name, kind in kinds.items()]
    model = new_model(nodes, floats(["n", 3], "x"), outputs, domain="ai.onnx.ml")
    return save_model(path, model)
