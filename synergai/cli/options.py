"""Options shared by several commands."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Final

import typer

from synergai.client.target import TARGET_VARIABLE
from synergai.errors import InvalidInput, InvalidSettings
from synergai.runtime import setting_types
from synergai.runtime.paths import default_dictionary

Target = Annotated[
    str,
    typer.Option(
        "--target",
        metavar="HOST:PORT",
        envvar=TARGET_VARIABLE,
        show_envvar=True,
        help="Address of the gateway, several with one database separated by commas, or @FILE "
        "with a map of cells. Default: that of the context in use, or 127.0.0.1:8001.",
    ),
]
DEFAULT_MODELS: Final = Path("models")
Models = Annotated[Path, typer.Option("--models", metavar="DIR", help="The model directory.")]
DEFAULT_DICTIONARY: Final = default_dictionary()
Dictionary = Annotated[
    Path,
    typer.Option(
        "--dictionary",
        metavar="FILE",
        help="The dictionary, a .db file.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Priority = Annotated[int, typer.Option(metavar="INTEGER", help="0 (default) to 9 (most urgent).")]
EngineVersion = Annotated[
    str,
    typer.Option(
        "--version",
        metavar="N",
        help="Version of the engine, or a variant of it, such as 2.int8. Default: the gateway's "
        "choice.",
    ),
]
MinAccuracy = Annotated[
    float,
    typer.Option(
        metavar="SHARE", help="Lowest accuracy, 0 to 1, of the variants that may be used."
    ),
]


_TIME: Final = re.compile(r"([0-9]{1,2}):([0-9]{2})(?::([0-9]{2}))?")


def parse_duration(text: str, option: str) -> float:
    """Return the seconds of a duration such as ``90``, ``2h`` or ``1h30m``; it may be negative."""
    try:
        return setting_types.parse_duration(text)
    except InvalidInput as error:
        raise InvalidSettings(f"{option}: {error}") from None


def parse_instant(text: str, option: str, now: datetime) -> datetime:
    """Return the instant of a time such as ``18:00``, or of an ISO 8601 date and time.

    A time of day is the next one. Times without a zone are local.
    """
    try:
        if match := _TIME.fullmatch(text.strip()):
            hour, minute, second = (int(part or 0) for part in match.groups())
            local = now.astimezone()
            instant = local.replace(hour=hour, minute=minute, second=second, microsecond=0)
            if instant <= now:
                instant = _same_time_tomorrow(instant)
        else:
            instant = datetime.fromisoformat(text.strip()).astimezone()
    except ValueError:
        raise InvalidSettings(
            f"{option}: {text!r} is not a time; write one such as 18:00 or 2026-11-23T06:00"
        ) from None
    if instant <= now:
        raise InvalidSettings(f"{option}: {text} has passed")
    return instant


def _same_time_tomorrow(instant: datetime) -> datetime:
    # Without the zone, because the day may have 23 or 25 hours.
    return (instant.replace(tzinfo=None) + timedelta(days=1)).astimezone()
