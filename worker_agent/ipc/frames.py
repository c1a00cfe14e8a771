"""Messages between the agent and an engine host, and their framing on the socket.

A frame is the length of the body, four bytes in little endian, followed by the body: a message in
MessagePack. A *run* is the unit of execution on a host: one query with its tensors, or a range of
sample queries. The host executes runs in the order received, and every run ends with exactly one
`RunEnded`.

Large tensors do not pass through the socket: the message then refers to the slot of the shared
arena that holds them. See `worker_agent.ipc.arena`.
"""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple, TypeAlias

import msgspec
from msgspec import Meta, Struct

from synergai.domain import BatchTimes, Fault, Outcome, TensorSpec
from synergai.errors import BackendMissing, EngineUnusable, InvalidInput, OutOfMemory

if TYPE_CHECKING:
    from collections.abc import Iterator

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


class ArenaRef(NamedTuple):
    """Reference to `size` bytes in `slot` of the arena, used in place of inline bytes."""

    slot: int
    size: int


class _Message(Struct, frozen=True, array_like=True):
    """Base of all messages, each a MessagePack array of its tag and its fields."""

    def encode(self) -> bytes:
        """Return the frame."""
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
    """Load another variant of the engine; `LoadStarted` and then `Ready` or `LoadFailed` answer it.

    If `alone`, it is loaded before the next query instead of concurrently.
    """

    variant: str
    alone: bool = False


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
        fallback_share: share of the model's nodes that its execution provider does not run, 0 to 1;
            None if it is not known, or runs on the CPU anyway.
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
    fallback_share: float | None = None
    variant: str = ""

    @property
    def setup_s(self) -> float:
        """Total setup time in seconds."""
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
        """Return the failure as an error."""
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
