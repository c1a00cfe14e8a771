"""Types of settings, and how their values are written as text, such as durations: ``1h30m``."""

from __future__ import annotations

import os
import re
import sys
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias

from msgspec import Struct

from synergai.errors import InvalidInput
from synergai.names import is_number, validate_name
from synergai.runtime.addresses import refuse_url

if TYPE_CHECKING:
    from collections.abc import Callable


_SECONDS: Final = {"d": 86_400.0, "h": 3_600.0, "m": 60.0, "s": 1.0, "ms": 1e-3}
_DURATION: Final = re.compile(
    r"(?:([0-9.]+)d)?(?:([0-9.]+)h)?(?:([0-9.]+)m(?:in)?)?(?:([0-9.]+)s)?(?:([0-9.]+)ms)?"
)


def parse_duration(text: str) -> float:
    """Return the seconds of a duration; without a unit, it is in seconds. It may be negative."""
    bare = text.strip().lower()
    try:
        match = _DURATION.fullmatch(bare)
        if match is not None and bare:
            parts = zip(match.groups(), _SECONDS.values(), strict=True)
            return sum(float(part) * unit for part, unit in parts if part)
        return float(bare)
    except ValueError:
        raise InvalidInput(
            f"{text!r} is not a duration: write seconds, or one such as 250ms, 90s, 30m or 1h30m"
        ) from None


class Parsed(Struct, frozen=True):
    """Marks a setting whose values a function parses before their type and limits are checked."""

    parse: Callable[[Any], object]
    metavar: str = ""


class Checked(Struct, frozen=True):
    """Marks a setting whose values a function checks once they have the right type."""

    check: Callable[[Any], object]
    metavar: str = ""


class Positional(Struct, frozen=True):
    """Marks a setting that is a positional argument instead of an option."""


class OptionName(Struct, frozen=True):
    """Gives an option another name than its field's, without hyphens before it."""

    name: str


HUB: Final = "127.0.0.1:8010"
"""Default address for agents."""


def validate_address(text: str, example: str = "127.0.0.1:8001") -> str:
    """Return `text` if it is ``HOST:PORT`` or ``[IPV6]:PORT``; port 0 stands for a free one."""
    host, separator, port = refuse_url(text).rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host_is_valid = ":" in host and not set(host[1:-1]) - set("0123456789abcdefABCDEF:.%")
    else:
        host_is_valid = bool(host) and not set(host) & set(":/[]@ \t\n")
    if not (separator and host_is_valid and is_number(port, 65535)):
        raise InvalidInput(
            f"{text!r} is not an address: write HOST:PORT or [IPV6]:PORT, such as {example}"
        )
    return text


def parse_cores(parts: object) -> tuple[int, ...]:
    """Parse core numbers and ranges such as ``2-5``; return them sorted, without duplicates."""
    cores: set[int] = set()
    configured = os.sysconf("SC_NPROCESSORS_CONF")  # includes cores that a power mode has disabled
    for part in parts if isinstance(parts, list | tuple) else (parts,):
        first, dash, last = str(part).partition("-")
        numbers = (first, last) if dash else (first,)
        if not all(is_number(number, sys.maxsize) for number in numbers):
            raise InvalidInput(f"{part!r} is not a core: write numbers and ranges, such as 0,2-3")
        start, stop = int(first), int(last or first)
        if not start <= stop:
            raise InvalidInput(f"{part!r} is not a range: its end is before its start")
        if stop >= configured:
            raise InvalidInput(f"this machine has no core {stop}; the last one is {configured - 1}")
        cores.update(range(start, stop + 1))
    return tuple(sorted(cores))


_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?) ?([KMGT]?)(i?)B?", re.IGNORECASE)


def parse_size(value: object) -> object:
    """Parse a number of bytes such as ``20GB`` or ``512MiB``; numbers are left as they are."""
    if not isinstance(value, str):
        return value
    found = _SIZE.fullmatch(value.strip())
    if found is None:
        raise InvalidInput(f"{value!r} is not a size: write bytes, or a number such as 20GB")
    number, unit, binary = found.groups()
    step = 1024 if binary else 1000
    return int(float(number) * step ** " KMGT".index(unit.upper() or " "))


def _seconds(value: object) -> object:
    return parse_duration(value) if isinstance(value, str) else value


def validate_hubs(text: str) -> str:
    """Return `text` if it is addresses of hubs, separated by commas."""
    for each in text.split(","):
        validate_address(each, HUB)
    return text


def parse_share(value: object) -> object:
    """Return a share, or a percentage such as ``1%``, as a number; other types as they are."""
    if not isinstance(value, str):
        return value
    try:
        share = float(value[:-1]) / 100.0 if value.endswith("%") else float(value)
    except ValueError:
        share = -1.0
    if not 0.0 <= share <= 1.0:
        raise InvalidInput(f"{value!r} is not a share from 0% to 100%, such as 1% or 0.01")
    return share


def named(kind: str) -> Checked:
    """Return the mark of a setting that names something of a kind, such as a worker class."""
    return Checked(partial(validate_name, kind=kind))


POSITIONAL: Final = Positional()

Address: TypeAlias = Annotated[str, Checked(validate_address, "HOST:PORT")]
"""``HOST:PORT`` to listen on or to connect to."""
HubAddress: TypeAlias = Annotated[str, Checked(partial(validate_address, example=HUB), "HOST:PORT")]
"""``HOST:PORT`` of a gateway for agents."""
HubAddresses: TypeAlias = Annotated[str, Checked(validate_hubs, "HOST:PORT[,…]")]
"""``HOST:PORT`` of gateways, separated by commas."""
Cores: TypeAlias = Annotated[tuple[int, ...], Parsed(parse_cores)]
"""Numbers of CPU cores, in the format of ``taskset --cpu-list``: ``0,2-3``."""
Size: TypeAlias = Annotated[int, Parsed(parse_size, "SIZE")]
"""Number of bytes, such as ``20GB`` or ``512MiB``."""
Duration: TypeAlias = Annotated[float, Parsed(_seconds, "DURATION")]
"""Number of seconds, or a text such as ``30m`` or ``1h30m``."""
Share: TypeAlias = Annotated[float, Parsed(parse_share)]
"""A number from 0 to 1, or a percentage."""
LogLevel: TypeAlias = Literal["debug", "info", "warning", "error"]
"""Minimum level of logged messages."""
