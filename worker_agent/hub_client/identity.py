"""Proof of the worker's identity for a gateway whose access table has the hash of a token."""

from __future__ import annotations

from typing import TYPE_CHECKING

from synergai.errors import InvalidInput

if TYPE_CHECKING:
    from pathlib import Path


def read_token(file: Path | None, text: str) -> str:
    """Return the worker's token, from a file or else as `text`; empty for none."""
    if file is None:
        return text
    try:
        token = file.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise InvalidInput(f"--token-file {file} cannot be read: {reason}") from None
    if not token:
        raise InvalidInput(f"--token-file {file} is empty")
    return token
