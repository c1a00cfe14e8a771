"""Conversion between JSON tensor data and raw tensor contents.

JSON data is a list of elements in row-major order, flat or nested like the tensor's shape. 16-bit
floats have no JSON form in the protocol; BYTES elements are strings, sent as UTF-8.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from synergai.errors import InvalidInput
from synergai.wire import arrays
from synergai.wire.validation import DATATYPES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from synergai.wire.request_codec import Buffer

MAX_JSON_ELEMENTS: Final = 1 << 20
"""Limit on the elements of a request's inputs, and of an output, in JSON; their conversion blocks
the event loop."""
MAX_JSON_STRINGS: Final = 1 << 16
"""The same for elements that are strings."""
_LISTS: Final[dict[str, msgspec.json.Decoder[list[Any]]]] = {
    "BOOL": msgspec.json.Decoder(list[bool]),
    "FP32": msgspec.json.Decoder(list[float]),
    "FP64": msgspec.json.Decoder(list[float]),
    "BYTES": msgspec.json.Decoder(list[str]),
}
"""Decoders of flat data by datatype; `_INTEGERS` for those not listed."""
_INTEGERS: Final[msgspec.json.Decoder[list[Any]]] = msgspec.json.Decoder(list[int])
_STRING: Final = re.compile(rb'("[^"\\]*+(?:\\.[^"\\]*+)*+")')
"""A string; without backtracking, which would take memory for each escape."""
_NOT_STRUCTURE: Final = bytes(set(range(256)) - set(b"[],"))


def raw_from_json(name: str, datatype: str, shape: Sequence[int], data: Buffer) -> bytes:
    check_has_json_form("input", name, datatype)
    count = element_count(name, shape)
    flat = _flattened(name, datatype, shape, bytes(data), count)
    try:
        elements = _LISTS.get(datatype, _INTEGERS).decode(flat)
        with np.errstate(over="ignore"):
            array = arrays.from_values(elements, datatype, [count])
    except UnicodeDecodeError:
        raise InvalidInput(f"input {name!r}: an element is not valid UTF-8") from None
    except msgspec.DecodeError as error:
        raise InvalidInput(f"input {name!r} is {datatype}: {error}") from None
    except InvalidInput as error:
        raise InvalidInput(f"input {name!r}: {error}") from None
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise InvalidInput(f"input {name!r}: an element is out of range for {datatype}")
    return arrays.to_raw(array)


def json_from_raw(name: str, datatype: str, shape: Sequence[int], raw: Buffer) -> list[Any]:
    check_has_json_form("output", name, datatype)
    count = math.prod(shape)
    if datatype == "BYTES" and count > MAX_JSON_STRINGS:
        raise InvalidInput(
            f"output {name!r} has more than {MAX_JSON_STRINGS:,} strings, the limit in JSON: "
            "request it as binary data"
        )
    if count > MAX_JSON_ELEMENTS:
        raise InvalidInput(_too_many("output", name, count))
    array = arrays.from_raw(raw, datatype, [count])
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise InvalidInput(
            f"output {name!r} has elements that are infinite or not a number, which JSON cannot "
            "represent; request binary_data"
        )
    if datatype != "BYTES":
        elements: list[Any] = array.tolist()
        return elements
    try:
        return [element.decode() for element in array]
    except UnicodeDecodeError:
        raise InvalidInput(
            f"output {name!r} has elements that are not UTF-8, which JSON cannot represent; "
            "request binary_data"
        ) from None


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


def _flattened(name: str, datatype: str, shape: Sequence[int], data: bytes, count: int) -> bytes:
    """Return JSON data as a flat list, if it is flat or nested like the shape."""
    # Decoding millions of lists takes seconds. Brackets are therefore compared and removed first,
    # by operations on bytes.
    if not data.startswith(b"["):
        raise InvalidInput(f"input {name!r}: its data is not a list")
    # What is around strings, and every second time a string.
    pieces = _STRING.split(data, count + 1) if datatype == "BYTES" else [data]
    layout = b"0".join(pieces[::2])
    found = layout.count(b",") + 1 if layout.strip(b"[], \t\r\n") else 0
    if found != count:
        raise InvalidInput(f"input {name!r} needs {count:,} elements for its shape, not {found:,}")
    if not count:
        return b"[]"
    structure = layout.translate(None, _NOT_STRUCTURE)
    if structure == b"[%b]" % (b"," * (count - 1)):
        return data
    if structure != _structure(shape, len(structure)):
        raise InvalidInput(f"input {name!r}: its data is neither flat nor nested like its shape")
    pieces[::2] = [each.translate(None, b"[]") for each in pieces[::2]]
    return b"[%b]" % b"".join(pieces)


def _structure(shape: Sequence[int], most: int) -> bytes:
    """Return the brackets and commas of a list that is nested like `shape`, without zeros.

    Only a part of them if they are longer than `most`, as they may exceed the memory.
    """
    inner = b""
    for size in reversed(shape):
        if len(inner) * size > most:
            break
        inner = b"[%b]" % ((inner + b",") * size)[:-1]
    return inner
