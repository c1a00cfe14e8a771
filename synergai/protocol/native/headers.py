"""Header blocks of calls: what a request says, and the encoded fields of responses."""

from __future__ import annotations

import base64
import binascii
import re
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from hpack import Decoder, HPACKError
from msgspec import Struct

from synergai.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterable

    import grpc

    from synergai.protocol.server_call import Metadata

MAX_FIELD_BYTES: Final = 16384
"""Most bytes of the fields of a call once they are decoded, each with 32 bytes more."""
MAX_FIELDS: Final = 128
"""Most fields of a call."""
_KNOWN_BLOCKS: Final = 64
_KNOWN_BYTES: Final = 128
"""Largest block that is remembered: those that clients repeat refer to the table of HPACK."""
_UNITS_S: Final = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_OF_TRANSPORT: Final = frozenset(
    {"te", "content-type", "grpc-timeout", "grpc-encoding", "grpc-accept-encoding"}
)
RESPONSE: Final = b"\x88\x0f\x10\x10application/grpc"
"""The fields that begin a response: status 200, and the type of its content."""
SUCCEEDED: Final = b"\0\x0bgrpc-status\x010"
"""The field that ends a response."""
UNSUPPORTED_TYPE: Final = b"\x08\x03415"
"""The field that answers what is no call of gRPC."""
NO_TABLE: Final = b"\x20"
"""Begins the first block of a connection: responses use no table, however small the client's is."""


class CallHeaders(Struct, frozen=True):
    """What the header block of a call says.

    Attributes:
        timeout_s: seconds until its deadline; None if it has none.
        encoding: how its compressed messages are compressed.
        metadata: the other fields, but those that belong to the transport.
        fault: what is malformed; empty if nothing is. Other calls of the connection may be those
            of other clients, behind a proxy, so a field ends its own call only.
    """

    path: str
    timeout_s: float | None
    encoding: str
    metadata: Metadata
    is_grpc: bool
    fault: str = ""


class HeaderDecoder:
    """Decodes the header blocks of one connection."""

    def __init__(self) -> None:
        self._decoder = Decoder(MAX_FIELD_BYTES)
        # Clients repeat themselves: a block means the same as long as the table does not change.
        self._known: dict[bytes, CallHeaders] = {}

    def decode(self, block: bytes) -> CallHeaders:
        """Return what a block says.

        Raises:
            InvalidInput: it is malformed.
        """
        if (known := self._known.get(block)) is not None:
            return known
        _check_count(block)
        table = self._decoder.header_table.dynamic_entries
        size, newest = len(table), table[0] if table else None
        try:
            fields: Any = self._decoder.decode(block)  # texts, which its annotations do not say
        except HPACKError as error:
            raise InvalidInput(f"a malformed header block: {error}") from None
        headers = _read(fields)
        if len(table) != size or (table[0] if table else None) is not newest:
            self._known.clear()
        elif len(block) <= _KNOWN_BYTES and len(self._known) < _KNOWN_BLOCKS:
            self._known[block] = headers
        return headers


def _check_count(block: bytes) -> None:
    """Check how many fields a block has, which costs far less than to decode them.

    One of 16 KB may repeat a single field of the table.
    """
    fields = at = 0
    try:
        while at < len(block):
            at = _skip_field(block, at)
            fields += 1
            if fields > MAX_FIELDS:
                raise InvalidInput(f"a call with more than {MAX_FIELDS} header fields")
    except IndexError:
        raise InvalidInput("a malformed header block") from None


def _skip_field(block: bytes, at: int) -> int:
    """Return where the field of HPACK (RFC 7541, 6) at a position ends."""
    first = block[at]
    if first & 0x80:
        return _read_integer(block, at, 0x7F)[1]
    if first & 0xE0 == 0x20:
        return _read_integer(block, at, 0x1F)[1]
    name, at = _read_integer(block, at, 0x3F if first & 0x40 else 0x0F)
    for _ in range(1 if name else 2):
        length, at = _read_integer(block, at, 0x7F)
        at += length
    return at


def _read_integer(block: bytes, at: int, prefix: int) -> tuple[int, int]:
    """Return an integer (RFC 7541, 5.1), and where it ends."""
    value = block[at] & prefix
    at += 1
    if value < prefix:
        return value, at
    for shift in range(0, 28, 7):
        value += (block[at] & 0x7F) << shift
        at += 1
        if block[at - 1] < 0x80:
            return value, at
    raise IndexError


def _read(fields: Iterable[tuple[str, str]]) -> CallHeaders:
    path = method = kind = fault = ""
    timeout_s: float | None = None
    encoding = "identity"
    metadata: list[tuple[str, str | bytes]] = []
    for name, value in fields:
        try:
            match name:
                case ":path":
                    path = value
                case ":method":
                    method = value
                case "content-type":
                    kind = value
                case "grpc-timeout":
                    timeout_s = _timeout_s(value)
                case "grpc-encoding":
                    encoding = value
                case _ if name.startswith(":") or name in _OF_TRANSPORT:
                    pass
                case _ if name.endswith("-bin"):
                    metadata += ((name, _binary(each)) for each in value.split(","))
                case _:
                    metadata.append((name, value))
        except InvalidInput as error:
            fault = str(error)
    # Also application/grpc+proto, but not application/grpc-web.
    is_grpc = method == "POST" and re.split("[+;]", kind)[0] == "application/grpc"
    return CallHeaders(path, timeout_s, encoding, tuple(metadata), is_grpc, fault)


def _timeout_s(text: str) -> float:
    number, unit = text[:-1], _UNITS_S.get(text[-1:])
    if unit is None or not (number.isascii() and number.isdigit()) or len(number) > 8:
        raise InvalidInput("a malformed deadline")
    return int(number) * unit


def _binary(text: str) -> bytes:
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise InvalidInput("malformed binary metadata") from None


def encoded(fields: Iterable[tuple[str, str | bytes]]) -> bytes:
    """Return metadata as fields that no table remembers."""
    block = b""
    for key, value in fields:
        if isinstance(value, bytes):
            value = base64.b64encode(value).rstrip(b"=").decode()
        block += b"".join((b"\0", _text(key), _text(value)))
    return block


def status_fields(code: grpc.StatusCode, details: str, metadata: Metadata) -> bytes:
    """Return the fields that end a call with a status."""
    number: int = code.value[0]
    status = ("grpc-status", str(number)), ("grpc-message", quote(details, safe=_PLAIN))
    return encoded((*status, *metadata))


_PLAIN: Final = "".join(chr(each) for each in range(0x20, 0x7F) if each != 0x25)


def _text(text: str) -> bytes:
    data = text.encode()
    size = len(data)
    if size < 0x7F:
        return bytes((size,)) + data
    prefix = bytearray((0x7F,))
    size -= 0x7F
    while size > 0x7F:
        prefix.append(size & 0x7F | 0x80)
        size >>= 7
    prefix.append(size)
    return bytes(prefix) + data
