"""Which paths files of an engine may have; engines travel between machines."""

from __future__ import annotations

from typing import Final

_MAX_PATH: Final = 1024
_MAX_DEPTH: Final = 16
_MAX_NAME_BYTES: Final = 255
"""Limit of most file systems."""
RULE: Final = (
    f"relative and printable, with at most {_MAX_PATH:,} characters and {_MAX_DEPTH} parts, and "
    "not hidden"
)
"""What a path must be, for messages."""


def is_engine_path(path: str) -> bool:
    """Return whether a file in an engine's folder may have this path, which is relative to it."""
    parts = path.split("/")
    return not (
        len(path) > _MAX_PATH
        or len(parts) > _MAX_DEPTH
        or not path.isprintable()
        or "\\" in path
        or any(part in ("", ".", "..") or _too_long(part) for part in parts)
        or parts[0].startswith(".")
    )


def _too_long(part: str) -> bool:
    return len(part.encode("utf-8", "surrogatepass")) > _MAX_NAME_BYTES
