"""Messages of gRPC in the data of a call."""

import gzip
import random
import tracemalloc
import zlib
from collections.abc import Callable

import pytest

from synergai.errors import InvalidInput, NotSupported, Overloaded
from synergai.wire.native.call import MOST_CUT, PREFIX_BYTES, Compressed, MessageReader, prefixed
from synergai.wire.native.handled_calls import decompress

MAX_BYTES = 1000


def compressed(data: bytes) -> bytes:
    return b"\1" + prefixed(data)[1:]


def reader() -> MessageReader:
    return MessageReader(MAX_BYTES)


@pytest.mark.parametrize("size", [1, 2, 5, 7, 100])
def test_messages_are_complete_however_their_data_is_cut(size: int) -> None:
    messages = [b"first", b"", bytes(MAX_BYTES), b"last"]
    data = b"".join(map(prefixed, messages))
    cut = [data[at : at + size] for at in range(0, len(data), size)]
    received = reader()
    assert [each for piece in cut for each in received.feed(memoryview(piece))] == messages


def test_message_beyond_the_limit_is_refused_before_it_has_arrived() -> None:
    with pytest.raises(Overloaded, match=r"larger than max \(1001 vs\. 1000\)"):
        reader().feed(prefixed(bytes(MAX_BYTES + 1))[:5])


@pytest.mark.parametrize(
    ("encoding", "compress"), [("gzip", gzip.compress), ("deflate", zlib.compress)]
)
def test_compressed_message_is_read_within_the_limit(
    encoding: str, compress: Callable[[bytes], bytes]
) -> None:
    def read(size: int) -> bytes:
        [message] = reader().feed(compressed(compress(bytes(size))))
        assert isinstance(message, Compressed)
        return decompress(message, encoding, MAX_BYTES)

    assert read(MAX_BYTES) == bytes(MAX_BYTES)
    with pytest.raises(Overloaded, match="larger than max"):
        read(MAX_BYTES + 1)


@pytest.mark.parametrize("data", [b"", b"none", gzip.compress(bytes(MAX_BYTES), mtime=0)[:-1]])
def test_message_that_cannot_be_decompressed_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidInput, match="cannot be decompressed"):
        decompress(Compressed(data), "gzip", MAX_BYTES)


def test_unknown_compression_is_refused() -> None:
    with pytest.raises(NotSupported, match="'snappy'"):
        decompress(Compressed(b"x"), "snappy", MAX_BYTES)


def test_data_that_was_received_at_its_place_is_not_copied() -> None:
    received, content = MessageReader(1 << 20), random.Random(1).randbytes(1000)
    assert received.message_buffer() is None
    assert not received.feed(prefixed(content)[:300])
    place = received.message_buffer()
    assert place is not None
    assert len(place) == 1000 - 295
    place[:] = content[295:]
    assert not received.feed(place[:400])
    [message] = received.feed(place[400:])
    assert received.message_buffer() is None
    assert message == content
    assert isinstance(message, memoryview)
    assert message.obj is place.obj


@pytest.mark.parametrize("part", [1, 100, 50_000])
def test_message_of_up_to_1_mib_is_put_together_in_one_piece(part: int) -> None:
    received, content = MessageReader(1 << 20), random.Random(1).randbytes(1 << 20)
    sent = prefixed(content)
    assert not received.feed(sent[: PREFIX_BYTES + part])
    assert not received.feed(sent[PREFIX_BYTES + part : 2 * part])
    [message] = received.feed(sent[max(PREFIX_BYTES + part, 2 * part) :])
    assert message == content
    assert isinstance(message, memoryview)


def test_message_has_no_place_while_data_waits_to_be_cut() -> None:
    received, content = MessageReader(1 << 20), random.Random(1).randbytes(1000)
    begun = prefixed(b"x") * (MOST_CUT + 1) + prefixed(content)[:300]
    assert len(received.feed(begun)) == MOST_CUT
    assert not received.feed(content[295:600])
    assert received.cut() == [b"x"]
    assert received.message_buffer() is None
    assert not received.cut()
    assert received.message_buffer() is not None


@pytest.mark.parametrize("arrived", [1, 100, 10_000, 1_000_000])
def test_announced_message_takes_memory_as_it_arrives(arrived: int) -> None:
    received, content = MessageReader(1 << 24), random.Random(1).randbytes(1 << 23)
    begun = PREFIX_BYTES + arrived
    tracemalloc.start()
    try:
        received.feed(prefixed(content)[:begun])
        received.message_buffer()
        assert tracemalloc.get_traced_memory()[0] < min(17 * arrived, arrived + (1 << 20)) + 1000
    finally:
        tracemalloc.stop()
    assert received.feed(prefixed(content)[begun:]) == [content]


@pytest.mark.parametrize("size", [1, 2, 100])
def test_message_in_small_pieces_takes_little_more_memory_than_its_bytes(size: int) -> None:
    received, content = MessageReader(1 << 20), random.Random(1).randbytes(100_000)
    received.feed(b"\0" + (len(content) + 1).to_bytes(4))
    tracemalloc.start()
    try:
        for at in range(0, len(content), size):
            assert not received.feed(content[at : at + size])
        assert tracemalloc.get_traced_memory()[0] < 1.7 * len(content)
    finally:
        tracemalloc.stop()
    assert received.feed(b"!") == [content + b"!"]
