"""Header blocks that a client sends: their decoding (HPACK, RFC 7541), and what they say."""

from __future__ import annotations

import base64
import binascii
import logging
import re
from typing import TYPE_CHECKING, Final

from hpack import Decoder, HPACKError, OversizedHeaderListError
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
_MOST_DECODED: Final = 16 * MAX_FIELD_BYTES
"""Bytes of the fields of a call that is refused, and not its connection: more than that is a bomb.
"""
_RESIZES: Final = tuple(bytes((first,)) for first in range(0x20, 0x40))
"""What a block begins with that resizes the table."""
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


class _Table(HeaderTable):
    """A table that counts the entries that were added to it."""

    added = 0

    def add(self, name: bytes, value: bytes) -> None:
        """Add an entry, and remove those for which there is no room with it."""
        self.added += 1
        super().add(name, value)


class HeaderDecoder:
    """Decodes the header blocks of one connection, whose table each of them may change."""

    def __init__(self) -> None:
        self._decoder = Decoder(_MOST_DECODED)
        self._decoder.header_table = self._table = _Table()
        # Clients repeat themselves: a block means the same as long as the table does not change.
        self._known: dict[bytes, CallHeaders] = {}

    def decode(self, block: bytes) -> CallHeaders:
        """Return what a block says.

        Raises:
            ConnectionFault: it is malformed, or takes too much memory, and the table is unknown
                from here on.
        """
        if (known := self._known.get(block)) is not None:
            return known
        added = self._table.added
        try:
            fields: list[Field] = list(self._decoder.decode(block, raw=True))
        except OversizedHeaderListError:
            text = f"header fields that take more than {_MOST_DECODED:,} bytes"
            raise ConnectionFault(text, ENHANCE_YOUR_CALM) from None
        except HPACKError:
            raise ConnectionFault("a malformed header block", COMPRESSION_ERROR) from None
        is_short = len(block) <= _KNOWN_BYTES
        if sum(FIELD_OVERHEAD + len(name) + len(value) for name, value in fields) > MAX_FIELD_BYTES:
            headers = TOO_LARGE
        else:
            headers = _read_repeated(fields) if is_short else _read(fields)
        if self._table.added != added or block.startswith(_RESIZES):
            self._known.clear()
        elif is_short and len(self._known) < _KNOWN_BLOCKS and _is_light(headers):
            self._known[block] = headers
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
