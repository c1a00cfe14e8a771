"""Shared memory between the agent and one engine host, for tensors too large for the socket.

The arena is an anonymous file (``memfd``) that the host inherits. It has no name, so it cannot leak
when either process dies. It is divided into slots, each as large as the largest message; only pages
that are written occupy memory, so no allocator is needed. A slot holds the request of a query; the
response may overwrite it. The page before the slots says whether the host dies with its agent, and
which run it has begun last.

Messages end at a multiple of `ALIGNMENT`. The tensor at the end of a request is then aligned as
runtimes need it, for any size of the header before it, and the host reads it in place.
"""

from __future__ import annotations

import mmap
import os
import struct
from typing import TYPE_CHECKING, Final

from worker_agent.ipc.frames import ArenaRef

if TYPE_CHECKING:
    from collections.abc import Sequence

    from worker_agent.ipc.frames import Buffer

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
        """Whether a slot is free."""
        return bool(self._free)

    def put(self, data: Buffer) -> ArenaRef:
        """Copy `data` into a free slot, which the caller must release."""
        return self.write(self._free.pop(), [data])

    def release(self, slot: int) -> None:
        """Return `slot` to the free slots."""
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
        """Return a copy of the referenced bytes."""
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
        """Whether the arena has been closed."""
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
