"""Data flow of an ONNX graph, and the tensors at which it can be cut.

Tensors that depend on no input of the graph are constants: both sides of a cut may compute them. A
body of ``If``, ``Loop`` or ``Scan`` may read tensors of the graph around it; its node reads them.
"""

from __future__ import annotations

import math
from collections import defaultdict
from itertools import accumulate
from typing import TYPE_CHECKING, Final, NamedTuple

import onnx

from profiler.cutting.cuts import Cut
from profiler.onnx_file import tensor_spec
from synergai.domain import UNKNOWN_RANK
from synergai.errors import InvalidInput
from synergai.models.formats.model_files import MAX_MODEL_BYTES
from synergai.wire.arrays import DTYPES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from onnx import GraphProto, NodeProto, TensorProto, ValueInfoProto

_SEAMS: Final = frozenset(
    (
        *("Relu", "Clip", "LeakyRelu", "PRelu", "Elu", "Selu", "Sigmoid", "HardSigmoid", "Tanh"),
        *("HardSwish", "Gelu", "Softmax", "LogSoftmax"),
        *("MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool", "ReduceMean"),
        *("Reshape", "Flatten", "Squeeze", "Unsqueeze", "QuantizeLinear"),
    )
)
"""Operators that end what a runtime computes as one."""
_PER_ELEMENT: Final = 8.0
"""Work to write an element of a result, in products."""


class Graph:
    """The operators of a graph that its outputs need.

    Args:
        model: a model; it is not checked.

    Attributes:
        nodes: those operators, in an order in which each follows its sources.
        constant: tensors that depend on no input.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        graph = model.graph
        self.outputs = [value.name for value in graph.output]
        self.weights: dict[str, int] = {each.name: stored_bytes(each) for each in graph.initializer}
        for sparse in graph.sparse_initializer:
            self.weights[sparse.values.name] = stored_bytes(sparse.values)
        self.inputs = [each.name for each in graph.input if each.name not in self.weights]
        self.reads = [tuple(dict.fromkeys(_reads(node))) for node in graph.node]
        self._producers = self._checked_producers(graph)
        self.nodes = self.needed(self.outputs)
        self.constant = set(self.weights)
        for number in self.nodes:
            node = graph.node[number]
            random = node.op_type.startswith(("Random", "Multinomial", "Bernoulli"))
            if not random and self.constant.issuperset(self.reads[number]):
                self.constant.update(node.output)
                own = sum(stored_bytes(each.t) for each in node.attribute)
                self.weights.update(dict.fromkeys(filter(None, node.output), own))

    def needed(self, wanted: Iterable[str], given: str = "") -> list[int]:
        """Return the numbers of the nodes that tensors depend on, in order.

        Args:
            given: a tensor that need not be computed.
        """
        found: set[int] = set()
        left = list(wanted)
        while left:
            name = left.pop()
            number = None if name == given else self._producers.get(name)
            if number is not None and number not in found:
                found.add(number)
                left += self.reads[number]
        return sorted(found)

    def _checked_producers(self, graph: GraphProto) -> dict[str, int]:
        """Return the number of the node that makes each tensor, once the order is checked."""
        known = {*self.weights, *self.inputs}
        if len(known) != len(self.weights) + len(self.inputs):
            raise InvalidInput("the graph has two inputs of one name")
        producers: dict[str, int] = {}
        for number, node in enumerate(graph.node):
            for name in self.reads[number]:
                if name not in known:
                    raise InvalidInput(
                        f"the graph is not sorted, or has a cycle: {name!r} is read before it is "
                        "computed"
                    )
            for name in filter(None, node.output):
                if name in known:
                    raise InvalidInput(f"the graph computes two tensors with the name {name!r}")
                known.add(name)
                producers[name] = number
        for name in self.outputs:
            if name not in known:
                raise InvalidInput(f"the graph has no tensor for its output {name!r}")
        return producers


class _Uses(NamedTuple):
    """First and last position where a tensor is read."""

    first: int
    last: int


class FoundCuts(NamedTuple):
    """The cuts of a model.

    Attributes:
        products: estimated computation of a query, in products.
    """

    cuts: tuple[Cut, ...]
    products: float


def find_cuts(model: onnx.ModelProto) -> FoundCuts:
    """Return all cuts of a model in the order of the data flow; refuse one without any.

    The time is linear in the size of the graph: in any order of the operators, a tensor through
    which all data flows is the only one that is still to be read when it has been computed.
    """
    graph = Graph(model)
    nodes = model.graph.node
    flow = [number for number in graph.nodes if not graph.constant.issuperset(nodes[number].output)]
    uses = _find_uses(graph, model, flow)
    types = _infer_types(model)
    pending = sum(name in uses for name in graph.inputs)
    ends = [0] * (len(flow) + 1)
    for name, use in uses.items():
        ends[use.last] += name not in graph.constant
    weights = _weights_by_position(graph, uses, len(flow))
    work = _work_by_position(model, flow, types)
    readers: dict[str, list[str]] = defaultdict(list)
    for number in flow:
        for name in graph.reads[number]:
            readers[name].append(nodes[number].op_type)
    cuts: list[Cut] = []
    unnamed = 0
    for position, number in enumerate(flow):
        made = [name for name in nodes[number].output if name in uses]
        pending += len(made) - ends[position]
        if pending != 1 or len(made) != 1 or made[0] in graph.outputs:
            continue
        tensor = made[0]
        described = _describe(types.get(tensor))
        if described is None:
            unnamed += 1
            continue
        datatype, shape, size_bytes = described
        kinds = readers[tensor]
        seam = nodes[number].op_type in _SEAMS and "QuantizeLinear" not in kinds
        cuts.append(
            Cut(
                position=len(cuts) + 1,
                tensor=tensor,
                datatype=datatype,
                shape=shape,
                size_bytes=size_bytes,
                weights_before=weights[position][0],
                weights_after=weights[position][1],
                work=round(work[position] / work[-1], 6),
                seam=seam,
                exact=seam and len(kinds) == 1,
            )
        )
    if not cuts:
        raise InvalidInput(
            f"it has {unnamed} tensors through which all data flows, but their types or sizes "
            "cannot be inferred"
            if unnamed
            else "it has no tensor through which all data flows"
        )
    return FoundCuts(tuple(cuts), work[-1])


def stored_bytes(tensor: TensorProto) -> int:
    """Return the size of a stored tensor; 0 of one that is not stored in the file."""
    if tensor.raw_data:
        return len(tensor.raw_data)
    fields = (
        *((tensor.float_data, 4), (tensor.int32_data, 4), (tensor.int64_data, 8)),
        *((tensor.double_data, 8), (tensor.uint64_data, 8)),
    )
    return sum(len(values) * size for values, size in fields)


def _reads(node: NodeProto) -> Iterator[str]:
    """Yield the tensors that a node reads, those that its bodies read of the graph included."""
    yield from filter(None, node.input)
    for attribute in node.attribute:
        for body in (attribute.g, *attribute.graphs):
            own = {each.name for each in body.input} | {each.name for each in body.initializer}
            own |= {each.values.name for each in body.sparse_initializer}
            for inner in body.node:
                yield from (name for name in _reads(inner) if name not in own)
                own.update(inner.output)
            yield from (each.name for each in body.output if each.name not in own)


def _find_uses(graph: Graph, model: onnx.ModelProto, flow: list[int]) -> dict[str, _Uses]:
    """Return the positions at which tensors are read; those of a constant are its readers'."""
    uses: dict[str, _Uses] = {}

    def add(names: Iterable[str], first: int, last: int) -> None:
        for name in names:
            known = uses.get(name, _Uses(first, last))
            uses[name] = _Uses(min(known.first, first), max(known.last, last))

    add(graph.outputs, len(flow), len(flow))
    for position, number in enumerate(flow):
        add(graph.reads[number], position, position)
    for number in reversed(graph.nodes):
        for output in model.graph.node[number].output:
            if output in graph.constant and output in uses:
                add(graph.reads[number], *uses[output])
    return uses


