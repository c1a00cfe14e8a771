"""Failures of inference runtimes, as errors: lack of memory passes, other failures do not."""

from __future__ import annotations

import re
from typing import Final

from synergai.errors import EngineUnusable, OutOfMemory

_LACKS_MEMORY: Final = re.compile(
    r"out of memory|out_of_memory|bad_alloc|alloc_failed|memoryallocation"
    r"|(failed|unable|cannot) to allocate|cannot allocate memory|(insufficient|not enough) memory"
    r"|oom when allocating|bfcarena",
    re.IGNORECASE,
)
"""What runtimes, CUDA and its libraries say. They have no error class for it."""


def runtime_failure(message: str, error: Exception) -> EngineUnusable | OutOfMemory:
    """Return the error of a load or computation that failed in the runtime."""
    if isinstance(error, MemoryError) or _LACKS_MEMORY.search(str(error)):
        return OutOfMemory(message)
    return EngineUnusable(message)
