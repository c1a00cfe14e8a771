"""Header blocks that a client sends: their decoding (HPACK, RFC 7541), and what they say."""

from __future__ import annotations

import base64
import binascii
import logging
import re
from typing import TYPE_CHECKING, Final

from hpack import HPACKError
from hpack.huffman_table import decode_huffman
from hpack.table import HeaderTable
from msgspec import Struct
from msgspec.structs import replace

from synergai.errors import InternalError, InvalidInput, Overloaded, SynergaiError
from synergai.wire.native.http2 import COMPRESSION_ERROR, ENHANCE_YOUR_CALM, ConnectionFault

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import TypeAlias

    from synergai.wire.server_call import Metadata

    Field: TypeAlias = tuple[bytes, bytes]

MAX_FIELD_BYTES: Final = 16384
"""Most bytes of the fields of a call once they are decoded, each with `FIELD_OVERHEAD` more."""
FIELD_OVERHEAD: Final = 32
"""Bytes that a field counts beside its name and value."""
_TOO_LONG: Final = bytes(MAX_FIELD_BYTES + 1)
"""Stands for a longer name or value, which fits neither the limit nor the table."""
_MOST_CUT: Final = 8 * MAX_FIELD_BYTES
"""Bytes that are kept of a field that has not arrived in full."""
_MOST_SURPLUS: Final = 50_000
"""Fields beyond the limit: more than that is a bomb."""
_INDICES: Final = bytes(range(0x81, 0xFF))
_SOME_TIMEOUT: Final = (b"grpc-timeout", b"1S")
_KNOWN_BLOCKS: Final = 64
_KNOWN_FIELDS: Final = 256
_KNOWN_BYTES: Final = 128
"""Largest block that is remembered."""
_KNOWN_METADATA: Final = 32
"""Most metadata that is remembered with it: one field of commas may be thousands."""
_UNITS_S: Final = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
_REQUIRED: Final = (b":method", b":scheme", b":path")
_PSEUDO: Final = frozenset((*_REQUIRED, b":authority"))
_OF_TRANSPORT: Final = frozenset((b"te", b"grpc-accept-encoding"))
_OF_CONNECTION: Final = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade")
)
_NAME: Final = re.compile(rb"[!-9;-@\[-~]+")
_FORBIDDEN_IN_VALUE: Final = re.compile(rb"[\0\r\n]")
_MOST_DIGITS: Final = 19
logging.getLogger("hpack").setLevel(logging.INFO)  # below, it logs values, tokens among them


class BlockDecoder:
    """Decodes header blocks, each to its end: the next ones refer to the table that it leaves.

    Attributes:
        changes: how often the table was changed.
        has_begun: whether a part of a block was decoded, and not yet its last one.
        surplus: fields of the last block beyond the limit.
    """

    def __init__(self) -> None:
        self._table = HeaderTable()
        self.changes = self.surplus = self._enough = 0
        self._begin()

    def _begin(self) -> None:
        self.has_begun = False
        self._fields: list[Field] = []
        self._room = MAX_FIELD_BYTES
        # The beginning of a field, which is decoded again once there is twice as much of it.
        self._cut = b""
        # Bytes still to come of a value that is too long.
        self._skipped = 0

    def feed(self, part: bytes) -> None:
        """Decode the next part of a block.

        Raises:
            ConnectionFault: it is malformed, and the table unknown from here on.
        """
        if not self.has_begun:
            self.has_begun, self.surplus = True, 0
        elif len(self._cut) > _MOST_CUT or self.surplus > _MOST_SURPLUS:
            raise ConnectionFault("header fields that are too long or too many", ENHANCE_YOUR_CALM)
        block, fields, room = self._cut + part, self._fields, self._room
        table = self._table
        at = begin = self._skipped
        end = len(block)
        if end < self._enough:
            self._cut = block
            return
        self._enough = 0
        try:
            while at < end:
                begin, first = at, block[at]
                if first & 0x80:
                    if room < 0:  # maybe a bomb: all that counts is that its entries exist
                        known = _INDICES[: len(table.STATIC_TABLE) + len(table.dynamic_entries)]
                        at = end - len(block[at:].lstrip(known))
                        self.surplus += at - begin
                        if at > begin:
                            continue
                    if first == 0xFF:
                        index, at = _integer(block, at, 0x7F)
                    else:  # most fields
                        index, at = first & 0x7F, at + 1
                    field = table.get_by_index(index)
                elif first & 0x40:
                    field, at = self._literal(block, at, 0x3F)
                    self.changes += 1
                    table.add(*field)
                elif first & 0x20:
                    if room != MAX_FIELD_BYTES:
                        raise _malformed()
                    at = self._resize(block, at)
                    continue
                else:
                    field, at = self._literal(block, at, 0x0F)
                room -= FIELD_OVERHEAD + len(field[0]) + len(field[1])
                if room >= 0:
                    fields.append(field)
                else:
                    self.surplus += 1
        except IndexError:  # the field is cut
            at, self._enough = begin, 2 * (end - begin)
        except HPACKError:
            raise _malformed() from None
        self._room, self._cut, self._skipped = room, block[at:], max(0, at - end)

    def end(self) -> list[Field] | None:
        """Return the fields of a block that has arrived; None if they take too many bytes.

        Raises:
            ConnectionFault: it ends within a field.
        """
        if self._cut:
            self._enough = 0
            self.feed(b"")
        fields = None if self._room < 0 else self._fields
        if self._cut or self._skipped:
            raise _malformed()
        self._begin()
        return fields

    def _literal(self, block: bytes, at: int, mask: int) -> tuple[Field, int]:
        index, at = _integer(block, at, mask)
        if index:
            name = self._table.get_by_index(index)[0]
        else:
            name, at = _string(block, at)
        value, at = _string(block, at)
        return (name, value), at

    def _resize(self, block: bytes, at: int) -> int:
        most, at = _integer(block, at, 0x1F)
        if most > HeaderTable.DEFAULT_SIZE:  # as the server's settings name no other
            raise _malformed()
        self.changes += 1
        self._table.maxsize = most
        return at


