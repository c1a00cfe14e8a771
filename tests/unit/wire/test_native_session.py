"""The server's side of HTTP/2."""

import asyncio
import struct
import time
from unittest.mock import patch

import pytest
from hpack import Decoder

from synergai.wire.limits import MAX_CALLS_PER_CONNECTION
from synergai.wire.native.flow import (
    RESPONSE,
    STREAM_WINDOW,
    SUCCEEDED,
    FrameLimits,
    Sender,
    Stream,
)
from synergai.wire.native.headers import MAX_FIELD_BYTES, CallHeaders
from synergai.wire.native.http2 import MAX_FRAME, ConnectionFault
from synergai.wire.native.session import LARGEST_FRAME, MAX_BLOCK, NativeSession
from tests import http2
from tests.http2 import (
    CANCEL,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PING,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    frame,
)

ACK = 0x1
CONTINUATION = 9
CALL = http2.headers(1, "/a/B")
LONG = bytes(9)
Frame = tuple[int, int, int, bytes]


class Owner:
    """Owner of a stream; `log` says what happened on it."""

    def __init__(self, stream: Stream, path: str) -> None:
        self.stream = stream
        self.path = path
        self.log: list[str] = []
        self.data = b""
        self.memory: memoryview | None = None

    def message_buffer(self) -> memoryview | None:
        return self.memory

    def receive_data(self, data: bytes | memoryview) -> None:
        self.data += data

    def end_requests(self) -> None:
        self.log.append("end of requests")

    def sent(self) -> None:
        self.log.append("sent")

    def lost(self) -> None:
        self.log.append("lost")


class Connection(FrameLimits):
    """A session after the client's preface, which counts its frames."""

    def __init__(self, *settings: tuple[int, int]) -> None:
        self._sent = self._unread = b""
        self.owners: list[Owner] = []
        self.counted: list[tuple[int, int]] = []
        self.refused = 0
        self.sender = Sender(self._send)
        self.session = NativeSession(self.sender, self._accept, self)
        payload = b"".join(struct.pack(">HI", *each) for each in settings)
        self.receive(PREFACE + frame(SETTINGS, 0, 0, payload))

    def receive(self, data: bytes) -> None:
        self._unread += data
        self.session.held = True
        while self.session.held:
            self._unread = self._unread[self.session.receive(self._unread, 1000) :]

    def _send(self, data: bytes) -> None:
        self._sent += data

    def count(self, kind: int, size: int) -> None:
        self.counted.append((kind, size))

    def count_refused(self, surplus: int) -> None:
        self.refused += surplus

    def _accept(self, stream: Stream, headers: CallHeaders) -> None:
        stream.owner = owner = Owner(stream, headers.path)
        self.owners.append(owner)

    def call(self) -> Owner:
        self.receive(http2.headers(2 * len(self.owners) + 1, "/a/B"))
        return self.owners[-1]

    async def sent(self) -> list[Frame]:
        """Return the frames that were sent since the last time."""
        await asyncio.sleep(0)
        data, self._sent = self._sent, b""
        frames = []
        while data:
            length, kind, flags = int.from_bytes(data[:3]), data[3], data[4]
            frames.append((kind, flags, int.from_bytes(data[5:9]), data[9 : 9 + length]))
            data = data[9 + length :]
        return frames


@pytest.fixture
async def connection() -> Connection:
    connection = Connection()
    await connection.sent()
    return connection


async def test_settings_come_first_and_are_acknowledged() -> None:
    first, widened, acknowledged = await Connection().sent()
    assert (first[:3], widened[:3]) == ((SETTINGS, 0, 0), (WINDOW_UPDATE, 0, 0))
    assert acknowledged == (SETTINGS, ACK, 0, b"")


