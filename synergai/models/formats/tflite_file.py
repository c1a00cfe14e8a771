"""Reader of TFLite files that needs no runtime.

``engines add`` and ``inspect`` use it on machines without a runtime, and every load, since the
runtimes follow offsets out of a damaged file and crash.

Field numbers are from TensorFlow Lite's ``schema.fbs``, version 3.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, TypeAlias

from synergai.domain import UNKNOWN_RANK, TensorSpec
from synergai.errors import InvalidInput
from synergai.models.formats.model_files import ModelContents, choose_signature, map_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from mmap import mmap
    from pathlib import Path

    from synergai.models.formats.model_files import Ends

    Content: TypeAlias = bytes | mmap


# Runtimes follow the offsets of a model file wherever they lead, including outside the file. For
# the layout see "FlatBuffer Internals" in the FlatBuffers documentation: a table begins with the
# signed distance back to its vtable, which holds each field's offset in the table, or 0.

_OFFSET_BYTES: Final = 4
_VTABLE_BYTES: Final = 4
"""Header of a vtable: its own size and the table's."""


class CorruptFlatBuffer(InvalidInput):
    """The data is not a FlatBuffer of the expected schema."""


@dataclass(frozen=True, slots=True)
class FlatBufferTable:
    """A table at `start` in `content`; fields are addressed by number."""

    content: Content
    start: int

    def __post_init__(self) -> None:
        size, table_size = self._vtable_sizes()
        if size < _VTABLE_BYTES or size % 2 or table_size < _OFFSET_BYTES:
            raise CorruptFlatBuffer("a table without fields")
        _check_bounds(self.content, self._vtable, size)
        _check_bounds(self.content, self.start, table_size)

    @classmethod
    def root(cls, content: Content) -> FlatBufferTable:
        return cls(content, _dereference(content, 0))

    def number(self, field: int, struct_format: str, default: int = 0) -> int:
        position = self._field_position(field, struct.calcsize(struct_format))
        return default if position is None else _number(self.content, position, struct_format)

    def table(self, field: int) -> FlatBufferTable | None:
        """Return the table a field refers to; None if absent."""
        position = self._field_position(field, _OFFSET_BYTES)
        return (
            None
            if position is None
            else FlatBufferTable(self.content, _dereference(self.content, position))
        )

    def tables(self, field: int, limit: int) -> Iterator[FlatBufferTable]:
        """Return the tables of a vector; more than `limit` are corruption."""
        start, count = self.vector(field, _OFFSET_BYTES)
        if count > limit:
            raise CorruptFlatBuffer(f"a list of {count:,} entries")
        for position in range(start, start + _OFFSET_BYTES * count, _OFFSET_BYTES):
            yield FlatBufferTable(self.content, _dereference(self.content, position))

    def numbers(self, field: int, struct_format: str, limit: int) -> tuple[int, ...]:
        """Return the numbers of a vector; more than `limit` are corruption."""
        start, count = self.vector(field, struct.calcsize(struct_format))
        if count > limit:
            raise CorruptFlatBuffer(f"a list of {count:,} numbers")
        values: tuple[int, ...] = struct.unpack_from(
            f"<{count}{struct_format}", self.content, start
        )
        return values

    def string(self, field: int) -> str:
        """Return a string; empty if absent."""
        start, count = self.vector(field, 1)
        return self.content[start : start + count].decode("utf-8", errors="replace")

    def vector(self, field: int, entry_bytes: int) -> tuple[int, int]:
        """Return the position and number of a vector's entries; zeros if absent."""
        position = self._field_position(field, _OFFSET_BYTES)
        if position is None:
            return 0, 0
        start = _dereference(self.content, position)
        count = _number(self.content, start, "I")
        _check_bounds(self.content, start + _OFFSET_BYTES, count * entry_bytes)
        return start + _OFFSET_BYTES, count

    @property
    def _vtable(self) -> int:
        return self.start - _number(self.content, self.start, "i")

    def _vtable_sizes(self) -> tuple[int, int]:
        return _number(self.content, self._vtable, "H"), _number(
            self.content, self._vtable + 2, "H"
        )

    def _field_position(self, field: int, size: int) -> int | None:
        """Return the position of a field of `size` bytes; None if absent."""
        vtable_size, table_size = self._vtable_sizes()
        entry = _VTABLE_BYTES + 2 * field
        if entry >= vtable_size:
            return None
        offset = _number(self.content, self._vtable + entry, "H")
        if not offset:
            return None
        if offset + size > table_size:
            raise CorruptFlatBuffer("a field outside of its table")
        return self.start + offset


def _dereference(content: Content, position: int) -> int:
    return position + _number(content, position, "I")


def _number(content: Content, position: int, struct_format: str) -> int:
    _check_bounds(content, position, struct.calcsize(struct_format))
    (value,) = struct.unpack_from(f"<{struct_format}", content, position)
    return int(value)


def _check_bounds(content: Content, start: int, size: int) -> None:
    if start < 0 or start + size > len(content):
        raise CorruptFlatBuffer("an offset that leads out of the file")


IDENTIFIER: Final = b"TFL3"
"""File identifier, at offset 4."""
_MAX_ENTRIES: Final = 1 << 17
"""Limit of tensors, operators or buffers; real models have thousands."""
_MAX_SUBGRAPHS: Final = 1 << 10
_MAX_RANK: Final = 16
_NO_TENSOR: Final = -1
"""Index of an omitted optional input."""

