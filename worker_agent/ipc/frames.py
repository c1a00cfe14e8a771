"""What the agent and an engine host say to each other, and how it is framed on their socket.

A frame is a header (length of the body, kind, slot, run) and a body. A *run* is what the host
does as one piece: a query that came with its tensors, or a range of sample queries. The host
takes runs in the order in which they come, and every run ends with exactly one `RunEnded`.

Large tensors do not pass through the socket: the body then holds only their length, and the
header the slot of the shared arena in which they lie, see `worker_agent.ipc.arena`.
"""

from __future__ import annotations

import json
import math
import struct
from dataclasses import asdict
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from synergai.domain import BatchTimes, Fault, Outcome, TensorSpec
from synergai.errors import InvalidInput
from synergai.values import value

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
    """Plain numbers: each look at a member of an enumeration is a call, and frames are many."""

    QUERY: Final = 1
    RANGE: Final = 2
    STOP: Final = 3
    BATCHABLE: Final = 4
    READY: Final = 16
    BROKEN: Final = 17
    PROGRESS: Final = 18
    ENDED: Final = 19


class ArenaRef(NamedTuple):
    """Bytes that lie in the arena instead of in the frame."""

    slot: int
    size: int


@value()
class Tally:
    """What a run has come to, counted from its start.

    Attributes:
        labelled: queries whose right answer is known.
        correct: those of them that were answered right.
        compute_s: time inside the engine.
        batch: how many queries it computed at once, of which a single query was one.
    """

    done: int = 0
    labelled: int = 0
    correct: int = 0
    compute_s: float = 0.0
    batch: int = 1


# --- agent to host ------------------------------------------------------------------------


@value()
class RunQuery:
    """Run one query that comes with its tensors, a serialised ``ModelInferRequest``.

    Attributes:
        batch_times: how long batches take, if it may be computed together with others.
        due: instant on the machine's monotonic clock by which it should have been computed.
    """

    run: int
    request: Buffer | ArenaRef
    batch_times: BatchTimes | None = None
    due: float = math.inf

    def encode(self) -> bytes:
        """The frame."""
        kind, head = _Kind.QUERY, b""
        if self.batch_times is not None:
            times = self.batch_times.by_size
            kind = _Kind.BATCHABLE
            head = _BATCHABLE.pack(len(times), self.due) + struct.pack(f"<{len(times)}d", *times)
        if isinstance(self.request, ArenaRef):
            return _frame(kind, self.run, head + _LENGTH.pack(self.request.size), self.request.slot)
        return _frame(kind, self.run, head + self.request if head else self.request)


@value()
class RunSamples:
    """Run the queries [first, first + count), drawn from the engine's sample set.

    Attributes:
        job: whose they are; empty if nobody's in particular.
        batch: how many of them are computed at once, for measuring; the last ones may be fewer.
    """

    run: int
    first: int
    count: int
    job: str = ""
    batch: int = 1

    def encode(self) -> bytes:
        """The frame."""
        body = _RANGE.pack(self.first, self.count, self.batch) + self.job.encode()
        return _frame(_Kind.RANGE, self.run, body)


@value()
class StopRun:
    """Stop the run at its next query; it may be over, or not begun."""

    run: int

    def encode(self) -> bytes:
        """The frame."""
        return _frame(_Kind.STOP, self.run)


# --- host to agent ------------------------------------------------------------------------