async def test_frames_are_understood_however_they_are_cut() -> None:
    connection = Connection()
    sent = CALL + http2.message(1, b"x" * 2000, last=False) + http2.message(1, b"y")
    for at in range(len(sent)):
        connection.receive(sent[at : at + 1])
    [owner] = connection.owners
    assert owner.path == "/a/B"
    assert owner.data == http2.message(1, b"x" * 2000)[9:] + http2.message(1, b"y")[9:]
    assert owner.log == ["end of requests"]


async def test_large_frame_is_passed_on_as_it_arrives(connection: Connection) -> None:
    owner = connection.call()
    content = bytes(range(256)) * 256
    sent = frame(DATA, END_STREAM, 1, content)
    for first in range(0, len(sent), 400):
        connection.receive(sent[first : first + 400])
        assert owner.data == content[: max(0, first + 400 - 9)]
    assert owner.log == ["end of requests"]


async def test_rest_of_a_large_frame_has_a_place(connection: Connection) -> None:
    owner = connection.call()
    owner.memory = memoryview(bytearray(1 << 20))
    content = bytes(range(256)) * 256
    sent = frame(DATA, END_STREAM, 1, content)
    connection.receive(sent[:1000])
    place = connection.session.message_buffer()
    assert place is not None
    assert len(place) == len(sent) - 1000
    place[:] = sent[1000:]
    connection.session.receive_part(place)
    assert connection.session.message_buffer() is None
    assert owner.data == content
    assert owner.log == ["end of requests"]


@pytest.mark.parametrize(("size", "room"), [(1000, 1 << 20), (20_000, 1 << 20), (1 << 20, 20_000)])
async def test_little_data_has_no_place(connection: Connection, size: int, room: int) -> None:
    connection.call().memory = memoryview(bytearray(room))
    connection.receive(frame(DATA, END_STREAM, 1, bytes(size))[:500])
    assert connection.session.message_buffer() is None


async def test_padded_data_may_be_as_large_as_other_frames(connection: Connection) -> None:
    owner = connection.call()
    content = bytes(MAX_FRAME - 2)
    connection.receive(frame(DATA, 0x8, 1, b"\x01" + content + b"\0"))
    assert owner.data == content


async def test_response_ends_its_stream(connection: Connection) -> None:
    owner = connection.call()
    connection.receive(http2.message(1, b"x"))
    owner.stream.respond(RESPONSE, b"data", SUCCEEDED)
    assert await connection.sent() == [
        (HEADERS, END_HEADERS, 1, RESPONSE),
        (DATA, 0, 1, b"data"),
        (HEADERS, END_HEADERS | END_STREAM, 1, SUCCEEDED),
    ]
    assert connection.session.ended


