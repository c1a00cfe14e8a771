"""Threads for blocking operations of the store."""

from __future__ import annotations

import asyncio
import errno
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, TypeVar

from synergai.errors import Overloaded, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Threads:
    """Runs blocking operations on a storage; with one thread, one after another."""

    def __init__(self, count: int, name: str, location: str) -> None:
        self._executor = ThreadPoolExecutor(count, thread_name_prefix=name)
        self._location = location

    async def run(self, operation: Callable[[], T]) -> T:
        """Run an operation."""
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._executor, operation)
        except OSError as error:
            if error.errno in _FULL:
                raise Overloaded(
                    "the disk of the store of engines is full: remove versions with "
                    "'synergai engines remove', or free space"
                ) from error
            fault = f"{error.filename or self._location}: {error.strerror or error}"
            raise Unavailable(f"the store of engines cannot be used: {fault}") from error

    async def close(self) -> None:
        """Wait for operations in progress."""
        await asyncio.to_thread(self._executor.shutdown)
