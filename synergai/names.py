"""Names that are safe in paths and on terminals, and whole numbers in texts.

Imports the standard library only, because the power helper, which runs as root, needs it.
"""

from __future__ import annotations

import re
from typing import Final

from synergai.errors import InvalidInput

_QUOTED: Final = 256
"""Characters of an invalid name that an error quotes; it may be as long as a message."""
_MAX_DIGITS: Final = 20
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def validate_name(text: str, kind: str) -> str:
    """Return `text` if it is a valid name, safe in paths and on terminals.

    Raises:
        InvalidInput: it is empty, too long, or has characters other than letters, digits, ``._-``.
    """
    if not _NAME.fullmatch(text):
        raise InvalidInput(
            f"{text[:_QUOTED]!r} is not a valid {kind}: use at most 128 letters, digits, '.', '_' "
            "and '-', beginning with a letter or digit"
        )
    return text


def is_number(text: str, most: int) -> bool:
    """Return whether a text is a whole number up to `most`, in few enough digits for ``int``."""
    digits = len(text) <= _MAX_DIGITS and text.isascii() and text.isdecimal()
    return digits and int(text) <= most
