"""Sequences of frames that a legal client may send, drawn from a seed."""

import random
import struct
from dataclasses import dataclass, field
from typing import Final

from hpack import Encoder

from tests import http2
from tests.gate.conversation import (
    ENABLE_PUSH,
    FIRST_WINDOW,
    HEADER_TABLE_SIZE,
    INITIAL_WINDOW,
    MAX_CONCURRENT,
    MAX_FRAME,
    Conversation,
)
from tests.gate.service import ECHO, STREAM, WAIT
from tests.http2 import frame

UNLIKE_GRPCIO: Final = {
    "padded HEADERS": "grpcio takes the padding for fields, and closes the connection",
    "padded DATA": "grpcio takes the padding for messages, and resets the call",
    "a unary call without a request": "grpcio never answers; ours ends it with INTERNAL",
    "a deadline that passes before the request": "grpcio never answers; ours ends it in time",
    "a table of fields of less than 4,096 bytes": "grpcio may not say that it has reduced it",
    "more than two PING without data": "grpcio closes the connection: too_many_pings",
}
"""What a legal client may send that the two servers treat differently, and how."""
_UNKNOWN: Final = 0xEE
_MISSING: Final = "/gate.Echo/Missing"
_METHODS: Final = 5 * (ECHO, STREAM) + (_MISSING, WAIT)
_GRANTS: Final = (1, 7, 100, FIRST_WINDOW)
_SIZES: Final = (0, 1, 20, 300, 5_000, 40_000)
_FEW: Final = 40
"""Bytes of messages where the client takes one byte at a time."""


@dataclass(slots=True)
class Step:
    """What is sent at once.

    Attributes:
        data: the bytes.
        stream: the stream whose windows the data needs, or which is opened; 0 for none.
        size: bytes of the windows.
        window: the new window of all streams, in place of data; None to leave it.
    """

    data: bytes = b""
    stream: int = 0
    size: int = 0
    window: int | None = None


@dataclass(slots=True)
class _Fields:
    """Fields to be encoded when their turn has come, as they change the table."""

    stream: int
    fields: list[tuple[str, str]]
    ends: bool


@dataclass(slots=True)
class Sequence:
    """What a client sends on one connection.

    Attributes:
        settings: its first settings.
        grant: bytes by which it widens an empty window.
        steps: what it sends.
        streams: the streams whose answers count: those that it does not reset.
        last: the highest stream.
        settings_sent: how many frames of settings.
    """

    settings: dict[int, int]
    grant: int
    steps: list[Step] = field(default_factory=list)
    streams: set[int] = field(default_factory=set)
    last: int = 0
    settings_sent: int = 1


def draw(seed: int, *, for_grpcio: bool = False) -> Sequence:
    """Return the sequence of a seed.

    Args:
        seed: chooses it.
        for_grpcio: leave out what grpcio cannot do, see `UNLIKE_GRPCIO`.
    """
    return _Draw(seed, for_grpcio=for_grpcio).sequence


