"""Frame codec and arena."""

import os
import struct
import time

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from synergai.domain import BatchTimes, Fault, Outcome, TensorSpec
from synergai.errors import InvalidInput
from worker_agent.ipc import (
    MAX_BODY_BYTES,
    SLOT_BYTES,
    SLOTS,
    Arena,
    ArenaRef,
    Decoder,
    LoadFailed,
    Message,
    Ready,
    RunEnded,
    RunProgress,
    RunQuery,
    RunSamples,
    StopRun,
    Tally,
)

NUMBERS = st.integers(0, 2**64 - 1)
CONTENTS = st.binary(max_size=50) | st.builds(ArenaRef, st.integers(0, 3), NUMBERS)
TALLIES = st.builds(Tally, NUMBERS, NUMBERS, NUMBERS, st.floats(allow_nan=False), NUMBERS)
TIMES = st.lists(st.floats(0, 1e6), min_size=1, max_size=7).map(tuple).map(BatchTimes)
SPECS = st.builds(
    TensorSpec, st.text(), st.just("FP32"), st.lists(st.integers(-1, 9), max_size=3).map(tuple)
)
SECONDS = st.floats(0, 1e6)
MESSAGES: st.SearchStrategy[Message] = st.one_of(
    st.builds(RunQuery, NUMBERS, CONTENTS),
    st.builds(RunQuery, NUMBERS, CONTENTS, TIMES, st.floats(allow_nan=False)),
    st.builds(RunSamples, NUMBERS, NUMBERS, NUMBERS, st.text(), st.integers(1, 64)),
    st.builds(StopRun, NUMBERS),
    st.builds(LoadFailed, st.text(), st.booleans()),
    st.builds(RunProgress, NUMBERS, TALLIES),
    st.builds(RunEnded, NUMBERS, st.just(Outcome.COMPLETED), TALLIES, CONTENTS),
    st.builds(
        RunEnded,
        NUMBERS,
        st.just(Outcome.FAILED),
        TALLIES,
        fault=st.sampled_from(Fault),
        detail=st.text(),
    ),
    st.builds(
        Ready,
        inputs=st.lists(SPECS, max_size=2).map(tuple),
        outputs=st.lists(SPECS, max_size=2).map(tuple),
        samples=st.integers(0, 9),
        max_batch=st.integers(1, 64),
        backend_start_s=SECONDS,
        model_load_s=SECONDS,
        data_preparation_s=SECONDS,
    ),
)


FIELDS: st.SearchStrategy[object] = st.recursive(
    st.none() | NUMBERS | st.floats() | st.binary(max_size=9) | st.text(max_size=9),
    lambda fields: st.lists(fields, max_size=6),
    max_leaves=20,
)
ARRAYS = st.builds(
    lambda tag, fields: msgspec.msgpack.encode([tag, *fields]),
    st.sampled_from([1, 2, 3, 16, 17, 18, 19, 99]),
    st.lists(FIELDS, max_size=6),
)
"""Bodies with a valid tag and arbitrary fields."""


@given(st.lists(MESSAGES, max_size=5), st.integers(1, 40))
def test_messages_round_trip_in_chunks_of_any_size(messages: list[Message], size: int) -> None:
    stream = b"".join(message.encode() for message in messages)
    decoder = Decoder()
    received = [
        message
        for position in range(0, len(stream), size)
        for message in decoder.feed(stream[position : position + size])
    ]
    assert received == messages


@given(st.binary(max_size=60) | ARRAYS)
def test_arbitrary_frame_is_a_message_or_invalid_input(body: bytes) -> None:
    frame = struct.pack("<I", len(body)) + body
    try:
        (message,) = Decoder().feed(frame)
    except InvalidInput:
        return
    # NaN is not equal to itself, but its bytes are.
    assert next(Decoder().feed(message.encode())).encode() == message.encode()


def test_unknown_tag_is_refused() -> None:
    frame = StopRun(1).encode()
    assert frame[4:] == msgspec.msgpack.encode([3, 1])
    with pytest.raises(InvalidInput, match=r"malformed frame .* Invalid value 99"):
        list(Decoder().feed(frame[:4] + msgspec.msgpack.encode([99, 1])))


@pytest.mark.parametrize(
    "body",
    [
        [3, -1],
        [1, 7, b"request", {"by_size": []}],
        [2, 7, 0, 10, "job", 0],
        [19, 7, 99, [1], b"response"],
        [19, 7, 1, [1], "response"],
    ],
)
def test_invalid_field_is_refused(body: list[object]) -> None:
    data = msgspec.msgpack.encode(body)
    with pytest.raises(InvalidInput, match="malformed frame"):
        list(Decoder().feed(struct.pack("<I", len(data)) + data))


def test_oversized_frame_is_refused_before_it_is_received() -> None:
    with pytest.raises(InvalidInput, match="frame of 1,073,741,825 bytes"):
        list(Decoder().feed(struct.pack("<I", MAX_BODY_BYTES + 1)))


@pytest.fixture
def arena() -> Arena:
    return Arena()


@pytest.mark.parametrize("size", [1, SLOT_BYTES - 1, SLOT_BYTES])
def test_message_stays_within_its_slot(arena: Arena, size: int) -> None:
    whole, message, after = (
        np.frombuffer(arena.view(ref), np.uint8)
        for ref in (ArenaRef(1, SLOT_BYTES), ArenaRef(1, size), ArenaRef(2, SLOT_BYTES))
    )
    assert np.may_share_memory(whole, message)
    assert not np.may_share_memory(whole, after)
    assert not np.may_share_memory(message, after)
    del whole, message, after
    arena.close()


def test_arena_has_room_until_all_slots_are_taken(arena: Arena) -> None:
    places = [arena.put(b"x") for _ in range(SLOTS)]
    assert not arena.has_room
    arena.release(places[0].slot)
    assert arena.put(b"y").slot == places[0].slot
    arena.close()


@pytest.mark.parametrize(
    "place", [ArenaRef(SLOTS, 1), ArenaRef(-1, 1), ArenaRef(0, -1), ArenaRef(0, SLOT_BYTES + 1)]
)
def test_reference_outside_of_the_arena_is_refused(arena: Arena, place: ArenaRef) -> None:
    with pytest.raises(ValueError, match="outside of the arena"):
        arena.view(place)
    arena.close()


def test_arena_names_the_run_that_the_other_side_has_begun(arena: Arena) -> None:
    theirs = Arena(os.dup(arena.fd))
    assert arena.computing == 0
    place = arena.put(b"tensor")
    theirs.computing = 7
    theirs.grow(SLOTS + 1)
    theirs.computing = 8
    assert arena.computing == 8
    assert theirs.read(place) == b"tensor"
    theirs.close()
    assert arena.computing == 8
    arena.close()


def test_time_to_decode_a_large_frame_is_linear_in_its_size() -> None:
    frame, piece, decoder = RunQuery(1, bytes(32 << 20)).encode(), 16 << 10, Decoder()
    begin = time.process_time()
    messages = [
        message
        for start in range(0, len(frame), piece)
        for message in decoder.feed(frame[start : start + piece])
    ]
    assert messages == [RunQuery(1, bytes(32 << 20))]
    assert time.process_time() - begin < 2.0
