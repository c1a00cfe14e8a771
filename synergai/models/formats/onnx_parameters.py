"""Tensors stored in an ONNX model, and which of them are weights."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from onnx import AttributeProto, TensorProto

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import onnx

_KINDS: Final = {value: name for name, value in TensorProto.DataType.items()}
_SMALL_INTEGERS: Final = frozenset({"INT2", "UINT2", "INT4", "UINT4", "INT8", "UINT8"})
_CONSTANT_LISTS: Final = {"value_float": 1, "value_floats": 0}
"""Attributes of Constant nodes with floats: their number, or 0 for that of the list."""


def stored_tensors(model: onnx.ModelProto) -> Iterator[TensorProto]:
    """Yield initialisers and values of Constant nodes, those of subgraphs and functions too."""
    yield from _of_graph(model.graph)
    for function in model.functions:
        yield from _of_nodes(function.node)


def count_parameters(model: onnx.ModelProto) -> int:
    """Return the number of weights, wherever they are stored.

    Floats are weights, and so are integers that are dequantised and matrices of integers of at
    most 8 bits. Others are shapes, axes, indices and zero points.
    """
    dequantised = {
        node.input[0]
        for nodes in _node_lists(model)
        for node in nodes
        if node.op_type == "DequantizeLinear" and node.input
    }
    return sum(
        math.prod(tensor.dims)
        for tensor in stored_tensors(model)
        if _is_weight(tensor, dequantised)
    ) + sum(
        size or len(attribute.floats)
        for nodes in _node_lists(model)
        for node in nodes
        if node.op_type == "Constant"
        for attribute in node.attribute
        if (size := _CONSTANT_LISTS.get(attribute.name)) is not None
    )


def _is_weight(tensor: TensorProto, dequantised: set[str]) -> bool:
    kind = _KINDS.get(tensor.data_type, "")
    if kind == "DOUBLE" or "FLOAT" in kind:  # BFLOAT16 and FLOAT8E4M3FN, too
        return True
    return "INT" in kind and (
        tensor.name in dequantised or (kind in _SMALL_INTEGERS and len(tensor.dims) > 1)
    )


def _of_graph(graph: onnx.GraphProto) -> Iterator[TensorProto]:
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield sparse.values
    yield from _of_nodes(graph.node)


def _of_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[TensorProto]:
    for node in nodes:
        for attribute in node.attribute:
            if node.op_type == "Constant" and attribute.type == AttributeProto.TENSOR:
                tensor = TensorProto(
                    data_type=attribute.t.data_type, dims=attribute.t.dims, name=node.output[0]
                )
                tensor.data_location = attribute.t.data_location
                yield tensor
            elif node.op_type == "Constant" and attribute.type == AttributeProto.SPARSE_TENSOR:
                yield attribute.sparse_tensor.values
        for graph in _subgraphs(node):
            yield from _of_graph(graph)


def _node_lists(model: onnx.ModelProto) -> Iterator[Iterable[onnx.NodeProto]]:
    pending = [model.graph.node, *(function.node for function in model.functions)]
    while pending:
        nodes = pending.pop()
        yield nodes
        pending += [graph.node for node in nodes for graph in _subgraphs(node)]


def _subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            yield attribute.g
        yield from attribute.graphs
