"""The audit log's file, written by a separate thread."""

from __future__ import annotations

import logging
import os
import queue
import threading
from typing import TYPE_CHECKING, Final

from synergai.errors import InvalidInput

if TYPE_CHECKING:
    from pathlib import Path

_log = logging.getLogger(__name__)

MAX_QUEUED: Final = 8192
"""Lines that wait for the disk."""
_MAX_BATCH: Final = 256
_CLOSE_WITHIN_S: Final = 5.0


class AuditFile:
    """A file that lines are appended to.

    It is opened again if another file, or none, is at its path, so that it can be rotated. Lines
    that cannot be written are dropped.
    """

    def __init__(self, path: Path, *, max_queued: int = MAX_QUEUED) -> None:
        self.path = path
        self._queue: queue.Queue[str | None] = queue.Queue(max_queued)
        self._not_queued = self._not_written = 0
        self._failing = self._torn = False
        try:
            self._descriptor = _open(path)
        except OSError as error:
            raise InvalidInput(f"audit log {path} cannot be opened: {error.strerror}") from None
        self._thread = threading.Thread(target=self._run, name="audit log", daemon=True)
        self._thread.start()

    @property
    def dropped(self) -> int:
        """Number of lines that could not be written."""
        # Two counters, since two threads count.
        return self._not_queued + self._not_written

    def append(self, line: str) -> None:
        """Append a line, soon."""
        try:
            self._queue.put_nowait(line)
        except queue.Full:
            self._not_queued += 1

    def close(self) -> None:
        """Write the queued lines and close the file; give up on a disk that hangs. It blocks."""
        try:
            self._queue.put(None, timeout=_CLOSE_WITHIN_S)
        except queue.Full:
            return
        self._thread.join(_CLOSE_WITHIN_S)

    # --- writer thread ------------------------------------------------------------------------

    def _run(self) -> None:
        closing = False
        while not closing:
            lines: list[str] = []
            line = self._queue.get()
            while line is not None:
                lines.append(line)
                if len(lines) == _MAX_BATCH or self._queue.empty():
                    break
                line = self._queue.get_nowait()
            closing = line is None
            if lines:
                self._write(lines)
        os.close(self._descriptor)

    def _write(self, lines: list[str]) -> None:
        try:
            self._reopen_if_moved()
            # A line that a full disk has cut short stays one invalid line.
            data = (("\n" if self._torn else "") + "".join(lines)).encode("ascii")
            written = os.write(self._descriptor, data)
        except OSError as error:
            self._fail(len(lines), error.strerror)
            return
        if written < len(data):
            self._torn = True
            self._fail(data[written:].count(b"\n"), "the disk is full")
            return
        self._torn = False
        if self._failing:
            self._failing = False
            _log.warning("the audit log %s is written again", self.path)

    def _fail(self, count: int, reason: str | None) -> None:
        self._not_written += count
        if not self._failing:
            self._failing = True
            _log.error("the audit log %s cannot be written: %s", self.path, reason)

    def _reopen_if_moved(self) -> None:
        ours = os.fstat(self._descriptor)
        try:
            current = self.path.stat()
        except FileNotFoundError:
            pass
        else:
            if (current.st_dev, current.st_ino) == (ours.st_dev, ours.st_ino):
                return
        descriptor = _open(self.path)
        os.close(self._descriptor)
        self._descriptor = descriptor
        self._torn = False


def _open(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