def _malformed() -> ConnectionFault:
    return ConnectionFault("a malformed header block", COMPRESSION_ERROR)


def _integer(block: bytes, at: int, mask: int) -> tuple[int, int]:
    """Return an integer (5.1) whose prefix has this mask, and where it ends."""
    value = block[at] & mask
    at += 1
    if value < mask:
        return value, at
    for shift in range(0, 28, 7):
        byte = block[at]
        at += 1
        value += (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise _malformed()


def _string(block: bytes, at: int) -> tuple[bytes, int]:
    """Return a name or value (5.2), and where it ends, if it is too long maybe behind the block."""
    is_coded = block[at] & 0x80
    size, at = _integer(block, at, 0x7F)
    end = at + size
    if size >= len(_TOO_LONG):  # also decoded: encoders use the code where it is shorter
        return _TOO_LONG, end
    if end > len(block):
        raise IndexError
    text = block[at:end]
    return decode_huffman(text) if is_coded else text, end


class CallHeaders(Struct, frozen=True):
    """What the header block of a call, or of its trailers, says.

    Attributes:
        timeout_s: seconds until its deadline; None if it has none.
        encoding: how its compressed messages are compressed.
        metadata: the other fields, but those that belong to the transport.
        fault: why the call is refused with a status; None if it is not.
        malformed: why HTTP forbids to handle it (RFC 9113, 8.1.1); empty if it does not.
        content_length: bytes of the data of the call; None if it names none.
        has_pseudo: whether it has fields of a request, which trailers may not have.
    """

    path: str = ""
    timeout_s: float | None = None
    encoding: str = "identity"
    metadata: Metadata = ()
    is_grpc: bool = True
    fault: SynergaiError | None = None
    malformed: str = ""
    content_length: int | None = None
    has_pseudo: bool = False


TOO_LARGE: Final = CallHeaders(
    fault=Overloaded(
        f"the metadata of the call takes more than {MAX_FIELD_BYTES:,} bytes, with "
        f"{FIELD_OVERHEAD} more for each field: send less"
    ),
    has_pseudo=True,
)


class HeaderDecoder(BlockDecoder):
    """Decodes the header blocks of one connection; all parts of a block but the last are fed."""

    def __init__(self) -> None:
        super().__init__()
        # Clients repeat themselves: a block means the same as long as the table does not change.
        self._known: dict[bytes, CallHeaders] = {}
        self._known_changes = 0

    def decode(self, part: bytes) -> CallHeaders:
        """Return what a block says whose last part this is, or its only one.

        Raises:
            ConnectionFault: it is malformed, and the table unknown from here on.
        """
        is_whole = not self.has_begun
        if is_whole and (known := self._known.get(part)) is not None:
            return known
        self.feed(part)
        fields = self.end()
        is_short = is_whole and len(part) <= _KNOWN_BYTES
        read = _read_repeated if is_short else _read
        headers = TOO_LARGE if fields is None else read(fields)
        if self.changes != self._known_changes:
            self._known_changes = self.changes
            self._known.clear()
        elif is_short and len(self._known) < _KNOWN_BLOCKS and _is_light(headers):
            self._known[part] = headers
        return headers


def _read_repeated(fields: list[Field]) -> CallHeaders:
    """Do the same as `_read` with fields that clients may repeat but for the deadline."""
    same, timeout = fields.copy(), None
    for place, (name, value) in enumerate(fields):
        if name == b"grpc-timeout":
            if timeout is not None:
                return _read(fields)
            same[place], timeout = _SOME_TIMEOUT, value
    key = tuple(same)
    if (headers := _known_fields.get(key)) is None:
        headers = _read(key)
        if _is_light(headers):
            if len(_known_fields) == _KNOWN_FIELDS:
                _known_fields.clear()
            _known_fields[key] = headers
    if timeout is not None:
        try:
            return replace(headers, timeout_s=_timeout_s(timeout))
        except InvalidInput:
            return _read(fields)
    return headers


def _read(fields: Iterable[Field]) -> CallHeaders:
    pseudo: dict[bytes, str] = {}
    kind = malformed = ""
    encoding, timeout_s, content_length = "identity", None, None
    fault: SynergaiError | None = None
    metadata: list[tuple[str, str | bytes]] = []
    for place, (name, value) in enumerate(fields):
        if name in _PSEUDO and name not in pseudo and place == len(pseudo):
            pseudo[name] = _text_of(value)
            continue
        if not _is_allowed(name, value):
            malformed = f"the field {name[:40]!r}"
            continue
        try:
            match name:
                case b"content-type":
                    kind = _text_of(value)
                case b"grpc-timeout":
                    timeout_s = _timeout_s(value)
                case b"grpc-encoding":
                    encoding = _text_of(value)
                case b"content-length":
                    content_length = int(value)
                case _ if name in _OF_TRANSPORT:
                    pass
                case _ if name.endswith(b"-bin"):
                    metadata += ((name.decode(), _binary(each)) for each in value.split(b","))
                case _:
                    metadata.append((name.decode(), _text_of(value)))
        except InvalidInput as error:
            fault = InternalError(str(error))
    if pseudo and not all(pseudo.get(each) for each in _REQUIRED):
        malformed = "a request without method, scheme or path"
    # Also application/grpc+proto, but not application/grpc-web.
    is_grpc = pseudo.get(b":method") == "POST" and re.split("[+;]", kind)[0] == "application/grpc"
    return CallHeaders(
        pseudo.get(b":path", ""),
        timeout_s,
        encoding,
        tuple(metadata),
        is_grpc,
        fault,
        malformed,
        content_length,
        bool(pseudo),
    )


_known_fields: dict[tuple[Field, ...], CallHeaders] = {}


def _is_light(headers: CallHeaders) -> bool:
    return len(headers.metadata) <= _KNOWN_METADATA


def _is_allowed(name: bytes, value: bytes) -> bool:
    """Return whether a field other than a pseudo-header may be in a request (RFC 9113, 8.2)."""
    if _NAME.fullmatch(name) is None or _FORBIDDEN_IN_VALUE.search(value) is not None:
        return False
    if name == b"content-length":
        return value.isdigit() and len(value) < _MOST_DIGITS
    return name not in _OF_CONNECTION and (name != b"te" or value == b"trailers")


def _text_of(value: bytes) -> str:
    """Return a value as text; one that is not UTF-8 is legal, and read as grpcio reads it."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


def _timeout_s(text: bytes) -> float:
    number, unit = text[:-1], _UNITS_S.get(text[-1:])
    if unit is None or not number.isdigit() or len(number) > 8:
        raise InvalidInput("a malformed deadline")
    return int(number) * unit


def _binary(text: bytes) -> bytes:
    try:
        return base64.b64decode(text + b"=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise InvalidInput("malformed binary metadata") from None
