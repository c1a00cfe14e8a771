"""A small writer of ONNX graphs: nodes in order, weights by name, one opset."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

IR_VERSIONS: Final = {8: 3, 11: 6}
"""The IR version that came with an opset; old runtimes on boards refuse later ones."""


class OnnxGraph:
    """Collects nodes and weights; every method returns the name of what it added.

    Args:
        name: of the graph.
        opset: of the default operator set.
    """

    def __init__(self, name: str, opset: int) -> None:
        self._name = name
        self._opset = opset
        self._nodes: list[onnx.NodeProto] = []
        self._weights: list[onnx.TensorProto] = []

    def weight(self, name: str, values: NDArray[Any]) -> str:
        """Add a constant tensor."""
        self._weights.append(numpy_helper.from_array(np.asarray(values, order="C"), name))
        return name

    def node(self, operator: str, inputs: Sequence[str], output: str, **attributes: Any) -> str:
        """Add a node with one output."""
        self._nodes.append(
            helper.make_node(operator, list(inputs), [output], name=output, **attributes)
        )
        return output

    def model(
        self,
        inputs: dict[str, Sequence[int | str]],
        outputs: dict[str, Sequence[int | str]],
    ) -> onnx.ModelProto:
        """The finished model; all inputs and outputs are float32, a text is a dynamic size."""
        graph = helper.make_graph(
            self._nodes,
            self._name,
            [_float32(name, shape) for name, shape in inputs.items()],
            [_float32(name, shape) for name, shape in outputs.items()],
            self._weights,
        )
        model = helper.make_model(
            graph,
            producer_name="synergai",
            opset_imports=[helper.make_opsetid("", self._opset)],
            ir_version=IR_VERSIONS[self._opset],
        )
        onnx.checker.check_model(model, full_check=True)
        return model


def _float32(name: str, shape: Sequence[int | str]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape))