@value(kw_only=True)
class Ready:
    """The engine is resident and warm, and this is what it takes and gives.

    Attributes:
        samples: size of its sample set.
        max_batch: how many queries it may compute together.
        backend_start_s: until the process and the runtime were up.
        model_load_s: until the model was loaded, and for warming it up.
        data_preparation_s: until the sample set was in memory.
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
        """All of the start together."""
        return self.backend_start_s + self.model_load_s + self.data_preparation_s

    def encode(self) -> bytes:
        """The frame."""
        return _frame(_Kind.READY, 0, json.dumps(asdict(self)).encode())


@value()
class LoadFailed:
    """The engine cannot be loaded: why, in one line. The host leaves after this."""

    reason: str

    def encode(self) -> bytes:
        """The frame."""
        return _frame(_Kind.BROKEN, 0, self.reason.encode())


@value()
class RunProgress:
    """How far a range is."""

    run: int
    tally: Tally

    def encode(self) -> bytes:
        """The frame."""
        return _frame(_Kind.PROGRESS, self.run, _pack(self.tally))


@value()
class RunEnded:
    """The run is over.

    Attributes:
        response: of a completed query, a serialised ``ModelInferResponse``; empty otherwise.
        detail: of a failed run, why.
    """

    run: int
    outcome: Outcome
    tally: Tally = Tally()
    response: Buffer | ArenaRef = b""
    fault: Fault = Fault.UNSPECIFIED
    detail: str = ""

    def encode(self) -> bytes:
        """The frame."""
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
            return _frame(_Kind.ENDED, self.run, head + self.detail.encode())
        if isinstance(self.response, ArenaRef):
            body = head + _LENGTH.pack(self.response.size)
            return _frame(_Kind.ENDED, self.run, body, self.response.slot)
        return _frame(_Kind.ENDED, self.run, head + self.response)


Message: TypeAlias = RunQuery | RunSamples | StopRun | Ready | LoadFailed | RunProgress | RunEnded


class Decoder:
    """Turns the bytes of one direction of the socket back into messages."""

    def __init__(self) -> None:
        # What is left of an unfinished frame is joined once, when all of it is here: to join it
        # at every piece would copy a large one hundreds of times.
        self._parts: list[bytes] = []
        self._held = 0
        self._needed = 0

    def feed(self, data: bytes) -> Iterator[Message]:
        """The messages that `data` completes.

        Raises:
            InvalidInput: the peer does not speak this protocol.
        """
        if self._parts:
            self._parts.append(data)
            self._held += len(data)
            if self._held < self._needed:
                return
            data = b"".join(self._parts)
        needed = _HEADER.size
        position, end = 0, len(data)
        try:
            while end - position >= _HEADER.size:
                length, kind, slot, run = _HEADER.unpack_from(data, position)
                if length > MAX_BODY_BYTES:
                    raise InvalidInput(f"a frame of {length:,} bytes on an engine host's socket")
                start = position + _HEADER.size
                if end - start < length:
                    needed += length
                    break
                position = start + length
                yield _decode(kind, slot, run, data[start:position])
        finally:
            self._parts = [data[position:]] if position < end else []
            self._held, self._needed = end - position, needed


def _frame(kind: int, run: int, body: Buffer = b"", slot: int = _INLINE) -> bytes:
    return _HEADER.pack(len(body), kind, slot, run) + body


def _pack(tally: Tally) -> bytes:
    return _TALLY.pack(tally.done, tally.labelled, tally.correct, tally.compute_s, tally.batch)


def _decode(kind: int, slot: int, run: int, body: bytes) -> Message:
    try:
        match kind:
            case _Kind.QUERY:
                return RunQuery(run, _content(slot, body))
            case _Kind.BATCHABLE:
                return _decode_batchable(slot, run, body)
            case _Kind.ENDED:
                number, fault, *figures = _ENDED.unpack_from(body)
                outcome, tally = _OUTCOMES[number], Tally(*figures)
                rest = body[_ENDED.size :]
                if outcome is Outcome.FAILED:
                    detail = rest.decode(errors="replace")
                    return RunEnded(run, outcome, tally, fault=Fault(fault), detail=detail)
                return RunEnded(run, outcome, tally, _content(slot, rest))
            case _Kind.PROGRESS:
                return RunProgress(run, Tally(*_TALLY.unpack(body)))
            case _Kind.RANGE:
                return _decode_range(run, body)
            case _Kind.STOP:
                return StopRun(run)
            case _Kind.READY:
                return _decode_ready(body)
            case _Kind.BROKEN:
                return LoadFailed(body.decode(errors="replace"))
    except (struct.error, ValueError, TypeError, KeyError) as error:
        raise InvalidInput(f"a malformed frame on an engine host's socket: {error}") from error
    raise InvalidInput(f"a frame of the unknown kind {kind} on an engine host's socket")


def _decode_range(run: int, body: bytes) -> RunSamples:
    first, count, batch = _RANGE.unpack_from(body)
    if not batch:
        raise ValueError("batches of no queries")
    return RunSamples(run, first, count, body[_RANGE.size :].decode(), batch)


def _decode_batchable(slot: int, run: int, body: bytes) -> RunQuery:
    count, due = _BATCHABLE.unpack_from(body)
    if not count:
        raise ValueError("a batch of no size")
    times = struct.Struct(f"<{count}d")
    batch_times = BatchTimes(times.unpack_from(body, _BATCHABLE.size))
    return RunQuery(run, _content(slot, body[_BATCHABLE.size + times.size :]), batch_times, due)


def _content(slot: int, body: bytes) -> bytes | ArenaRef:
    return body if slot == _INLINE else ArenaRef(slot, *_LENGTH.unpack(body))


def _decode_ready(body: bytes) -> Ready:
    fields = json.loads(body)
    tensors = {
        side: tuple(
            TensorSpec(spec["name"], spec["datatype"], tuple(spec["shape"]))
            for spec in fields[side]
        )
        for side in ("inputs", "outputs")
    }
    return Ready(**{**fields, **tensors})
