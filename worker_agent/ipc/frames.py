"""Messages between the agent and an engine host, and their framing on the socket.

A frame is a header (body length, kind, arena slot, run id) followed by a body. A *run* is the unit
of execution on a host: one query with its tensors, or a range of sample queries. The host executes
runs in the order received, and every run ends with exactly one `RunEnded`.

Large tensors do not pass through the socket: the header then names the slot of the shared arena
that holds them, and the body contains only their length. See `worker_agent.ipc.arena`.
"""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import msgspec
from msgspec import Struct

from synergai.domain import BatchTimes, Fault, Outcome, TensorSpec
from synergai.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterator

Buffer: TypeAlias = bytes | memoryview

_HEADER: Final = struct.Struct("<IBBxxQ")
_BATCHABLE: Final = struct.Struct("<Bd")
_RANGE: Final = struct.Struct("<QQQ")
_TALLY: Final = struct.Struct("<QQQdQ")
_ENDED: Final = struct.Struct("<BB6xQQQdQ")
_LENGTH: Final = struct.Struct("<Q")
_INLINE: Final = 0xFF
_OUTCOMES: Final = {outcome.value: outcome for outcome in Outcome}
MAX_BODY_BYTES: Final = 1 << 30


class _Kind:
    """Frame kinds; plain integers, because enum member access is too slow for every frame."""

    QUERY: Final = 1
    RANGE: Final = 2
    STOP: Final = 3
    BATCHABLE: Final = 4
    READY: Final = 16
    BROKEN: Final = 17
    PROGRESS: Final = 18
    ENDED: Final = 19


class ArenaRef(NamedTuple):
    """Reference to `size` bytes in `slot` of the arena, used in place of inline bytes."""

    slot: int
    size: int


class Tally(Struct, frozen=True):
    """Cumulative counts of a run or work item.

    Attributes:
        done: completed queries.
        labelled: completed queries with a known label.
        correct: labelled queries that were answered correctly.
        compute_s: seconds inside the engine.
        batch: size of the batch that a single query was computed in.
    """

    done: int = 0
    labelled: int = 0
    correct: int = 0
    compute_s: float = 0.0
    batch: int = 1


# --- agent to host ------------------------------------------------------------------------


class RunQuery(Struct, frozen=True):
    """Run one query.

    Attributes:
        run_id: id of the run.
        request: serialised ``ModelInferRequest``.
        batch_times: durations of batches by size, if the query may share a batch.
        due: instant on the system's monotonic clock by which a batch must be computed.
    """

    run_id: int
    request: Buffer | ArenaRef
    batch_times: BatchTimes | None = None
    due: float = math.inf

    def encode(self) -> bytes:
        """Return the frame."""
        kind, head = _Kind.QUERY, b""
        if self.batch_times is not None:
            times = self.batch_times.by_size
            kind = _Kind.BATCHABLE
            head = _BATCHABLE.pack(len(times), self.due) + struct.pack(f"<{len(times)}d", *times)
        if isinstance(self.request, ArenaRef):
            return _encode_frame(
                kind, self.run_id, head + _LENGTH.pack(self.request.size), self.request.slot
            )
        return _encode_frame(kind, self.run_id, head + self.request if head else self.request)


class RunSamples(Struct, frozen=True):
    """Run the queries [first, first + count) of the engine's sample set.

    Attributes:
        run_id: id of the run.
        first: index of the first query.
        count: number of queries.
        job: id of the job; may be empty.
        batch: batch size, for measurements; the last batch may be smaller.
    """

    run_id: int
    first: int
    count: int
    job: str = ""
    batch: int = 1

    def encode(self) -> bytes:
        """Return the frame."""
        body = _RANGE.pack(self.first, self.count, self.batch) + self.job.encode()
        return _encode_frame(_Kind.RANGE, self.run_id, body)


class StopRun(Struct, frozen=True):
    """Stop a run before its next query; it may have ended already, or not have started."""

    run_id: int

    def encode(self) -> bytes:
        """Return the frame."""
        return _encode_frame(_Kind.STOP, self.run_id)


# --- host to agent ------------------------------------------------------------------------


