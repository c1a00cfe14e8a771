"""A file of everything that the scheduling core was told and answered, to be replayed.

One JSON document per line. The first holds what the core began with; every other an event, when
it was handled, and the commands that followed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import json
import logging
import types
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Union, get_args, get_origin, get_type_hints

from synergai import domain
from synergai.errors import InvalidInput, Unavailable
from synergai.profiles import dictionary
from synergai.profiles.dictionary import ConfigurationDictionary, ProfileEntry
from synergai.scheduling import events
from synergai.scheduling.core import SchedulerCore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from typing import Self

    from synergai.scheduling.events import Command, Event, SchedulingSettings

_log = logging.getLogger(__name__)

FORMAT: Final = 1
_BUFFER_BYTES: Final = 1 << 20
_NAMES: Final = {**vars(domain), **vars(dictionary), **vars(events)}
_CLASSES: Final = {
    cls.__name__: cls for cls in (*get_args(events.Event), *get_args(events.Command))
}


class EventLog:
    """Writes the file; a context manager.

    Writing happens on the loop and is buffered: what a killed gateway had not written is lost.
    When the file cannot be written any more, it ends there, and the gateway goes on.

    Raises:
        Unavailable: the file cannot be opened.
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
                "settings": _plain(settings),
                "dictionary": [_plain(entry) for entry in profiles],
            }
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._ending_on_error():
            self._file.close()

    def record(self, event: Event, now: float, commands: list[Command]) -> None:
        """Write one event and its commands."""
        if self._file.closed:
            return
        self._write({"at": now, "event": _tagged(event), "commands": [*map(_tagged, commands)]})

    def _write(self, document: object) -> None:
        with self._ending_on_error():
            self._file.write(json.dumps(document, separators=(",", ":")) + "\n")

    @contextlib.contextmanager
    def _ending_on_error(self) -> Iterator[None]:
        """What happens to a disk must not happen to the jobs."""
        try:
            yield
        except OSError as error:
            _log.error("%s ends here: %s", self._file.name, error.strerror)
            with contextlib.suppress(OSError):
                self._file.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """An event that a new core was told again.

    Attributes:
        at: when the recorded core was told.
        recorded: the commands that followed then.
        replayed: those that the new core gives.
        decision_s: CPU time that the new core took.
    """

    at: float
    event: Event
    recorded: list[Command]
    replayed: list[Command]
    decision_s: float


def replay(path: Path, cpu_clock: Callable[[], float]) -> Iterator[Replayed]:
    """Feed the recorded events to a new core.

    Args:
        path: the event log.
        cpu_clock: read before and after each event, in seconds, to time the decisions.

    Yields:
        What became of each event.

    Raises:
        InvalidInput: the file is not an event log of this version.
    """
    with path.open(encoding="utf-8") as lines:
        head = _document(path, next(lines, ""))
        if head.get("format") != FORMAT:
            raise InvalidInput(f"{path} is not an event log of version {FORMAT}")
        core = SchedulerCore(
            _revived(events.SchedulingSettings, head["settings"]),
            ConfigurationDictionary(_revived(ProfileEntry, entry) for entry in head["dictionary"]),
            head["epoch"],
        )
        for line in lines:
            document = _document(path, line)
            event = _untagged(document["event"])
            recorded = [_untagged(command) for command in document["commands"]]
            at = document["at"]
            began = cpu_clock()
            commands = core.handle(event, at)
            yield Replayed(
                at=at,
                event=event,
                recorded=recorded,
                replayed=commands,
                decision_s=cpu_clock() - began,
            )


def _document(path: Path, line: str) -> dict[str, Any]:
    try:
        document = json.loads(line)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise InvalidInput(f"{path} is not an event log")
    return document


def _tagged(value: Event | Command) -> list[Any]:
    return [type(value).__name__, _plain(value)]


def _untagged(value: list[Any]) -> Any:
    name, fields = value
    return _revived(_CLASSES[name], fields)


def _plain(value: Any) -> Any:
    """JSON's idea of a domain value."""
    if dataclasses.is_dataclass(value):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, frozenset):
        return sorted(map(_plain, value), key=str)
    if isinstance(value, tuple | list):
        return [_plain(part) for part in value]
    if isinstance(value, Mapping):
        return {key: _plain(part) for key, part in value.items()}
    return value


def _revived(kind: Any, value: Any) -> Any:
    """The value of type `kind` that `_plain` was given."""
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        return None if value is None else _revived(get_args(kind)[0], value)
    if origin is tuple:
        parts = get_args(kind)
        if parts[-1] is ...:
            return tuple(_revived(parts[0], part) for part in value)
        return tuple(_revived(part, v) for part, v in zip(parts, value, strict=True))
    if origin is frozenset:
        return frozenset(_revived(get_args(kind)[0], part) for part in value)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        hints = get_type_hints(kind, localns=_NAMES)
        return kind(**{name: _revived(hints[name], part) for name, part in value.items()})
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return kind(value)
    return value
