"""Files that are read again when they change."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from synergai.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

T = TypeVar("T")

_log = logging.getLogger(__name__)

_LOOK_S: Final = 0.5
"""Interval between two looks at the files."""


class WatchedFiles(Generic[T]):
    """Content of files, which follows their changes.

    Files that are invalid after a change leave the previous content in force.
    """

    def __init__(self, what: str, paths: Sequence[Path], read: Callable[[], T]) -> None:
        self._what = what
        self._paths = tuple(paths)
        self._read = read
        self._stamps = self._stat()
        self._listeners: list[Callable[[T], None]] = []
        self.content = read()
        self.rejected = 0

    def follow(self, listener: Callable[[T], None]) -> None:
        """Call `listener` with the content now and after each change, on the event loop."""
        self._listeners.append(listener)
        listener(self.content)

    async def watch(self) -> None:
        """Look at the files regularly, until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_S)
            await self.look()

    async def look(self) -> None:
        """Apply a change of the files, if there is one and it is complete."""
        stamps = await asyncio.to_thread(self._stat)
        if stamps == self._stamps:
            return
        content, error = await asyncio.to_thread(self._try_to_read)
        if await asyncio.to_thread(self._stat) != stamps:
            return  # they are being written; the next look reads them
        self._stamps = stamps
        if content is None:
            self.rejected += 1
            bug = None if isinstance(error, InvalidInput) else error
            _log.error("keeping the previous %s: %s", self._what, error, exc_info=bug)
            return
        self.content = content
        for listener in self._listeners:
            try:
                listener(content)
            except Exception:  # noqa: BLE001 - a bug in one of them
                # The others still follow, this change and further ones.
                _log.exception("a part of the gateway did not follow the %s", self._what)
        _log.info("reloaded the %s", self._what)

    def _try_to_read(self) -> tuple[T, None] | tuple[None, Exception]:
        try:
            return self._read(), None
        except Exception as error:  # noqa: BLE001 - the previous content is kept in any case
            return None, error

    def _stat(self) -> list[tuple[int, int, int] | None]:
        return [_stamp(path) for path in self._paths]


def _stamp(path: Path) -> tuple[int, int, int] | None:
    """Return what tells two versions of a file apart; None if it is missing."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_mtime_ns, stat.st_size
