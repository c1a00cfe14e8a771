"""Event logs of gateways: read, and replayed by a new core."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from synergai.core.scheduling import events
from synergai.core.scheduling.core import SchedulerCore
from synergai.core.scheduling.event_log import FORMAT
from synergai.core.scheduling.settings import SchedulingSettings
from synergai.errors import InvalidInput
from synergai.profiles.dictionary import ConfigurationDictionary, ProfileEntry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from typing import TextIO

    from synergai.core.scheduling.events import Command, Event


_CLASSES: Final = {
    cls.__name__: cls for base in (events.Event, events.Command) for cls in base.__subclasses__()
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayStep:
    """A recorded event handled again by a new core; `decision_s` is the CPU time of that."""

    at: float
    event: Event
    recorded: list[Command]
    replayed: list[Command]
    decision_s: float


def replay(path: Path, cpu_clock: Callable[[], float]) -> Iterator[ReplayStep]:
    """Feed the recorded events to a new core, without a last line that was cut off.

    `cpu_clock` returns CPU seconds; it is read before and after each event.
    """
    with _opened(path) as lines:
        head = _head(path, next(lines, ""))
        core = SchedulerCore(
            _decode_settings(path, head.settings),
            ConfigurationDictionary(head.dictionary),
            head.epoch,
        )
        for event, at, recorded in _steps(path, lines):
            began = cpu_clock()
            commands = core.handle(event, at)
            yield ReplayStep(
                at=at,
                event=event,
                recorded=recorded,
                replayed=commands,
                decision_s=cpu_clock() - began,
            )


def recorded_steps(path: Path) -> Iterator[tuple[Event, float, list[Command]]]:
    """Yield each recorded event, its time and its commands, without a last line cut off."""
    with _opened(path) as lines:
        _head(path, next(lines, ""))
        yield from _steps(path, lines)


def _steps(path: Path, lines: TextIO) -> Iterator[tuple[Event, float, list[Command]]]:
    for number, line in enumerate(lines, 2):
        if not line.endswith("\n"):
            break  # cut off when the gateway was killed
        yield _decode_step(line, f"{path}, line {number}")


def _decode_step(line: str, where: str) -> tuple[Event, float, list[Command]]:
    """Return the event of a line, its time, and the commands that it led to."""
    try:
        document = json.loads(line)
        commands = [_decode_tagged(command) for command in document["commands"]]
        event, at = _decode_tagged(document["event"]), msgspec.convert(document["at"], float)
    # ValidationError of msgspec is a ValueError.
    except (ValueError, KeyError, TypeError, RecursionError):
        raise InvalidInput(f"{where}: not an event of this version") from None
    if not math.isfinite(at):
        raise InvalidInput(f"{where}: the time must be a finite number, not {at}")
    return event, at, commands


class _Head(msgspec.Struct):
    """The first line of an event log."""

    format: Literal[1]
    epoch: int
    settings: dict[str, Any]
    dictionary: list[ProfileEntry]


def _opened(path: Path) -> TextIO:
    # Bytes that are no text are in a name, or make their line invalid.
    return path.open(encoding="utf-8", errors="replace")


def _head(path: Path, line: str) -> _Head:
    try:
        return msgspec.convert(json.loads(line), _Head)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"{path}: not an event log of version {FORMAT}: {error}") from None
    except (ValueError, RecursionError):
        raise InvalidInput(f"{path}: not an event log") from None


def _decode_settings(path: Path, fields: dict[str, Any]) -> SchedulingSettings:
    try:
        return msgspec.convert(fields, SchedulingSettings)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"{path}: invalid settings: {error}") from None


def _decode_tagged(value: list[Any]) -> Any:
    name, fields = value
    return msgspec.convert(fields, _CLASSES[name])
