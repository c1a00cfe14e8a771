"""The heap of the C library."""

from __future__ import annotations

import ctypes


class _Mallinfo2(ctypes.Structure):
    """``struct mallinfo2`` of glibc 2.33 and newer."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


class GlibcHeap:
    """The heap of glibc."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._mallinfo2 = library.mallinfo2
        self._mallinfo2.restype = _Mallinfo2
        self._malloc_trim = library.malloc_trim

    @classmethod
    def find(cls) -> GlibcHeap | None:
        """Return the heap of this process; None if its C library cannot do this."""
        library = ctypes.CDLL(None)
        if not hasattr(library, "mallinfo2") or not hasattr(library, "malloc_trim"):
            return None
        return cls(library)

    def free_bytes(self) -> int:
        """Return the bytes that are free in all arenas."""
        return int(self._mallinfo2().fordblks)

    def trim(self) -> None:
        """Return free pages of all arenas to the kernel."""
        self._malloc_trim(ctypes.c_size_t(0))
