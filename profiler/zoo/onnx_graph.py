"""A minimal writer of ONNX graphs of one opset."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import ArrayLike, NDArray

MODEL_FILE: Final = "model.onnx"
IR_VERSIONS: Final = {8: 4, 11: 6, 13: 7}
"""IR version by opset; old runtimes on boards refuse later ones. Opset 8 came with version 3, which
lists weights among the inputs, so that a runtime cannot treat them as constants.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueInfo:
    """An input or output.

    Attributes:
        shape: A string is a dynamic dimension.
        element: One of `onnx.TensorProto`'s element types.
    """

    shape: Sequence[int | str]
    element: int = field(default=TensorProto.FLOAT)


class OnnxGraph:
    """Collects nodes and weights; its methods return the names of the added tensors.

    Unnamed tensors get a name that begins with the graph's.
    """

    def __init__(self, name: str, opset: int) -> None:
        self.opset: Final = opset
        self._name = name
        self._nodes: list[onnx.NodeProto] = []
        self._weights: list[onnx.TensorProto] = []

    def weight(self, name: str, values: NDArray[Any]) -> str:
        self._weights.append(numpy_helper.from_array(np.asarray(values, order="C"), name))
        return name

    def constant(self, values: ArrayLike, dtype: type[np.generic] = np.float32) -> str:
        return self.weight(self._unused("constant"), np.asarray(values, dtype))

    def node(
        self, operator: str, inputs: Sequence[str], output: str = "", **attributes: Any
    ) -> str:
        return self.nodes(operator, inputs, [output or self._unused(operator)], **attributes)[0]

    def nodes(
        self, operator: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any
    ) -> Sequence[str]:
        self._nodes.append(
            helper.make_node(operator, list(inputs), list(outputs), name=outputs[0], **attributes)
        )
        return outputs

    def clip(self, value: str, low: float, high: float, output: str = "") -> str:
        """Add a Clip of floats; opset 11 takes the bounds as inputs."""
        if self.opset < 11:
            return self.node("Clip", [value], output, min=low, max=high)
        return self.node("Clip", [value, self.constant(low), self.constant(high)], output)

    def cast(self, value: str, element: int) -> str:
        return self.node("Cast", [value], to=element)

    def body(self, inputs: dict[str, ValueInfo], outputs: dict[str, ValueInfo]) -> onnx.GraphProto:
        """Return the nodes as a graph: a loop's body, or a model's graph."""
        return helper.make_graph(
            self._nodes,
            self._name,
            [_value(name, info) for name, info in inputs.items()],
            [_value(name, info) for name, info in outputs.items()],
            self._weights,
        )

    def model(self, inputs: dict[str, ValueInfo], outputs: dict[str, ValueInfo]) -> onnx.ModelProto:
        """Return the checked model."""
        model = helper.make_model(
            self.body(inputs, outputs),
            producer_name="synergai",
            opset_imports=[helper.make_opsetid("", self.opset)],
            ir_version=IR_VERSIONS[self.opset],
        )
        onnx.checker.check_model(model, full_check=True)
        return model

    def _unused(self, kind: str) -> str:
        return f"{self._name}/{kind}_{len(self._nodes) + len(self._weights)}"


def write_model(path: Path, model: onnx.ModelProto) -> None:
    """Write a model with deterministic bytes."""
    path.write_bytes(model.SerializeToString(deterministic=True))


def _value(name: str, info: ValueInfo) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, info.element, list(info.shape))
