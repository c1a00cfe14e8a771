"""Ctrl-C while a program still starts."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

INTERRUPTED: Final = 130
"""Exit code of a command that SIGINT ended, as shells have it."""


@contextmanager
def exit_on_interrupt() -> Iterator[None]:
    """Exit without a traceback if the block is interrupted."""
    try:
        yield
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None
