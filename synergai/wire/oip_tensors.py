"""Conversion between JSON tensor data and raw tensor contents, without NumPy.

JSON data is a list of elements in row-major order, flat or nested like the tensor's shape. 16-bit
floats have no JSON form in the protocol; BYTES elements are strings, sent as UTF-8.
"""

from __future__ import annotations

import math
import re
import struct
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from synergai.errors import InvalidInput
from synergai.wire.validation import DATATYPES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from synergai.wire.request_codec import Buffer

    Element: TypeAlias = bool | int | float | str

MAX_JSON_ELEMENTS: Final = 1 << 20
"""Limit on the elements of a request's inputs, and of an output, in JSON; their conversion blocks
the event loop."""
MAX_JSON_STRINGS: Final = 1 << 16
"""The same for elements that are strings."""
_FORMATS: Final = {
    "BOOL": "?",
    "UINT8": "B",
    "UINT16": "H",
    "UINT32": "I",
    "UINT64": "Q",
    "INT8": "b",
    "INT16": "h",
    "INT32": "i",
    "INT64": "q",
    "FP32": "f",
    "FP64": "d",
}
"""Format character of ``struct`` by datatype."""
_TYPES: Final[dict[str, type]] = {
    "BOOL": bool,
    "FP32": float,
    "FP64": float,
    "BYTES": str,
}
"""Python type of an element by datatype; ``int`` for those not listed."""
_LISTS_PER_STRING: Final = 2
"""Limit on the lists around strings, which have to be decoded, unlike those around numbers."""
_STRING: Final = re.compile(rb'"[^"]*"')
_NOT_STRUCTURE: Final = bytes(set(range(256)) - set(b"[],"))


def raw_from_json(name: str, datatype: str, shape: Sequence[int], data: Buffer) -> bytes:
    check_has_json_form("input", name, datatype)
    count = element_count(name, shape)
    elements = _elements(name, datatype, shape, bytes(data), count)
    if datatype == "BYTES":
        encoded = [element.encode() for element in elements]
        return b"".join([len(each).to_bytes(4, "little") + each for each in encoded])
    try:
        return struct.pack(f"<{count}{_FORMATS[datatype]}", *elements)
    except (struct.error, OverflowError):
        raise InvalidInput(f"input {name!r}: an element is out of range for {datatype}") from None


def json_from_raw(name: str, datatype: str, raw: Buffer) -> list[Element]:
    check_has_json_form("output", name, datatype)
    if datatype == "BYTES":
        return _strings(name, raw)
    form = _FORMATS[datatype]
    count = len(raw) // struct.calcsize(f"<{form}")
    if count > MAX_JSON_ELEMENTS:
        raise InvalidInput(_too_many("output", name, count))
    elements: list[Element] = list(struct.unpack(f"<{count}{form}", raw))
    if form in "fd" and not all(map(math.isfinite, elements)):  # type: ignore[arg-type]  # floats
        raise InvalidInput(
            f"output {name!r} has elements that are infinite or not a number, which JSON cannot "
            "represent; request binary_data"
        )
    return elements


def check_has_json_form(kind: str, name: str, datatype: str) -> None:
    """Check that tensors of a datatype can be represented in JSON; `kind` is input or output."""
    if datatype not in DATATYPES:
        raise InvalidInput(
            f"{kind} {name!r} has the unknown datatype {datatype!r}; the datatypes are "
            f"{', '.join(sorted(DATATYPES))}"
        )
    if datatype in ("FP16", "BF16"):
        way = "send" if kind == "input" else "request"
        raise InvalidInput(
            f"{kind} {name!r} is {datatype}, which has no JSON form; {way} it as binary data"
        )


def _too_many(kind: str, name: str, count: int) -> str:
    way = "send" if kind == "input" else "request"
    return (
        f"{kind} {name!r} has {count:,} elements; the limit in JSON is {MAX_JSON_ELEMENTS:,}: "
        f"{way} it as binary data"
    )


