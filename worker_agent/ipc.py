"""Protocol between the agent and one engine host: messages on a socket, and shared memory.

A frame is the length of the body, four bytes in little endian, followed by the body: a message in
MessagePack. A *run* is the unit of execution on a host: one query with its tensors, or a range of
sample queries. The host executes runs in the order received, and every run ends with exactly one
`RunEnded`.

Tensors too large for the socket pass through the arena: an anonymous file (``memfd``) that the host
inherits. It has no name, so it cannot leak when either process dies. It is divided into slots, each
as large as the largest message; only pages that are written occupy memory, so no allocator is
needed. A slot holds the request of a query; the response may overwrite it. The page before the
slots says whether the host dies with its agent, and which run it has begun last.

Messages in the arena end at a multiple of `ALIGNMENT`. The tensor at the end of a request is then
aligned as runtimes need it, for any size of the header before it, and the host reads it in place.
"""

from __future__ import annotations

import math
import mmap
import os
import struct
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple, TypeAlias

import msgspec
from msgspec import Meta, Struct

from synergai.domain import BatchTimes, Fault, Outcome, TensorSpec
from synergai.errors import BackendMissing, EngineUnusable, InvalidInput, OutOfMemory

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    Buffer: TypeAlias = bytes | memoryview
else:
    Buffer = bytes  # the decoder makes bytes; the encoder accepts a memoryview as well

Count: TypeAlias = Annotated[int, Meta(ge=0)]

_LENGTH: Final = struct.Struct("<I")
_LENGTH_BYTES: Final = _LENGTH.size
MAX_BODY_BYTES: Final = 1 << 30
MAX_RESPONSE_BYTES: Final = MAX_BODY_BYTES - (1 << 16)
"""Largest response in a frame."""
INTERRUPT: Final = struct.Struct("<Q")
"""Message on the pipe that interrupts computing runs: the id of one. Its writes are atomic."""

SLOTS: Final = 4
"""Large queries in flight per host, including the one that it computes."""
SLOT_BYTES: Final = 128 << 20
ALIGNMENT: Final = 64
"""A cache line; no element is larger."""
_HEADER_BYTES: Final = mmap.PAGESIZE
_RUN: Final = struct.Struct("<Q")
_BOUND: Final = _RUN.size
"""Position of a byte behind it."""

INLINE_BYTES: Final = 16 << 10
"""Messages up to this size pass through the socket.

Measured by ``benchmarks/host_transport.py``: both are equally fast at 4 KiB; the arena is 7% faster
at 16 KiB, twice as fast at 128 KiB, where a message exceeds the socket buffer, and four times as
fast at 1 MiB.
"""


class ArenaRef(NamedTuple):
    """Reference to `size` bytes in `slot` of the arena, used in place of inline bytes."""

    slot: int
    size: int


class _Message(Struct, frozen=True, array_like=True):
    """Base of all messages, each a MessagePack array of its tag and its fields."""

    def encode(self) -> bytes:
        body = _ENCODER.encode(self)
        return _LENGTH.pack(len(body)) + body


class Tally(Struct, frozen=True, array_like=True):
    """Cumulative counts of a run or work item, and the size of its batches."""

    done: Count = 0
    labelled: Count = 0
    correct: Count = 0
    compute_s: float = 0.0
    batch: Count = 1


# --- agent to host ------------------------------------------------------------------------


class RunQuery(_Message, frozen=True, tag=1):
    """Run one query; it may share a batch until `due`, on the monotonic clock."""

    run_id: Count
    request: Buffer | ArenaRef
    batch_times: BatchTimes | None = None
    due: float = math.inf
    variant: str = ""


class RunSamples(_Message, frozen=True, tag=2):
    """Run the queries [first, first + count) of the engine's sample set."""

    run_id: Count
    first: Count
    count: Count
    job: str = ""
    batch: Annotated[int, Meta(ge=1)] = 1
    variant: str = ""


class StopRun(_Message, frozen=True, tag=3):
    """Stop a run before its next query; it may have ended already, or not have started."""

    run_id: Count


class LoadVariant(_Message, frozen=True, tag=4):
    """Load another variant; `LoadStarted`, and then `Ready` or `LoadFailed`, answers it."""

    variant: str


class UnloadVariant(_Message, frozen=True, tag=5):
    """Free a variant that has no runs in flight, before the next query; `VariantUnloaded` follows.

    At least one other variant is loaded.
    """

    variant: str


# --- host to agent ------------------------------------------------------------------------


