"""Text for terminals and messages: sanitised, and with counts."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def printable(text: str) -> str:
    """Return `text` on one line, without unprintable characters.

    White space becomes a blank, any other unprintable character a question mark: file and tensor
    names may contain control sequences, or bytes that are not valid text.
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else " " if each.isspace() else "?" for each in text)


def encodable(text: str) -> str:
    """Return `text` with escapes for what UTF-8 cannot encode.

    JSON may contain lone surrogates, which a message that quotes it would contain as well.
    """
    return text.encode("utf-8", "backslashreplace").decode()


def pip_install(extras: str) -> str:
    """Return the command that installs extras. No package index has SynergAI, only its wheel."""
    if "tensorflow" in extras.split(",") and sys.version_info >= (3, 14):
        return "TensorFlow has no wheel for Python 3.14 and later: use Python 3.11 to 3.13 for it"
    return f"pip install 'WHEEL[{extras}]', where WHEEL is the path of SynergAI's wheel"


def counted(count: int, noun: str) -> str:
    """Return a count with its noun: ``1 engine``, ``2 classes``, ``0 entries``."""
    if count == 1:
        return f"1 {noun}"
    if noun.endswith("y") and noun[-2:-1] not in "aeiou":  # query, but not: day
        return f"{count:,} {noun[:-1]}ies"
    return f"{count:,} {noun}{'es' if noun.endswith('s') else 's'}"


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return the end of a message on an unknown name: the known one that may be meant."""
    import difflib  # only needed for these messages

    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""