def element_count(name: str, shape: Sequence[int]) -> int:
    """Return the number of elements of an input in JSON."""
    if any(size < 0 for size in shape):
        raise InvalidInput(f"input {name!r} has a shape with a negative dimension")
    count = math.prod(shape)
    if count > MAX_JSON_ELEMENTS:
        raise InvalidInput(_too_many("input", name, count))
    return count


def _elements(name: str, datatype: str, shape: Sequence[int], data: bytes, count: int) -> list[Any]:
    # Decoding millions of lists takes seconds. The structure is therefore checked first, by
    # operations on bytes.
    if not data.startswith(b"["):
        raise InvalidInput(f"input {name!r}: its data is not a list")
    layout = _without_strings(data, count) if datatype == "BYTES" else data
    found = layout.count(b",") + 1 if layout.strip(b"[], \t\r\n") else 0
    if found != count:
        raise InvalidInput(f"input {name!r} needs {count:,} elements for its shape, not {found:,}")
    if not count:
        return []
    structure = layout.translate(None, _NOT_STRUCTURE)
    if structure == _structure([count]):
        depth = 1
    elif len(structure) == _structure_length(shape) and structure == _structure(shape):
        depth = len(shape)
    else:
        raise InvalidInput(_nested_otherwise(name))
    if depth > 1 and datatype != "BYTES":
        data, depth = b"[%b]" % data.translate(None, b"[]"), 1
    elif structure.count(b"[") > _LISTS_PER_STRING * count + depth:
        raise InvalidInput(f"input {name!r}: its data has too many lists; send a flat list")
    try:
        elements = _decoder(_TYPES.get(datatype, int), depth).decode(data)
    except UnicodeDecodeError:
        raise InvalidInput(f"input {name!r}: an element is not valid UTF-8") from None
    except msgspec.DecodeError as error:
        raise InvalidInput(f"input {name!r} is {datatype}: {error}") from None
    for _ in range(depth - 1):
        elements = list(chain.from_iterable(elements))
    if len(elements) != count:
        raise InvalidInput(_nested_otherwise(name))
    return elements


def _without_strings(data: bytes, count: int) -> bytes:
    """Return JSON with its strings replaced by a number, those after the first `count + 1` not."""
    return _STRING.sub(b"0", data.replace(rb"\\", b"").replace(rb"\"", b""), count + 1)


def _structure(shape: Sequence[int]) -> bytes:
    """Return the brackets and commas of a list that is nested like `shape`, without zeros."""
    inner = b""
    for size in reversed(shape):
        inner = b"[%b]" % ((inner + b",") * size)[:-1]
    return inner


def _structure_length(shape: Sequence[int]) -> int:
    """Return the length of ``_structure(shape)``, which may exceed the memory."""
    length = 0
    for size in reversed(shape):
        length = length * size + size + 1
    return length


def _nested_otherwise(name: str) -> str:
    return f"input {name!r}: its data is neither flat nor nested like its shape"


@lru_cache(maxsize=64)
def _decoder(element: type, depth: int) -> msgspec.json.Decoder[list[Any]]:
    kind: Any = element
    for _ in range(depth):
        kind = list[kind]
    return msgspec.json.Decoder(kind)


def _strings(name: str, raw: Buffer) -> list[Element]:
    strings: list[Element] = []
    position = 0
    try:
        while position < len(raw):
            start = position + 4
            position = start + int.from_bytes(raw[position:start], "little")
            strings.append(str(raw[start:position], "utf-8"))
            if len(strings) > MAX_JSON_STRINGS:
                raise InvalidInput(
                    f"output {name!r} has more than {MAX_JSON_STRINGS:,} strings, the limit in "
                    "JSON: request it as binary data"
                )
    except UnicodeDecodeError:
        raise InvalidInput(
            f"output {name!r} has elements that are not UTF-8, which JSON cannot represent; "
            "request binary_data"
        ) from None
    return strings