class Ready(_Message, frozen=True, kw_only=True, tag=16):
    """The engine, or another variant of it, is loaded and warmed up.

    Attributes:
        unverified: why the model is not known to work; empty if it is.
        query_s: seconds of its fastest query so far; 0 if it is unverified.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    samples: int
    backend_start_s: float
    model_load_s: float
    data_preparation_s: float
    max_batch: int = 1
    unverified: str = ""
    query_s: float = 0.0
    variant: str = ""

    @property
    def setup_s(self) -> float:
        return self.backend_start_s + self.model_load_s + self.data_preparation_s


class LoadFailed(_Message, frozen=True, tag=17):
    """The engine, or another variant of it, cannot be loaded.

    The host exits after sending this if nothing else is loaded.
    """

    reason: str
    backend_missing: bool = False
    variant: str = ""
    out_of_memory: bool = False

    def error(self) -> EngineUnusable | OutOfMemory:
        if self.out_of_memory:
            return OutOfMemory(self.reason)
        return (BackendMissing if self.backend_missing else EngineUnusable)(self.reason)


class VariantUnloaded(_Message, frozen=True, tag=20):
    """The memory of a variant is free."""

    variant: str


class LoadStarted(_Message, frozen=True, tag=21):
    """The host begins a `LoadVariant`: if it dies from now on, this variant may be to blame."""

    variant: str


class RunProgress(_Message, frozen=True, tag=18):
    """Progress of a range."""

    run_id: Count
    tally: Tally


class RunEnded(_Message, frozen=True, tag=19):
    """The run has ended; a completed query has a serialised ``ModelInferResponse``."""

    run_id: Count
    outcome: Outcome
    tally: Tally = Tally()
    response: Buffer | ArenaRef = b""
    fault: Fault = Fault.UNSPECIFIED
    detail: str = ""


Order: TypeAlias = LoadVariant | UnloadVariant
"""Orders that an engine host executes before its next query."""
Message: TypeAlias = (
    RunQuery
    | RunSamples
    | StopRun
    | Order
    | Ready
    | LoadFailed
    | LoadStarted
    | VariantUnloaded
    | RunProgress
    | RunEnded
)

_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final[msgspec.msgpack.Decoder[Message]] = msgspec.msgpack.Decoder(Message)


class Decoder:
    """Incremental decoder of one direction of the socket."""

    def __init__(self) -> None:
        # Chunks of an incomplete frame are joined once it is complete: joining at every chunk would
        # copy a large frame hundreds of times.
        self._chunks: list[bytes] = []
        self._received = 0
        self._needed = 0

    def feed(self, data: bytes) -> Iterator[Message]:
        """Yield the messages completed by `data`."""
        if self._chunks:
            self._chunks.append(data)
            self._received += len(data)
            if self._received < self._needed:
                return
            data = b"".join(self._chunks)
        needed = _LENGTH_BYTES
        position, end = 0, len(data)
        view = memoryview(data)
        try:
            while (start := position + _LENGTH_BYTES) <= end:
                (length,) = _LENGTH.unpack_from(data, position)
                if length > MAX_BODY_BYTES:
                    raise InvalidInput(f"frame of {length:,} bytes on an engine host's socket")
                if start + length > end:
                    needed += length
                    break
                position = start + length
                yield _DECODER.decode(view[start:position])
        except msgspec.MsgspecError as error:
            raise InvalidInput(f"malformed frame on an engine host's socket: {error}") from error
        finally:
            self._chunks = [data[position:]] if position < end else []
            self._received, self._needed = end - position, needed


def slots_for(max_batch: int) -> int:
    """Return the number of slots to receive a batch of large queries while computing another."""
    return max(SLOTS, 2 * max_batch)


class Arena:
    """The shared memory as mapped by either process; unwritten slots occupy address space only."""

    def __init__(self, fd: int | None = None) -> None:
        self.fd = os.memfd_create("synergai-arena") if fd is None else fd
        if fd is None:
            os.ftruncate(self.fd, _size(SLOTS))
        self.slots = SLOTS
        self._memory = mmap.mmap(self.fd, _size(SLOTS))
        self._free = list(range(SLOTS))

    def grow(self, slots: int) -> None:
        """Grow to at least `slots` slots. There must be no views of the memory.

        Each process grows its own mapping, the host first; the file is extended if necessary.
        """
        if slots <= self.slots:
            return
        size = _size(slots)
        if os.fstat(self.fd).st_size < size:
            os.ftruncate(self.fd, size)
        self._memory.close()
        self._memory = mmap.mmap(self.fd, size)
        # Low slots are used first, so that rarely needed ones occupy no memory.
        self._free = [*range(slots - 1, self.slots - 1, -1), *self._free]
        self.slots = slots

    @property
    def has_room(self) -> bool:
        return bool(self._free)

    def put(self, data: Buffer) -> ArenaRef:
        """Copy `data` into a free slot, which the caller must release."""
        return self.write(self._free.pop(), [data])

    def release(self, slot: int) -> None:
        self._free.append(slot)

    def write(self, slot: int, parts: Sequence[Buffer]) -> ArenaRef:
        """Write the concatenated `parts` to `slot`, overwriting its contents."""
        size = sum(map(len, parts))
        position = _begin(slot, size)
        for part in parts:
            end = position + len(part)
            self._memory[position:end] = part
            position = end
        return ArenaRef(slot, size)

    def view(self, ref: ArenaRef) -> memoryview:
        """Return a view of the referenced bytes, valid until the slot is overwritten."""
        if not (0 <= ref.slot < self.slots and 0 <= ref.size <= SLOT_BYTES):
            raise ValueError(f"{ref} is outside of the arena")
        begin = _begin(ref.slot, ref.size)
        return memoryview(self._memory)[begin : begin + ref.size]

    def read(self, ref: ArenaRef) -> bytes:
        return bytes(self.view(ref))

    @property
    def computing(self) -> int:
        """Id of the run that the host has begun last, of those that name a variant; 0 if none.

        It outlives the host, to tell which one it computed when it crashed.
        """
        (run_id,) = _RUN.unpack_from(self._memory)
        return int(run_id)

    @computing.setter
    def computing(self, run_id: int) -> None:
        _RUN.pack_into(self._memory, 0, run_id)

    @property
    def bound(self) -> bool:
        """Whether the kernel kills the host when its agent dies.

        A process that is stopped earlier would outlive its agent.
        """
        return bool(self._memory[_BOUND])

    @bound.setter
    def bound(self, bound: bool) -> None:
        self._memory[_BOUND] = bound

    @property
    def closed(self) -> bool:
        return self._memory.closed

    def close(self) -> None:
        """Unmap the memory and close the file. There must be no views of the memory."""
        self._memory.close()
        os.close(self.fd)


def _begin(slot: int, size: int) -> int:
    """Return the position of a message of `size` bytes in `slot`."""
    return _HEADER_BYTES + slot * SLOT_BYTES + -size % ALIGNMENT


def _size(slots: int) -> int:
    return _HEADER_BYTES + slots * SLOT_BYTES
