"""Values of an engine.toml, checked one by one."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from synergai.errors import InvalidInput
from synergai.models.formats.model_files import DEFINITION_FILE

if TYPE_CHECKING:
    from collections.abc import Sequence

_MAX_QUOTED_CHARS: Final = 80
"""Longest quotation of an invalid value in an error message."""
_SHA256: Final = re.compile(r"[0-9a-f]{64}")


def string(key: str, value: object) -> str:
    """Return the value of `key` if it is a text that is safe in paths and on terminals."""
    if not isinstance(value, str) or not value:
        raise InvalidInput(f"{DEFINITION_FILE}: {key} must be a string, not {quote(value)}")
    if not value.isprintable():
        raise InvalidInput(f"{DEFINITION_FILE}: {key} contains control characters: {quote(value)}")
    return value


def choice_of(key: str, value: object, choices: Sequence[str]) -> str:
    """Return the value of `key` if it is one of `choices`."""
    if value not in choices:
        raise InvalidInput(
            f"{DEFINITION_FILE}: {key} must be one of {', '.join(choices)}, not {quote(value)}"
        )
    return str(value)


def sha256_digest(value: str) -> str:
    """Return a SHA-256 in lower-case digits."""
    if not _SHA256.fullmatch(value.lower()):
        raise InvalidInput(f"{DEFINITION_FILE}: sha256 must be 64 hexadecimal digits")
    return value.lower()


def fraction(key: str, value: object) -> float:
    """Return the value of `key` if it is a number from 0 to 1."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InvalidInput(f"{DEFINITION_FILE}: {key} must be a number, not {quote(value)}")
    if not 0 <= value <= 1:
        raise InvalidInput(f"{DEFINITION_FILE}: {key} must be from 0 to 1, not {quote(value)}")
    return float(value)


def quote(value: object) -> str:
    """Return `value` shortened for an error message."""
    try:
        text = repr(value)
    except ValueError:  # a hexadecimal TOML integer with thousands of digits
        return "a number that is too large"
    return text if len(text) <= _MAX_QUOTED_CHARS else f"{text[:_MAX_QUOTED_CHARS]}…"
