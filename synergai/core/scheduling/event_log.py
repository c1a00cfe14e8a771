"""Event log of the scheduling core: everything it handled and answered.

One JSON document per line. The first holds the initial state (settings, dictionary, epoch);
each further line an event, its time, and the resulting commands.
"""

from __future__ import annotations

import contextlib
import json
import logging
from typing import TYPE_CHECKING, Any, Final, Self

import msgspec

from synergai.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from synergai.core.scheduling.events import Command, Event
    from synergai.core.scheduling.settings import SchedulingSettings
    from synergai.profiles.dictionary import ConfigurationDictionary

_log = logging.getLogger(__name__)

FORMAT: Final = 1
_BUFFER_BYTES: Final = 1 << 20


class EventLog:
    """Writer of an event log; a context manager.

    Writes happen on the event loop and are buffered: a killed gateway loses the unwritten tail.
    On a write error the log is closed and the gateway continues without it.
    """

    def __init__(
        self,
        path: Path,
        settings: SchedulingSettings,
        profiles: ConfigurationDictionary,
        epoch: int,
    ) -> None:
        try:
            self._file = path.open("w", encoding="utf-8", buffering=_BUFFER_BYTES)
        except OSError as error:
            raise Unavailable(f"cannot write {path}: {error.strerror}") from error
        self._write(
            {
                "format": FORMAT,
                "epoch": epoch,
                "settings": msgspec.structs.asdict(settings),
                "dictionary": [_encode(entry) for entry in profiles],
            }
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._close_on_error():
            self._file.close()

    def record(self, event: Event, now: float, commands: list[Command]) -> None:
        """Append an event and its commands."""
        if self._file.closed:
            return
        self._write(
            {
                "at": now,
                "event": _encode_tagged(event),
                "commands": [*map(_encode_tagged, commands)],
            }
        )

    def _write(self, document: object) -> None:
        with self._close_on_error():
            self._file.write(json.dumps(document, separators=(",", ":")) + "\n")

    @contextlib.contextmanager
    def _close_on_error(self) -> Iterator[None]:
        """Close the log on an I/O error instead of failing the caller."""
        try:
            yield
        except OSError as error:
            _log.error("event log %s closed: %s", self._file.name, error.strerror)
            with contextlib.suppress(OSError):
                self._file.close()


def _encode_tagged(value: Event | Command) -> list[Any]:
    return [type(value).__name__, _encode(value)]


def _encode(value: object) -> Any:
    """Convert a struct to JSON types; sets become sorted lists."""
    return msgspec.to_builtins(value, order="deterministic")