class _Draw:
    def __init__(self, seed: int, *, for_grpcio: bool = False) -> None:
        self._random = random.Random(seed)
        self._for_grpcio = for_grpcio
        self._encoder = Encoder()
        # Calls with deadlines, whose frames are sent together.
        self._timed = set[int]()
        self.sequence = Sequence(self._settings(), self._random.choice(_GRANTS))
        self._is_slow = self.sequence.grant < FIRST_WINDOW
        calls = [self._call(2 * each + 1) for each in range(self._random.randint(1, 5))]
        self.sequence.last = 2 * len(calls) - 1
        self._interleave(calls)

    def _settings(self) -> dict[int, int]:
        choices = {
            HEADER_TABLE_SIZE: (0, 64, 4096, 65_536),
            ENABLE_PUSH: (0,),
            MAX_CONCURRENT: (0, 100),
            INITIAL_WINDOW: (0, 1, 10, FIRST_WINDOW, 1 << 20),
            MAX_FRAME: (16_384, 1 << 20),
            0x99: (7,),  # unknown ones are to be ignored
        }
        drawn = {key: self._random.choice(values) for key, values in choices.items()}
        drawn = {key: value for key, value in drawn.items() if self._random.random() < 0.5}
        if self._for_grpcio:
            drawn.pop(HEADER_TABLE_SIZE, None)
        return drawn

    def _call(self, stream: int) -> list[Step | _Fields]:
        """Return the steps of a call, in their order."""
        choose = self._random
        path = choose.choice(_METHODS)
        fields = [*http2.call_fields(path), *self._metadata()]
        if path == WAIT:
            fields.append(("grpc-timeout", "30m"))
            self._timed.add(stream)
        count = choose.randint(0, 4) if path == STREAM else 1
        data = b"".join(self._message() for _ in range(count))
        ends_by = choose.choice(("data", "empty data", "trailers", "reset"))
        if not data and ends_by == "data":
            return [_Fields(stream, fields, ends=True), *self._end(stream, "answer")]
        steps: list[Step | _Fields] = [_Fields(stream, fields, ends=False)]
        pieces = self._pieces(data)
        for number, piece in enumerate(pieces, 1):
            is_last = number == len(pieces) and ends_by == "data"
            steps.append(self._data(stream, piece, ends=is_last))
        steps += self._end(stream, ends_by)
        if ends_by == "reset":
            return steps[: choose.randint(1, len(steps) - 1)] + steps[-1:]
        return steps

    def _end(self, stream: int, ends_by: str) -> list[Step | _Fields]:
        """Return what ends a call, behind its data."""
        if ends_by == "reset":
            return [Step(http2.reset(stream))]
        self.sequence.streams.add(stream)
        if ends_by == "empty data":
            return [Step(frame(http2.DATA, http2.END_STREAM, stream))]
        if ends_by == "trailers":
            return [_Fields(stream, self._metadata(), ends=True)]
        return []

    def _metadata(self) -> list[tuple[str, str]]:
        """Return fields; some are repeated, so that they come from the table."""
        names = [f"x-{self._random.randrange(8)}" for _ in range(self._random.randrange(6))]
        return [(name, name * self._random.choice((1, 1, 20))) for name in names]

    def _message(self) -> bytes:
        size = self._random.choice(_SIZES)
        data = bytes(min(size, _FEW) if self._is_slow else size)
        return struct.pack(">BI", 0, len(data)) + data

    def _pieces(self, data: bytes) -> list[bytes]:
        """Cut data into frames, of which some are empty."""
        cuts = sorted(self._random.choices(range(len(data) + 1), k=self._random.randrange(5)))
        ends = zip([0, *cuts], [*cuts, len(data)], strict=True)
        pieces = [data[start:end] for start, end in ends]
        size = http2.LARGEST_FRAME - 256
        return [
            piece[at : at + size] for piece in pieces for at in range(0, max(len(piece), 1), size)
        ]

    def _data(self, stream: int, data: bytes, *, ends: bool) -> Step:
        flags = http2.END_STREAM if ends else 0
        pads, padded = self._random.random() < 0.3, self._padded(data)
        if pads and not self._for_grpcio:
            flags, data = flags | http2.PADDED, padded
        return Step(frame(http2.DATA, flags, stream, data), stream, len(data))

    def _padded(self, data: bytes) -> bytes:
        padding = self._random.choice((0, 1, 255))
        return bytes([padding]) + data + bytes(padding)

    # --- the order ------------------------------------------------------------------------------

    def _interleave(self, calls: list[list[Step | _Fields]]) -> None:
        """Mix the calls, which are opened in their order, and frames of the connection."""
        waiting, begun = calls[::-1], list[list[Step | _Fields]]()
        while waiting or begun:
            if waiting and (not begun or self._random.random() < 0.3):
                call = waiting.pop()
                begun.append(call)
            else:
                call = self._random.choice(begun)
            count = len(call) if call[0].stream in self._timed else 1
            for step in call[:count]:
                self.sequence.steps.append(step if isinstance(step, Step) else self._encode(step))
            del call[:count]
            if not call:
                begun.remove(call)
            if self._random.random() < 0.3:
                self.sequence.steps.append(self._of_connection())

    def _encode(self, fields: _Fields) -> Step:
        """Return a header block in one frame or several, large or small."""
        choose = self._random
        huffman = choose.random() < 0.5
        # Some sensitive, which are never indexed; a table that shrinks and grows at times.
        if choose.random() < 0.1:
            self._encoder.header_table_size = choose.choice((0, 100, 4096))
        named = [(name, value, choose.random() < 0.2) for name, value in fields.fields]
        block = self._encoder.encode(named, huffman=huffman)
        flags = http2.END_STREAM if fields.ends else 0
        pieces = [block]
        if choose.random() < 0.4:
            size = choose.choice((1, 7, 50))
            pieces = [block[at : at + size] for at in range(0, len(block), size)] or [b""]
            if choose.random() < 0.3:
                pieces.insert(0, b"")
        first, pads = pieces[0], choose.random() < 0.3
        if choose.random() < 0.3:
            flags |= http2.WITH_PRIORITY
            first = struct.pack(">IB", 0, 15) + first
        padded = self._padded(first)
        if pads and not self._for_grpcio:
            flags, first = flags | http2.PADDED, padded
        kinds = [(http2.HEADERS, flags, first)]
        kinds += [(http2.CONTINUATION, 0, piece) for piece in pieces[1:]]
        kind, flags, last = kinds.pop()
        kinds.append((kind, flags | http2.END_HEADERS, last))
        data = b"".join(frame(kind, flags, fields.stream, piece) for kind, flags, piece in kinds)
        return Step(data, fields.stream)

    def _of_connection(self) -> Step:
        choose = self._random
        stream = choose.choice((1, 3, self.sequence.last + 2))
        kind = choose.randrange(5)
        if kind == 0:
            ping = frame(http2.PING, 0, 0, choose.randbytes(8))
            return Step(b"" if self._for_grpcio else ping)
        if kind == 1:
            return Step(frame(http2.PRIORITY, 0, stream, struct.pack(">IB", 0, 200)))
        if kind == 2:
            return Step(frame(_UNKNOWN, choose.randrange(256), stream, bytes(choose.randrange(50))))
        if kind == 3:
            return Step(frame(http2.WINDOW_UPDATE, 0, 0, struct.pack(">I", choose.randint(1, 9))))
        self.sequence.settings_sent += 1
        return Step(window=choose.choice((0, 1, 50, FIRST_WINDOW)))


def send(sequence: Sequence, conversation: Conversation, steps: int | None = None) -> None:
    """Send the steps of a sequence, or the first ones; what has arrived is read between them."""
    for step in sequence.steps[:steps]:
        if step.window is not None:
            conversation.change_window(step.window)
        elif step.size:
            conversation.send_data(step.data, step.stream, step.size)
        else:
            conversation.send(step.data)
            if step.stream:
                conversation.open(step.stream)
        conversation.read_waiting()
