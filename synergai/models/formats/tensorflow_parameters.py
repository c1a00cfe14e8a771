"""Number of weights of a TensorFlow graph, from its nodes and those of its functions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from synergai.models.formats.protobuf_wire import Message

if TYPE_CHECKING:
    from collections.abc import Iterable

_VARIABLES: Final = frozenset({"VarHandleOp", "VariableV2", "Variable"})
# Values of DataType.
_FLOATS: Final = frozenset({1, 2, 14, 19})
"""float, double, bfloat16 and half."""
_SMALL_INTEGERS: Final = frozenset({4, 6, 11, 12, 13})
"""uint8, int8, qint8, quint8 and qint32: matrices of them are quantised weights."""


@dataclass(frozen=True, slots=True)
class _Node:
    """The contribution of a node.

    Attributes:
        sources: names of the nodes that it takes inputs from.
        calls: names that may be functions: its operation, and its attributes.
        weights: number of weights that it stores; None if unknown.
    """

    sources: tuple[str, ...]
    calls: tuple[str, ...]
    weights: int | None


class WeightCounter:
    """Collects nodes and counts the weights that an output depends on.

    A SavedModel may store weights several times, of which the signature uses one.
    """

    def __init__(self) -> None:
        self._nodes: dict[str, _Node] = {}
        self._functions: dict[str, list[_Node]] = {}

    def add_node(self, node: Message) -> None:
        """Add a node of the graph."""
        self._nodes[node.string(1)] = _read_node(node)

    def add_function_node(self, function: str, node: Message) -> None:
        """Add a node of a function."""
        self._functions.setdefault(function, []).append(_read_node(node))

    def count(self, outputs: Iterable[str] | None = None) -> int | None:
        """Return the number of weights; None if the shape of one is unknown.

        Args:
            outputs: tensors that the weights are for; None for the whole graph.
        """
        nodes = dict(self._nodes)
        functions = dict(self._functions)
        pending = list(nodes) if outputs is None else [node_name(name) for name in outputs]
        total = 0
        while pending:
            node = nodes.pop(pending.pop(), None)
            if node is None:  # visited before
                continue
            pending += node.sources
            reached = [node]
            while reached:
                each = reached.pop()
                if each.weights is None:
                    return None
                total += each.weights
                for called in each.calls:
                    reached += functions.pop(called, ())
        return total


def node_name(tensor: str) -> str:
    """Return the node that computes a tensor, such as ``node:0``, or is an input, ``^node``."""
    return tensor.lstrip("^").partition(":")[0]


def _read_node(node: Message) -> _Node:
    operation, attributes = node.string(2), dict(node.map_entries(5))
    called = (value.message(10).string(1) for value in attributes.values())
    return _Node(
        sources=tuple(map(node_name, node.strings(3))),
        calls=(operation, *filter(None, called)),
        weights=_weights(operation, attributes),
    )


def _weights(operation: str, attributes: dict[str, Message]) -> int | None:
    """Return how many weights a node stores; shapes, axes and indices are none."""
    if operation == "Const":
        shape = attributes.get("value", Message()).message(8).message(2)
    elif operation in _VARIABLES:
        shape = attributes.get("shape", Message()).message(7)
    else:
        return 0
    sizes = [size.number(1) for size in shape.messages(2)]
    kind = attributes.get("dtype", Message()).number(6)
    if kind not in _FLOATS and not (kind in _SMALL_INTEGERS and len(sizes) > 1):
        return 0
    if shape.number(3) or any(size < 0 for size in sizes):
        return None
    return math.prod(sizes)