@pytest.mark.parametrize("size", [16384, 16385, 40000])
async def test_large_header_block_is_sent_in_several_frames(
    connection: Connection, size: int
) -> None:
    connection.call().stream.end_response(bytes(size))
    frames = await connection.sent()
    kinds = [kind for kind, *_ in frames if kind != RST_STREAM]
    assert kinds == [HEADERS, *[CONTINUATION] * ((size - 1) // 16384)]
    blocks = [(flags, payload) for kind, flags, _, payload in frames if kind != RST_STREAM]
    assert b"".join(payload for _, payload in blocks) == bytes(size)
    assert all(len(payload) <= 16384 for _, payload in blocks)
    assert [flags & END_HEADERS for flags, _ in blocks] == [0] * (len(blocks) - 1) + [END_HEADERS]
    assert [flags & END_STREAM for flags, _ in blocks] == [END_STREAM] + [0] * (len(blocks) - 1)


async def test_responses_begin_with_a_table_that_no_setting_can_make_too_large() -> None:
    connection = Connection((1, 0))
    connection.call().stream.respond(RESPONSE, b"data", SUCCEEDED)
    decoder = Decoder()
    decoder.max_allowed_table_size = 0
    blocks = [payload for kind, _, _, payload in await connection.sent() if kind == HEADERS]
    firsts: list[object] = [next(iter(decoder.decode(block))) for block in blocks]
    assert firsts == [(":status", "200"), ("grpc-status", "0")]


async def test_client_that_sends_more_than_is_read_is_told_to_stop(connection: Connection) -> None:
    connection.call().stream.end_response(SUCCEEDED)
    assert (await connection.sent())[-1] == (RST_STREAM, 0, 1, bytes(4))
    connection.receive(http2.message(1, b"late"))
    assert not connection.owners[0].data


async def test_frames_of_a_turn_are_sent_together_but_the_first(connection: Connection) -> None:
    owner = connection.call()
    written: list[int] = []
    connection.sender._write = lambda data: written.append(len(data))
    for _ in range(3):
        owner.stream.send(b"x")
    await asyncio.sleep(0)
    assert written == [10, 20]


async def test_frames_are_sent_before_the_end_of_the_turn_if_they_are_many() -> None:
    connection = Connection((4, 1 << 20))
    connection.receive(frame(WINDOW_UPDATE, 0, 0, (1 << 20).to_bytes(4)))
    await connection.sent()
    owner = connection.call()
    written: list[int] = []
    connection.sender._write = lambda data: written.append(len(data))
    for _ in range(8):
        owner.stream.send(bytes(16_000 - 9))
    assert written == [16_000, 5 * 16_000]
    await asyncio.sleep(0)
    assert written == [16_000, 5 * 16_000, 2 * 16_000]


# --- flow control ---------------------------------------------------------------------------------


async def test_no_more_is_sent_than_the_client_takes(connection: Connection) -> None:
    owner = connection.call()
    owner.stream.respond(RESPONSE, bytes(100_000), SUCCEEDED)
    begin, *frames = await connection.sent()
    assert begin == (HEADERS, END_HEADERS, 1, RESPONSE)
    assert [len(each[3]) for each in frames] == [MAX_FRAME] * 3 + [65_535 - 3 * MAX_FRAME]
    more = (1_000_000).to_bytes(4)
    connection.receive(frame(WINDOW_UPDATE, 0, 1, more))
    assert await connection.sent() == []
    assert owner.stream.is_blocked
    connection.receive(frame(WINDOW_UPDATE, 0, 0, more))
    *frames, end, _ = await connection.sent()
    assert sum(len(each[3]) for each in frames) == 100_000 - 65_535
    assert end == (HEADERS, END_HEADERS | END_STREAM, 1, SUCCEEDED)
    assert owner.log == ["sent"]
    assert not connection.sender.blocked


async def test_streams_share_the_window_of_the_connection(connection: Connection) -> None:
    owners = [connection.call() for _ in range(2)]
    for owner in owners:
        owner.stream.send(bytes(40_000))
    assert sum(len(each[3]) for each in await connection.sent()) == 65_535
    assert [owner.stream.is_blocked for owner in owners] == [False, True]


async def test_window_that_is_set_repeatedly_counts_once() -> None:
    connection = Connection((4, 10))
    await connection.sent()
    connection.call().stream.send(bytes(30))
    await connection.sent()
    settings = b"".join(struct.pack(">HI", 4, size) for size in (30, 0, 25))
    connection.receive(frame(SETTINGS, 0, 0, settings))
    assert [len(each[3]) for each in await connection.sent()] == [0, 15]


@pytest.mark.parametrize("number", [0, 1])
async def test_small_windows_do_not_cost_a_look_at_every_call(
    connection: Connection, number: int
) -> None:
    owners = [connection.call() for _ in range(MAX_CALLS_PER_CONNECTION)]
    with patch.object(Stream, "unblock", autospec=True, side_effect=Stream.unblock) as looks:
        for owner in owners:
            owner.stream.send(bytes(70_000))
        connection.receive(frame(WINDOW_UPDATE, 0, number, (1).to_bytes(4)) * 100)
    assert looks.call_count < 2 * MAX_CALLS_PER_CONNECTION + 100


async def test_nothing_is_sent_while_the_connection_takes_nothing(connection: Connection) -> None:
    owner = connection.call()
    connection.sender.writable = False
    owner.stream.respond(RESPONSE, b"data", SUCCEEDED)
    assert [each[0] for each in await connection.sent()] == [HEADERS]
    connection.sender.writable = True
    connection.sender.send_blocked()
    assert [each[0] for each in await connection.sent()] == [DATA, HEADERS, RST_STREAM]


async def test_client_may_send_more_once_its_data_is_read(connection: Connection) -> None:
    owner = connection.call()
    part = frame(DATA, 0, 1, bytes(MAX_FRAME))
    parts = STREAM_WINDOW // MAX_FRAME
    connection.receive(part * parts)
    assert await connection.sent() == []
    owner.stream.widen_window()
    assert await connection.sent() == [(WINDOW_UPDATE, 0, 1, STREAM_WINDOW.to_bytes(4))]
    connection.receive(part * parts)
    assert owner.log == []
    connection.receive(part)
    assert owner.log == ["lost"]


async def test_data_of_all_calls_is_acknowledged_once_it_takes_half_their_window() -> None:
    with patch("synergai.wire.native.session._CONNECTION_WINDOW", 40_000):
        connection = Connection()
        connection.call()
        await connection.sent()
        for acknowledged in ([], [(WINDOW_UPDATE, 0, 0, (24_000).to_bytes(4))]):
            connection.receive(frame(DATA, 0, 1, bytes(12_000)))
            assert await connection.sent() == acknowledged


async def test_data_that_arrives_slowly_is_acknowledged_every_second(
    connection: Connection,
) -> None:
    connection.call()
    connection.receive(frame(DATA, 0, 1, bytes(MAX_FRAME))[:5000])
    [(kind, _, stream, received)] = await connection.sent()
    assert (kind, stream, int.from_bytes(received)) == (WINDOW_UPDATE, 0, 5000 - 9)
    connection.receive(bytes(5000))
    assert await connection.sent() == []
    with patch("time.monotonic", return_value=time.monotonic() + 1.1):
        connection.receive(bytes(5000))
    assert await connection.sent() == [(WINDOW_UPDATE, 0, 0, (10_000).to_bytes(4))]


async def test_ended_call_may_not_send_more(connection: Connection) -> None:
    stream = connection.call().stream
    connection.receive(frame(DATA, 0, 1, bytes(MAX_FRAME)) * (STREAM_WINDOW // MAX_FRAME))
    stream.end_response(SUCCEEDED)
    await connection.sent()
    stream.widen_window()
    assert await connection.sent() == []


# --- ends -----------------------------------------------------------------------------------------


async def test_reset_ends_a_call(connection: Connection) -> None:
    owner = connection.call()
    connection.receive(http2.reset(1))
    assert owner.log == ["lost"]
    assert connection.session.ended


async def test_client_that_leaves_ends_its_calls(connection: Connection) -> None:
    owners = [connection.call() for _ in range(3)]
    owners[1].stream.send(bytes(100_000))
    await connection.sent()
    connection.session.lose_calls(1000)
    assert not connection.sender.blocked
    owners[0].stream.respond(RESPONSE, b"data", SUCCEEDED)
    assert [owner.log for owner in owners] == [["lost"]] * 3
    assert await connection.sent() == []


@pytest.mark.parametrize("by_client", [False, True])
async def test_reset_stream_sends_nothing_more(*, by_client: bool) -> None:
    connection = Connection((4, 1 << 20))
    owner = connection.call()
    owner.stream.send(bytes(100_000))
    await connection.sent()
    if by_client:
        connection.receive(http2.reset(1))
    else:
        owner.stream.reset(CANCEL)
    assert not connection.sender.blocked
    connection.receive(frame(WINDOW_UPDATE, 0, 0, (1 << 20).to_bytes(4)))
    sent = [] if by_client else [(RST_STREAM, 0, 1, CANCEL.to_bytes(4))]
    assert await connection.sent() == sent


async def test_connection_ends_after_its_calls_and_pings(connection: Connection) -> None:
    owner = connection.call()
    connection.session.end_soon()
    connection.receive(frame(PING, ACK, 0, b"synergai"))
    assert not connection.session.ended
    owner.stream.respond(RESPONSE, b"first", SUCCEEDED)
    await connection.sent()
    assert connection.session.ended


async def test_connection_is_idle_between_calls(connection: Connection) -> None:
    def is_idle() -> bool:
        return connection.session.idle_since is not None

    assert is_idle()
    owner = connection.call()
    assert not is_idle()
    owner.stream.end_response(SUCCEEDED)
    assert is_idle()


async def test_calls_beyond_the_limit_are_refused_and_can_be_retried(
    connection: Connection,
) -> None:
    for _ in range(MAX_CALLS_PER_CONNECTION):
        connection.call()
    number = 2 * MAX_CALLS_PER_CONNECTION + 1
    connection.receive(http2.headers(number, "/a/B"))
    assert len(connection.owners) == MAX_CALLS_PER_CONNECTION
    assert await connection.sent() == [(RST_STREAM, 0, number, (7).to_bytes(4))]


async def test_calls_that_are_reset_allow_no_more_data_than_as_many_as_can_be_open(
    connection: Connection,
) -> None:
    for _ in range(MAX_CALLS_PER_CONNECTION + 10):
        owner = connection.call()
        connection.receive(http2.reset(2 * len(connection.owners) - 1))
    assert owner.log == ["lost"]
    late = data_of(STREAM_WINDOW)
    for _ in range(MAX_CALLS_PER_CONNECTION):
        connection.receive(late)
    with pytest.raises(ConnectionFault, match="data of calls that have ended"):
        connection.receive(http2.message(1, b"x"))


def data_of(size: int) -> bytes:
    """Return the frames of this much data of a call."""
    return b"".join(
        frame(DATA, 0, 1, bytes(min(MAX_FRAME, size - at))) for at in range(0, size, MAX_FRAME)
    )


VIOLATIONS: dict[str, tuple[bytes, int]] = {
    "an unknown frame that is too large": (frame(0xFA, 0, 0, bytes(LARGEST_FRAME + 1)), 6),
    "settings that are too many": (frame(SETTINGS, 0, 0, bytes(6 * 200)), 11),
    "a call that has begun before": (http2.reset(1) + CALL, 1),
    "a long ping": (frame(PING, 0, 0, LONG), 6),
    "data beyond what an ended call may send": (
        http2.reset(1) + b"".join([frame(DATA, 0, 1, bytes(MAX_FRAME))] * 65),
        5,
    ),
    "a block that another stream continues": (
        http2.headers(3, "/a/B", ends=False) + frame(CONTINUATION, END_HEADERS, 1),
        1,
    ),
    "a block that never ends": (
        http2.headers(3, "/a/B", ends=False)
        + frame(CONTINUATION, 0, 3, b"\x90" * MAX_FRAME) * (MAX_BLOCK // MAX_FRAME),
        11,
    ),
}
"""What `tests.gate.rules.RULES` does not try."""


async def test_other_protocols_are_refused_at_the_first_byte_and_http_1_is_told_the_port() -> None:
    sent: list[bytes] = []

    def session() -> NativeSession:
        return NativeSession(Sender(sent.append), lambda *_: None, FrameLimits())

    begun = session()
    assert begun.receive(PREFACE[:5], 1) == 5
    with pytest.raises(ConnectionFault, match="no HTTP/2"):
        begun.receive(b"x", 1)
    assert not sent
    with pytest.raises(ConnectionFault, match="no HTTP/2"):
        session().receive(b"GET / HTTP/1.1\r\n", 1)
    head, _, body = b"".join(sent).partition(b"\r\n\r\n")
    assert head.endswith(b"Content-Length: %d" % len(body))
    assert b"REST" in body


async def test_calls_are_held_back_beyond_a_number(connection: Connection) -> None:
    session = connection.session
    ping = frame(PING, 0, 0, bytes(8))
    calls = [http2.headers(number, "/a/B") + http2.message(number, b"x") for number in (1, 3, 5)]
    assert session.receive(ping + b"".join(calls), 2) == len(ping + calls[0] + calls[1])
    assert (len(connection.owners), session.begun, session.held) == (2, 2, True)
    assert session.receive(calls[2], 0) == 0
    assert session.receive(calls[2], 1) == len(calls[2])
    assert (len(connection.owners), session.begun, session.held) == (3, 1, False)


@pytest.mark.parametrize("size", [1, 2, 7, 100, 5000])
async def test_frames_are_counted_once_however_they_are_cut(
    connection: Connection, size: int
) -> None:
    sent = [
        (HEADERS, http2.headers(1, "/a/B")),
        (DATA, frame(DATA, 0, 1, bytes(300))),
        (0xFA, frame(0xFA, 0, 0, bytes(16000))),
        (PING, frame(PING, 0, 0, bytes(8))),
    ]
    data = b"".join(each for _, each in sent)
    connection.counted.clear()
    for at in range(0, len(data), size):
        connection.receive(data[at : at + size])
    assert connection.counted == [(kind, len(each) - 9) for kind, each in sent]


@pytest.mark.parametrize("violation", VIOLATIONS)
async def test_violation_of_the_protocol_is_refused_with_its_code(
    connection: Connection, violation: str
) -> None:
    connection.call()
    sent, code = VIOLATIONS[violation]
    with pytest.raises(ConnectionFault) as fault:
        connection.receive(sent)
    assert fault.value.code == code
    connection.session.last_frame(code, str(fault.value))


async def test_first_frame_has_settings() -> None:
    session = NativeSession(Sender(lambda _: None), lambda *_: None, FrameLimits())
    with pytest.raises(ConnectionFault):
        session.receive(PREFACE + frame(PING, 0, 0, bytes(8)), 1)


@pytest.mark.parametrize("most", [1000, 1 << 21])
@pytest.mark.parametrize(
    ("violation", "code"),
    [
        (http2.message(1, b"x") + frame(DATA, 0, 1, bytes(MAX_FRAME)), 5),
        (data_of(STREAM_WINDOW + MAX_FRAME), 3),
        (frame(HEADERS, END_HEADERS | END_STREAM, 1, b"\0\x01X\x01v"), 1),
    ],
    ids=["data behind the end", "too much data", "malformed trailers"],
)
async def test_violation_by_a_call_ends_it_and_no_other(
    connection: Connection, violation: bytes, code: int, most: int
) -> None:
    broken, other = connection.call(), connection.call()
    sent = violation + http2.message(3, b"x")
    for at in range(0, len(sent), most):
        connection.receive(sent[at : at + most])
    assert broken.log[-1] == "lost"
    assert other.log == ["end of requests"]
    resets = [each for each in await connection.sent() if each[0] == RST_STREAM]
    assert resets == [(RST_STREAM, 0, 1, code.to_bytes(4))]


@pytest.mark.parametrize(
    ("fields", "frames"),
    [
        ((("x\n", "1"),), b""),
        ((("content-length", "5"),), http2.message(5, b"")),
        ((("content-length", "6"),), frame(DATA, END_STREAM, 5, bytes(5))),
        ((("content-length", "6"),), frame(HEADERS, END_HEADERS | END_STREAM, 5, b"")),
        ((("content-length", "4"),), frame(DATA, 0, 5, bytes(5))),
    ],
)
async def test_malformed_call_is_reset_and_no_other(
    connection: Connection, fields: tuple[tuple[str, str], ...], frames: bytes
) -> None:
    legal = fields[0][1] == "5"
    first, second = connection.call(), connection.call()
    connection.receive(http2.headers(5, "/a/B", *fields) + frames + http2.message(3, b"x"))
    assert (first.log, second.log) == ([], ["end of requests"])
    resets = [each for each in await connection.sent() if each[0] == RST_STREAM]
    assert resets == ([] if legal else [(RST_STREAM, 0, 5, (1).to_bytes(4))])


async def test_only_the_first_frame_of_a_block_ends_the_requests(connection: Connection) -> None:
    sent = http2.headers(1, "/a/B", ends=False) + frame(CONTINUATION, END_HEADERS | END_STREAM, 1)
    connection.receive(sent)
    assert [each.log for each in connection.owners] == [[]]


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("size", [1_000, 16_384, LARGEST_FRAME])
@pytest.mark.parametrize("most", [10_000, 1 << 20])
async def test_call_with_a_megabyte_of_metadata_is_refused_and_no_other(
    connection: Connection, most: int, size: int, *, padded: bool
) -> None:
    fields = [(f"x-{number}", "v" * 5_000) for number in range(200)]
    call = http2.headers(1, "/a/B", *fields)
    if padded:
        flags = END_HEADERS | http2.PADDED | http2.WITH_PRIORITY
        call = frame(HEADERS, flags, 1, b"\x64" + bytes(5) + call[9:] + bytes(100))
    else:
        call = http2.in_frames(call, size)
    sent = call + http2.message(1, b"x") + http2.headers(3, "/a/B")
    for at in range(0, len(sent), most):
        connection.receive(sent[at : at + most])
    assert [each.path for each in connection.owners] == ["", "/a/B"]
    assert (connection.owners[0].data[5:], connection.owners[0].log) == (b"x", ["end of requests"])
    assert connection.refused == len(fields) - MAX_FIELD_BYTES // 5_000


@pytest.mark.parametrize("flags", [0, 0x8])
@pytest.mark.parametrize("most", [100, 40_000, 1 << 20])
async def test_frames_may_be_as_large_as_announced(
    connection: Connection, flags: int, most: int
) -> None:
    owner = connection.call()
    content = bytes(range(256)) * 1000
    data = b"\x64" + content + bytes(100) if flags else content
    sent = frame(0xFA, 0, 0, bytes(100_000)) + frame(DATA, END_STREAM | flags, 1, data)
    sent += frame(PING, 0, 0, bytes(8))
    for at in range(0, len(sent), most):
        connection.receive(sent[at : at + most])
    assert (owner.data, owner.log) == (content, ["end of requests"])
    assert owner.stream.room == STREAM_WINDOW - len(data)
    assert (PING, ACK, 0, bytes(8)) in await connection.sent()


async def test_nothing_is_acknowledged_that_was_not_received(connection: Connection) -> None:
    connection.call()
    connection.receive(frame(DATA, 0, 1, bytes(20_000))[:9])
    assert await connection.sent() == []


async def test_last_frame_says_what_was_handled_and_why_the_connection_ends() -> None:
    connection = Connection()
    connection.receive(http2.headers(7, "/a/B"))
    last = connection.session.last_frame(11, "too many frames")
    assert last[9:] == (7).to_bytes(4) + (11).to_bytes(4) + b"too many frames"


async def test_calls_whose_requests_have_arrived_are_kept_without_further_data(
    connection: Connection,
) -> None:
    whole, part = connection.call(), connection.call()
    connection.receive(http2.message(1, b"x"))
    connection.session.lose_incomplete()
    assert (whole.log, part.log) == (["end of requests"], ["lost"])
    assert connection.session.is_busy
    whole.stream.end_response(SUCCEEDED)
    assert not connection.session.is_busy


async def test_long_header_block_takes_the_turns_of_several_calls(connection: Connection) -> None:
    block = http2.headers(1, "/a/B", block=b"\x90" * 16_000)
    assert connection.session.receive(block + http2.headers(3, "/a/B"), 8) == len(block)
    assert connection.session.held
    assert connection.session.begun >= 8
