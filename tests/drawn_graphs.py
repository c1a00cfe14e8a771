"""Drawn ONNX graphs: chains of operators with branches, skips, shared constants and dead ends."""

import random

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper, numpy_helper

WIDTH = 4
Arrays = dict[str, NDArray[np.float32]]


def draw_graph(seed: int) -> tuple[onnx.ModelProto, Arrays]:
    draw = random.Random(seed)
    generator = np.random.default_rng(seed)
    nodes: list[NodeProto] = []
    weights = {
        f"w{i}": generator.standard_normal((WIDTH, WIDTH)).astype(np.float32) for i in range(3)
    }
    names = ["x"] if draw.random() < 0.6 else ["x", "y"]
    nodes.append(helper.make_node("Transpose", ["w0"], ["shared"]))
    live = list(names)

    def add(kind: str, *inputs: str) -> str:
        nodes.append(
            helper.make_node(kind, list(inputs), [f"t{len(nodes)}"], name=f"n{len(nodes)}")
        )
        return str(nodes[-1].output[0])

    for _ in range(draw.randrange(2, 14)):
        move = draw.random()
        source = draw.choice(live)
        if len(live) > 1 and move < 0.4:
            others = [each for each in live if each != source]
            other = draw.choice(others)
            live.remove(source)
            live.remove(other)
            live.append(add(draw.choice(("Add", "Mul")), source, other))
        elif move < 0.55:
            live.append(add("Tanh", source))  # a branch: both tensors stay
        elif move < 0.6:
            add("Relu", source)  # a dead end
        elif move < 0.8:
            live.remove(source)
            live.append(add("MatMul", source, draw.choice(("shared", *weights))))
        else:
            live.remove(source)
            live.append(add(draw.choice(("Relu", "Sigmoid", "Neg")), source))
    while len(live) > 1 and draw.random() < 0.9:
        live.append(add("Add", live.pop(), live.pop()))
    listed = draw.random() < 0.3
    inputs = [_value(name) for name in names]
    if listed:
        inputs += [
            helper.make_tensor_value_info(n, TensorProto.FLOAT, w.shape) for n, w in weights.items()
        ]
    results = [add("Identity", each) for each in live]
    model = helper.make_model(
        helper.make_graph(
            nodes,
            "drawn",
            inputs,
            [_value(each) for each in results],
            [numpy_helper.from_array(each, name) for name, each in weights.items()],
        ),
        opset_imports=[helper.make_opsetid("", 13)],
        ir_version=3 if listed else 8,
    )
    return model, {n: generator.standard_normal((2, WIDTH)).astype(np.float32) for n in names}


def _value(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", WIDTH])