# TensorType, as far as the Open Inference Protocol supports it.
_DATATYPES: Final = {
    0: "FP32",
    1: "FP16",
    2: "INT32",
    3: "UINT8",
    4: "INT64",
    5: "BYTES",
    6: "BOOL",
    7: "INT16",
    9: "INT8",
    10: "FP64",
    12: "UINT64",
    15: "UINT32",
    16: "UINT16",
}


def read_tflite(path: Path, signature: str = "") -> ModelContents:
    """Read and check the TFLite file at `path`.

    Its inputs and outputs are those of `signature`; if that is empty, of the first graph, by the
    names of the tensors.

    All that an interpreter dereferences before it runs an operator is checked: tables, vectors and
    the indices between them. The operators' options are left to the runtime.
    """
    content = map_file(path)
    if content[4:8] != IDENTIFIER:
        raise InvalidInput(f"{path.name} is corrupt or not a TFLite file")
    try:
        model, signatures = _read_model(content)
    except CorruptFlatBuffer as error:
        raise InvalidInput(f"{path.name} is corrupt: it has {error}") from None
    if not signature:
        return model
    inputs, outputs = choose_signature(path, signatures, signature)
    return replace(model, inputs=inputs, outputs=outputs)


def _read_model(content: Content) -> tuple[ModelContents, Mapping[str, Ends]]:
    """Return the first graph of a model, and its signatures by name."""
    model = FlatBufferTable.root(content)
    codes = list(model.tables(1, _MAX_ENTRIES))
    for code in codes:
        code.string(1)
    buffers = 0
    for buffer in model.tables(4, _MAX_ENTRIES):
        _check_buffer(buffer, content)
        buffers += 1
    subgraphs = list(model.tables(2, _MAX_SUBGRAPHS))
    if not subgraphs:
        raise CorruptFlatBuffer("no subgraph")
    tensors = [_check_subgraph(subgraph, buffers, len(codes)) for subgraph in subgraphs]
    for metadata in model.tables(6, _MAX_ENTRIES):
        metadata.string(0)
        _check_index(metadata.number(1, "I"), buffers)
    signatures = dict(_read_signature(each, tensors) for each in model.tables(7, _MAX_ENTRIES))
    main = subgraphs[0]
    contents = ModelContents(
        format=f"TensorFlow Lite, version {model.number(0, 'I')}",
        inputs=tuple(tensors[0][i] for i in main.numbers(1, "i", _MAX_ENTRIES)),
        outputs=tuple(tensors[0][i] for i in main.numbers(2, "i", _MAX_ENTRIES)),
        producer=model.string(3),
    )
    return contents, signatures


def _check_buffer(buffer: FlatBufferTable, content: Content) -> None:
    """Check a buffer; in large files its data may follow the FlatBuffer."""
    buffer.vector(0, 1)
    offset, external_size = buffer.number(1, "Q"), buffer.number(2, "Q")
    if offset + external_size > len(content):
        raise CorruptFlatBuffer("weights beyond its end")


def _check_subgraph(subgraph: FlatBufferTable, buffers: int, codes: int) -> list[TensorSpec]:
    tensors = [_check_tensor(tensor, buffers) for tensor in subgraph.tables(0, _MAX_ENTRIES)]
    for field in (1, 2):
        for index in subgraph.numbers(field, "i", _MAX_ENTRIES):
            _check_index(index, len(tensors))
    for operator in subgraph.tables(3, _MAX_ENTRIES):
        _check_index(operator.number(0, "I"), codes)
        for field in (1, 2, 8):  # inputs, outputs, intermediates
            for index in operator.numbers(field, "i", _MAX_ENTRIES):
                if index != _NO_TENSOR:
                    _check_index(index, len(tensors))
        # The options of built-in and custom operators.
        operator.table(4)
        operator.vector(5, 1)
        operator.table(12)
    subgraph.string(4)
    return tensors


def _check_tensor(tensor: FlatBufferTable, buffers: int) -> TensorSpec:
    shape = tensor.numbers(0, "i", _MAX_RANK)
    signature = tensor.numbers(7, "i", _MAX_RANK)
    if any(size < 0 for size in shape):
        raise CorruptFlatBuffer("a tensor of a negative size")
    if signature and len(signature) != len(shape):
        raise CorruptFlatBuffer("a tensor of two different ranks")
    _check_index(tensor.number(2, "I"), buffers)
    if (quantisation := tensor.table(4)) is not None:
        scales = quantisation.vector(2, 4)[1]
        if scales > 1 and quantisation.vector(3, 8)[1] not in (1, scales):
            raise CorruptFlatBuffer("a quantised tensor whose scales lack their zero points")
        quantisation.table(5)
    datatype = _DATATYPES.get(tensor.number(1, "b"), "unknown")
    has_rank = shape or tensor.number(8, "?")
    return TensorSpec(
        tensor.string(3), datatype, (signature or shape) if has_rank else UNKNOWN_RANK
    )


def _read_signature(
    signature: FlatBufferTable, tensors: list[list[TensorSpec]]
) -> tuple[str, Ends]:
    subgraph = signature.number(4, "I")
    _check_index(subgraph, len(tensors))
    sides: list[tuple[TensorSpec, ...]] = []
    for field in (0, 1):
        specs = []
        for entry in signature.tables(field, _MAX_ENTRIES):
            index = entry.number(1, "I")
            _check_index(index, len(tensors[subgraph]))
            tensor = tensors[subgraph][index]
            specs.append(TensorSpec(entry.string(0), tensor.datatype, tensor.shape))
        sides.append(tuple(sorted(specs, key=lambda spec: spec.name)))
    return signature.string(2), (sides[0], sides[1])


def _check_index(index: int, count: int) -> None:
    if not 0 <= index < count:
        raise CorruptFlatBuffer(f"a reference to entry {index} of {count}")