def _weights_by_position(
    graph: Graph, uses: Mapping[str, _Uses], positions: int
) -> list[tuple[int, int]]:
    """Return the bytes of the weights that the parts before and behind each position need."""
    begins, ends = [0] * (positions + 1), [0] * (positions + 1)
    for name in graph.weights.keys() & uses.keys():
        begins[uses[name].first] += graph.weights[name]
        ends[uses[name].last] += graph.weights[name]
    total, sides = sum(ends), zip(accumulate(begins), accumulate(ends), strict=True)
    return [(begun, total - ended) for begun, ended in sides]


def _work_by_position(
    model: onnx.ModelProto, flow: list[int], types: Mapping[str, ValueInfoProto]
) -> list[float]:
    """Return the estimated work up to each position, in products."""
    dims = {each.name: tuple(each.dims) for each in model.graph.initializer}
    done, found = 0.0, []
    for number in flow:
        node = model.graph.node[number]
        described = [_describe(types.get(name)) for name in node.output if name in types]
        elements = float(sum(math.prod(map(abs, each[1])) for each in described if each))
        depth = 0.0
        kernel = dims.get(node.input[1], ()) if len(node.input) > 1 else ()
        if node.op_type in ("Conv", "ConvTranspose", "ConvInteger") and kernel:
            depth = math.prod(kernel[1:])
        elif node.op_type in ("Gemm", "MatMul") and kernel:
            transposed = any(each.name == "transB" and each.i for each in node.attribute)
            depth = kernel[-1] if transposed else kernel[max(0, len(kernel) - 2)]
        done += elements * (depth + _PER_ELEMENT) + 1.0
        found.append(done)
    return found


def _infer_types(model: onnx.ModelProto) -> dict[str, ValueInfoProto]:
    try:
        inferred = onnx.shape_inference.infer_shapes(model).graph
    except Exception as error:  # the C++ library raises many kinds
        reason = str(error).strip().partition("\n")[0]
        raise InvalidInput(f"the types of its tensors cannot be inferred: {reason}") from error
    return {each.name: each for each in (*inferred.value_info, *inferred.output)}


def _describe(value: ValueInfoProto | None) -> tuple[str, tuple[int, ...], int] | None:
    """Return datatype, shape and size of a tensor; None if it cannot be sent to another stage."""
    if value is None or not value.type.HasField("tensor_type"):
        return None
    spec = tensor_spec(value)
    datatype, shape = spec.datatype, spec.shape
    if datatype not in DTYPES or datatype == "BYTES" or shape == UNKNOWN_RANK:
        return None
    size_bytes = math.prod(map(abs, shape)) * DTYPES[datatype].itemsize
    return (datatype, shape, size_bytes) if size_bytes <= MAX_MODEL_BYTES else None