class Ready(Struct, frozen=True, kw_only=True):
    """The engine is loaded and warmed up.

    Attributes:
        inputs: input tensors of the model.
        outputs: output tensors of the model.
        samples: size of the sample set.
        backend_start_s: seconds to start the process and the runtime.
        model_load_s: seconds to load and warm up the model.
        data_preparation_s: seconds to load the sample set.
        max_batch: maximum batch size.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    samples: int
    backend_start_s: float
    model_load_s: float
    data_preparation_s: float
    max_batch: int = 1

    @property
    def setup_s(self) -> float:
        """Total setup time in seconds."""
        return self.backend_start_s + self.model_load_s + self.data_preparation_s

    def encode(self) -> bytes:
        """Return the frame."""
        return _encode_frame(_Kind.READY, 0, msgspec.json.encode(self))


class LoadFailed(Struct, frozen=True):
    """The engine cannot be loaded; `reason` is one line. The host exits after sending this."""

    reason: str

    def encode(self) -> bytes:
        """Return the frame."""
        return _encode_frame(_Kind.BROKEN, 0, self.reason.encode())


class RunProgress(Struct, frozen=True):
    """Progress of a range."""

    run_id: int
    tally: Tally

    def encode(self) -> bytes:
        """Return the frame."""
        return _encode_frame(_Kind.PROGRESS, self.run_id, _pack_tally(self.tally))


class RunEnded(Struct, frozen=True):
    """The run has ended.

    Attributes:
        run_id: id of the run.
        outcome: whether it completed, was stopped or failed.
        tally: its final counts.
        response: serialised ``ModelInferResponse`` of a completed query; empty otherwise.
        fault: kind of failure.
        detail: description of the failure.
    """

    run_id: int
    outcome: Outcome
    tally: Tally = Tally()
    response: Buffer | ArenaRef = b""
    fault: Fault = Fault.UNSPECIFIED
    detail: str = ""

    def encode(self) -> bytes:
        """Return the frame."""
        tally = self.tally
        head = _ENDED.pack(
            self.outcome.value,
            self.fault.value,
            tally.done,
            tally.labelled,
            tally.correct,
            tally.compute_s,
            tally.batch,
        )
        if self.outcome is Outcome.FAILED:
            return _encode_frame(_Kind.ENDED, self.run_id, head + self.detail.encode())
        if isinstance(self.response, ArenaRef):
            body = head + _LENGTH.pack(self.response.size)
            return _encode_frame(_Kind.ENDED, self.run_id, body, self.response.slot)
        return _encode_frame(_Kind.ENDED, self.run_id, head + self.response)


Message: TypeAlias = RunQuery | RunSamples | StopRun | Ready | LoadFailed | RunProgress | RunEnded


class Decoder:
    """Incremental decoder of one direction of the socket."""

    def __init__(self) -> None:
        # Chunks of an incomplete frame are joined once it is complete: joining at every chunk would
        # copy a large frame hundreds of times.
        self._chunks: list[bytes] = []
        self._received = 0
        self._needed = 0

    def feed(self, data: bytes) -> Iterator[Message]:
        """Yield the messages completed by `data`.

        Raises:
            InvalidInput: a frame is malformed.
        """
        if self._chunks:
            self._chunks.append(data)
            self._received += len(data)
            if self._received < self._needed:
                return
            data = b"".join(self._chunks)
        needed = _HEADER.size
        position, end = 0, len(data)
        try:
            while end - position >= _HEADER.size:
                length, kind, slot, run_id = _HEADER.unpack_from(data, position)
                if length > MAX_BODY_BYTES:
                    raise InvalidInput(f"frame of {length:,} bytes on an engine host's socket")
                start = position + _HEADER.size
                if end - start < length:
                    needed += length
                    break
                position = start + length
                yield _decode(kind, slot, run_id, data[start:position])
        finally:
            self._chunks = [data[position:]] if position < end else []
            self._received, self._needed = end - position, needed


def _encode_frame(kind: int, run_id: int, body: Buffer = b"", slot: int = _INLINE) -> bytes:
    return _HEADER.pack(len(body), kind, slot, run_id) + body


def _pack_tally(tally: Tally) -> bytes:
    return _TALLY.pack(tally.done, tally.labelled, tally.correct, tally.compute_s, tally.batch)


def _decode(kind: int, slot: int, run_id: int, body: bytes) -> Message:
    try:
        match kind:
            case _Kind.QUERY:
                return RunQuery(run_id, _decode_content(slot, body))
            case _Kind.BATCHABLE:
                return _decode_batchable(slot, run_id, body)
            case _Kind.ENDED:
                number, fault, *figures = _ENDED.unpack_from(body)
                outcome, tally = _OUTCOMES[number], Tally(*figures)
                rest = body[_ENDED.size :]
                if outcome is Outcome.FAILED:
                    detail = rest.decode(errors="replace")
                    return RunEnded(run_id, outcome, tally, fault=Fault(fault), detail=detail)
                return RunEnded(run_id, outcome, tally, _decode_content(slot, rest))
            case _Kind.PROGRESS:
                return RunProgress(run_id, Tally(*_TALLY.unpack(body)))
            case _Kind.RANGE:
                return _decode_range(run_id, body)
            case _Kind.STOP:
                return StopRun(run_id)
            case _Kind.READY:
                return msgspec.json.decode(body, type=Ready)
            case _Kind.BROKEN:
                return LoadFailed(body.decode(errors="replace"))
    except (struct.error, ValueError, KeyError, msgspec.DecodeError) as error:
        raise InvalidInput(f"malformed frame on an engine host's socket: {error}") from error
    raise InvalidInput(f"unknown frame kind {kind} on an engine host's socket")


def _decode_range(run_id: int, body: bytes) -> RunSamples:
    first, count, batch = _RANGE.unpack_from(body)
    if not batch:
        raise ValueError("batch size 0")
    return RunSamples(run_id, first, count, body[_RANGE.size :].decode(), batch)


def _decode_batchable(slot: int, run_id: int, body: bytes) -> RunQuery:
    count, due = _BATCHABLE.unpack_from(body)
    if not count:
        raise ValueError("no batch times")
    times = struct.Struct(f"<{count}d")
    batch_times = BatchTimes(times.unpack_from(body, _BATCHABLE.size))
    return RunQuery(
        run_id, _decode_content(slot, body[_BATCHABLE.size + times.size :]), batch_times, due
    )


def _decode_content(slot: int, body: bytes) -> bytes | ArenaRef:
    return body if slot == _INLINE else ArenaRef(slot, *_LENGTH.unpack(body))
