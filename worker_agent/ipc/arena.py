"""Memory that the agent shares with one engine host, for tensors too large for a socket.

It is an anonymous file (``memfd``) that the host inherits: it has no name, so that nothing is
left behind however either of the two dies. The file is cut into slots, each as large as the
largest message; only the pages that a message touches take memory, so no allocator is needed.
A query's request lies in a slot, and its response may take the request's place.
"""

from __future__ import annotations

import mmap
import os
from typing import TYPE_CHECKING, Final, TypeAlias

from worker_agent.ipc.frames import ArenaRef

if TYPE_CHECKING:
    from collections.abc import Sequence

    Buffer: TypeAlias = bytes | memoryview

SLOTS: Final = 4
"""Large queries that can be on their way to a host at a time; it computes one of them."""
SLOT_BYTES: Final = 128 << 20
_MOST_SLOTS: Final = 32
"""Each is address space only until it is used, but of that, too, there is not any amount."""

INLINE_BYTES: Final = 16 << 10
"""Up to this size messages pass through the socket.

Measured by ``benchmarks/host_transport.py``: both ways are equally fast at 4 KiB, the arena is
7% faster at 16 KiB, twice as fast at 128 KiB, where the socket's buffer no longer holds a message,
and four times at 1 MiB.
"""


def slots_for(max_batch: int) -> int:
    """How many slots a host needs to compute a batch of large queries while the next one comes."""
    return SLOTS if max_batch == 1 else max(SLOTS, min(2 * max_batch, _MOST_SLOTS))


class Arena:
    """The shared memory, from either side.

    Args:
        fd: the file, if it is there already; otherwise it is created.
    """

    def __init__(self, fd: int | None = None) -> None:
        self.fd = os.memfd_create("synergai-arena") if fd is None else fd
        if fd is None:
            os.ftruncate(self.fd, SLOTS * SLOT_BYTES)
        self._slots = SLOTS
        self._memory = mmap.mmap(self.fd, SLOTS * SLOT_BYTES)
        self._free = list(range(SLOTS))

    def grow(self, slots: int) -> None:
        """Have at least so many slots. Views of the memory must be gone.

        Both sides grow by themselves, the host first: the file is as large as either needs.
        """
        if slots <= self._slots:
            return
        size = slots * SLOT_BYTES
        if os.fstat(self.fd).st_size < size:
            os.ftruncate(self.fd, size)
        self._memory.close()
        self._memory = mmap.mmap(self.fd, size)
        # The first ones are used first, so that those seldom needed take no memory.
        self._free = [*range(slots - 1, self._slots - 1, -1), *self._free]
        self._slots = slots

    @property
    def has_room(self) -> bool:
        """There is a free slot."""
        return bool(self._free)

    def put(self, data: Buffer) -> ArenaRef:
        """Copy `data` into a free slot, which the caller has to release.

        Raises:
            IndexError: no slot is free.
        """
        return self.write(self._free.pop(), [data])

    def release(self, slot: int) -> None:
        """The slot's contents are no longer needed."""
        self._free.append(slot)

    def write(self, slot: int, parts: Sequence[Buffer]) -> ArenaRef:
        """Lay `parts` one behind the other into `slot`, over what is there."""
        begin = position = slot * SLOT_BYTES
        for part in parts:
            end = position + len(part)
            self._memory[position:end] = part
            position = end
        return ArenaRef(slot, position - begin)

    def view(self, place: ArenaRef) -> memoryview:
        """What lies at `place`, without a copy; valid until the slot is written again.

        Raises:
            ValueError: there is no such place.
        """
        if not (0 <= place.slot < self._slots and 0 <= place.size <= SLOT_BYTES):
            raise ValueError(f"{place} is not a place in the arena")
        begin = place.slot * SLOT_BYTES
        return memoryview(self._memory)[begin : begin + place.size]

    def read(self, place: ArenaRef) -> bytes:
        """A copy of what lies at `place`.

        Raises:
            ValueError: there is no such place.
        """
        return bytes(self.view(place))

    @property
    def closed(self) -> bool:
        """The memory has been given back."""
        return self._memory.closed

    def close(self) -> None:
        """Give the memory back. Views of it must be gone."""
        self._memory.close()
        os.close(self.fd)
