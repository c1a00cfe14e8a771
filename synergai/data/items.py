"""Inputs as they are read, before they become requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

MAX_REASON: Final = 500
"""Characters of the reason why an input cannot be used."""


@dataclass(frozen=True, slots=True)
class NamedInput:
    """One input of a job.

    Attributes:
        name: appears with the result, such as the name of a file.
        value: an encoded file as ``bytes``; an array, or a mapping of arrays by input name; or,
            from the readers of this package, an `Unusable`.
    """

    name: str
    value: Any


@dataclass(frozen=True, slots=True)
class Unusable:
    """Placeholder for an input that cannot be read or does not suit the engine."""

    reason: str


def unusable(error: BaseException) -> Unusable:
    """Return what stands in for an input whose reading failed with `error`."""
    if isinstance(error, FileNotFoundError):
        return Unusable("there is no such file")
    if isinstance(error, OSError) and error.strerror:
        return Unusable(error.strerror.lower())
    text = " ".join(str(error).split()) or type(error).__name__
    return Unusable(text if len(text) <= MAX_REASON else f"{text[: MAX_REASON - 1]}…")
