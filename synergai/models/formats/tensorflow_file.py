"""Reader of SavedModels and frozen graphs that needs no TensorFlow.

``engines add`` and ``inspect`` use it on machines without TensorFlow, and every load, to refuse
operations that TensorFlow would run.

It parses the wire format of GraphDef, and of the SavedModel that contains it, see TensorFlow's
``core/protobuf``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from google.protobuf.message import DecodeError

from synergai.domain import UNKNOWN_RANK, TensorSpec
from synergai.errors import InvalidInput
from synergai.models.formats.model_files import (
    SAVED_MODEL_FILE,
    ModelContents,
    check_signature,
    map_file,
)
from synergai.wire.request_codec import LENGTH_DELIMITED, iter_fields

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


_EMPTY: Final = memoryview(b"")
_VARINT: Final = 0
_SIGN: Final = 1 << 63


class WireMessage:
    """The fields of a serialised message, addressed by number; values are views of `data`."""

    def __init__(self, data: memoryview = _EMPTY) -> None:
        self._data = data
        self._fields: dict[int, list[tuple[int, int, int]]] = {}
        for number, wire_type, _, content, end in iter_fields(data):
            self._fields.setdefault(number, []).append((wire_type, content, end))

    def byte_strings(self, number: int) -> Iterator[memoryview]:
        """Return the values of a repeated field of bytes, strings or messages."""
        for wire_type, content, end in self._fields.get(number, ()):
            if wire_type == LENGTH_DELIMITED:
                yield self._data[content:end]

    def messages(self, number: int) -> Iterator[WireMessage]:
        """Return the messages of a repeated field."""
        return map(WireMessage, self.byte_strings(number))

    def message(self, number: int) -> WireMessage:
        """Return the message in a field; an empty one if absent."""
        return next(self.messages(number), WireMessage())

    def strings(self, number: int) -> list[str]:
        """Return the strings of a repeated field."""
        return [bytes(each).decode() for each in self.byte_strings(number)]

    def string(self, number: int) -> str:
        """Return the string in a field; empty if absent."""
        return next(iter(self.strings(number)), "")

    def number(self, number: int) -> int:
        """Return the integer in a field; 0 if absent."""
        for wire_type, content, end in self._fields.get(number, ()):
            if wire_type == _VARINT:
                value = sum(
                    (byte & 0x7F) << 7 * place for place, byte in enumerate(self._data[content:end])
                )
                return (value & (1 << 64) - 1 ^ _SIGN) - _SIGN
        return 0

    def map_entries(self, number: int) -> Iterator[tuple[str, WireMessage]]:
        """Return keys and values of a map from strings to messages."""
        for entry in self.messages(number):
            yield entry.string(1), entry.message(2)


SIGNATURE: Final = "serving_default"
"""The signature of a SavedModel to serve by default."""
SERVE: Final = "serve"
"""The tag of the meta graph for serving."""

# DataType, as far as the Open Inference Protocol supports it.
_DATATYPES: Final = {
    1: "FP32",
    2: "FP64",
    3: "INT32",
    4: "UINT8",
    5: "INT16",
    6: "INT8",
    7: "BYTES",
    9: "INT64",
    10: "BOOL",
    17: "UINT16",
    19: "FP16",
    22: "UINT32",
    23: "UINT64",
}
_REFERENCE_OFFSET: Final = 100
"""Added to the data type of a reference to a variable."""
_FORBIDDEN: Final = frozenset(
    {
        "CreateSummaryFileWriter",
        "DebugIdentity",
        "DebugIdentityV2",
        "DebugIdentityV3",
        "EagerPyFunc",
        "FixedLengthRecordDataset",
        "FixedLengthRecordDatasetV2",
        "FixedLengthRecordReaderV2",
        "MatchingFiles",
        "MatchingFilesDataset",
        "PrintV2",
        "PyFunc",
        "PyFuncStateless",
        "ReadFile",
        "SaveDataset",
        "SaveDatasetV2",
        "TFRecordDataset",
        "TFRecordDatasetV2",
        "TFRecordReaderV2",
        "TextLineDataset",
        "TextLineReaderV2",
        "WholeFileReaderV2",
        "WriteFile",
    }
)
"""Operations that access files chosen by the graph, or run Python."""
_NO_RESULT: Final = frozenset({"Assert", "Const", "NoOp", "Placeholder"})


@dataclass(slots=True)
class _GraphSummary:
    """Summary of a graph's nodes; functions' nodes are only checked."""

    placeholders: list[TensorSpec] = field(default_factory=list)
    results: list[str] = field(default_factory=list)
    consumed: set[str] = field(default_factory=set)


def read_saved_model(path: Path, signature: str = "") -> ModelContents:
    """Read and check the SavedModel in the folder `path`, and one of its signatures."""
    try:
        saved_model = WireMessage(memoryview(map_file(path / SAVED_MODEL_FILE)))
        return _read_meta_graph(path, saved_model, signature or SIGNATURE)
    except (DecodeError, UnicodeDecodeError):
        raise InvalidInput(f"{path.name} is corrupt or not a SavedModel") from None


def read_frozen_graph(path: Path) -> ModelContents:
    """Read and check the frozen graph in the file `path`.

    Its inputs are its placeholders; its outputs are the tensors that no operation consumes.
    """
    try:
        graph = _read_graph(path.name, WireMessage(memoryview(map_file(path))))
    except (DecodeError, UnicodeDecodeError):
        raise InvalidInput(f"{path.name} is corrupt or not a TensorFlow graph") from None
    if not graph.results:
        raise InvalidInput(f"{path.name} is corrupt or not a TensorFlow graph: it computes nothing")
    unconsumed = (name for name in graph.results if name not in graph.consumed)
    return ModelContents(
        format="TensorFlow frozen graph",
        inputs=tuple(graph.placeholders),
        outputs=tuple(TensorSpec(f"{name}:0", "unknown", ()) for name in unconsumed),
    )


def _read_meta_graph(path: Path, saved_model: WireMessage, signature: str) -> ModelContents:
    for meta_graph in saved_model.messages(2):
        meta_info = meta_graph.message(1)
        if SERVE in meta_info.strings(4):
            break
    else:
        raise InvalidInput(
            f"{path.name} is corrupt or not a SavedModel: it has no graph for serving"
        )
    _read_graph(path.name, meta_graph.message(2))
    signatures = {
        name: (_tensors(each.map_entries(1)), _tensors(each.map_entries(2)))
        for name, each in meta_graph.map_entries(5)
        if not name.startswith("__")  # such as that of the initialisation
    }
    check_signature(path, signatures, signature)
    inputs, outputs = signatures[signature]
    version = meta_info.string(5)
    return ModelContents(
        format="TensorFlow SavedModel",
        inputs=inputs,
        outputs=outputs,
        producer=f"TensorFlow {version}" if version else "",
    )


def _read_graph(name: str, graph: WireMessage) -> _GraphSummary:
    summary = _GraphSummary()
    for node in graph.messages(1):
        _check_operation(name, node)
        _add_node(summary, node)
    for function in graph.message(2).messages(1):
        for node in function.messages(3):
            _check_operation(name, node)
    return summary


def _check_operation(name: str, node: WireMessage) -> None:
    if (operation := node.string(2)) in _FORBIDDEN:
        raise InvalidInput(
            f"{name} has the operation {operation}, which can access files or run code; "
            "it is not served"
        )


def _add_node(summary: _GraphSummary, node: WireMessage) -> None:
    name, operation = node.string(1), node.string(2)
    summary.consumed.update(map(_node_name, node.strings(3)))
    if operation not in _NO_RESULT:
        summary.results.append(name)
    elif operation == "Placeholder":
        datatype = datatype_of(_attribute(node, "dtype").number(6))
        shape = _shape(next(_attribute(node, "shape").messages(7), None))
        summary.placeholders.append(TensorSpec(f"{name}:0", datatype, shape))


def _node_name(tensor: str) -> str:
    """Return the node that computes a tensor, such as ``node:0``, or is an input, ``^node``."""
    return tensor.lstrip("^").partition(":")[0]


def _attribute(node: WireMessage, name: str) -> WireMessage:
    return dict(node.map_entries(5)).get(name, WireMessage())


def _tensors(side: Iterator[tuple[str, WireMessage]]) -> tuple[TensorSpec, ...]:
    specs = (
        TensorSpec(name, datatype_of(info.number(2)), _shape(info.message(3)))
        for name, info in side
    )
    return tuple(sorted(specs, key=lambda spec: spec.name))


def datatype_of(kind: int) -> str:
    """Return the datatype of a ``DataType``; ``unknown`` if the protocol has none."""
    return _DATATYPES.get(kind % _REFERENCE_OFFSET, "unknown")


def _shape(shape: WireMessage | None) -> tuple[int, ...]:
    """Return the dimensions, -1 if dynamic; of an unknown rank, also if there is no `shape`."""
    if shape is None or shape.number(3):
        return UNKNOWN_RANK
    return tuple(size if size >= 0 else -1 for size in (dim.number(1) for dim in shape.messages(2)))
